"""Entries of the frameworks that train with transformers' Trainer: sharding, batch, precision, adapters.

Sources: transformers 5.13, src/transformers/training_args.py (fields, OptimizerNames), trainer_utils.py (FSDPOption);
accelerate 1.15, utils/dataclasses.py (FullyShardedDataParallelPlugin: FSDP1 shards fully unless told otherwise).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ....errors import FieldProblem, InputError
from ....profiles.io.document import Document
from ....profiles.io.reader import read_document
from .. import adapter_choices, cpu_offload
from ..adapters import LORA, OF_FEED_FORWARD, targets_of
from ..argv import Arguments
from ..facts import NODES
from ..import_format import Compared
from ..options import Entry, Facts, NoCounterpartError, Settings
from . import accelerator_block, engine_files, preferences
from .engine_files import CONFIG_FILE, DEEPSPEED
from .reader import noted, reads, states, value

_BLOCK = ("version", "reshard_after_forward", "activation_checkpointing", "offload_params", "sharding_strategy",
          "state_dict_type", "auto_wrap_policy")  # fmt: skip
# Option of DeepSpeed's JSON -> that of TrainingArguments, which must be equal.
_SAME = {"train_micro_batch_size_per_gpu": "per_device_train_batch_size",
         "gradient_accumulation_steps": "gradient_accumulation_steps"}  # fmt: skip
# Keys of fsdp_config, with and without their prefix.
FSDP = tuple(f"fsdp_config.{prefix}{name}" for name in _BLOCK for prefix in ("", "fsdp_"))
SHARDING_KINDS = dict.fromkeys((CONFIG_FILE, DEEPSPEED, "fsdp", *FSDP), "any")
# What says nothing beside them.
FSDP_HARMLESS = (
    r"^(fsdp_config\.)?(fsdp_)?(min_num_params|transformer_layer_cls_to_wrap|backward_prefetch(_policy)?|forward_prefetch|"
    r"limit_all_gathers|use_orig_params|sync_module_states|cpu_ram_efficient_loading|final_state_dict_type|"
    r"cpu_offload_pin_memory|state_dict_type)$|^ddp_(timeout|bucket_cap_mb|broadcast_buffers|find_unused_parameters)$|"
    r"^(hub|push|report|run)_|^liger_|^(use|enable)_liger|^torch_compile|^torchdynamo$"
)
# transformers 5.13, utils/quantization_config.py: BitsAndBytesConfig refuses both.
EXCLUSIVE = (("load_in_4bit", "load_in_8bit"),)
CHANGES = {r"fsdp_config\.(xla.*|mixed_precision_policy)": "another FSDP than that of PyTorch, or other data types",
           r"adafactor": "an optimizer whose states have another size",
           r"use_cpu|no_cuda|use_mps_device": "trains on another device than GPUs"}  # fmt: skip
# Kernels that keep less of logits and blocks, compiled ones, and messages in fp8: of no plan.
_FUSED = re.compile(r"^((use_|enable_)?liger\w*|(cut|chunked)_cross_entropy|fp8_enable_fsdp_float8_all_gather|"
                    r"torch_compile\w*|torchdynamo)$")  # fmt: skip
_EAGER = {"attn_implementation": "eager", "attn_impl": "eager", "eager_attention": True, "flash_attn": "disabled"}
_STAGES = {"full_shard": 3, "shard_grad_op": 2, "no_shard": 0, "hybrid_shard": 3, "hybrid_shard_zero2": 2}
_OPTIMIZERS = {
    "adamw_torch": "adamw", "adamw_torch_fused": "adamw", "adamw_hf": "adamw", "adamw_apex_fused": "adamw",
    "adamw_8bit": "adamw-8bit", "adamw_bnb_8bit": "adamw-8bit", "adamw_torch_8bit": "adamw-8bit", "sgd": "sgd",
    "paged_adamw_8bit": "adamw-8bit", "paged_adamw_32bit": "adamw", "paged_adamw": "adamw", "adamw": "adamw",
    "muon": "muon",
}  # fmt: skip


def loaded(path: str, text: str, given: Sequence[str]) -> Document:
    """The document as yaml.safe_load reads it, of transformers' parse_yaml_file, TRL's parser and Axolotl."""
    return read_document(path, text, last_counts=True)


def modernise(arguments: Arguments, *, block_alone: bool = False) -> None:
    """Reads DeepSpeed's options inside the recipe, and names the lines that contradict one another.

    block_alone: whether fsdp_config switches FSDP on without `fsdp`. transformers 5.24, training_args.py,
    _process_fsdp_args, returns before it reads the block.
    """
    if not block_alone and not arguments.settings.get("fsdp"):
        _without_switch(arguments)
    engine_files.modernise(arguments)
    accelerator_block.modernise(arguments)
    if all(arguments.settings.get(name) is True for name in ("bf16", "fp16")):
        contradiction(arguments, "fp16", f"fp16 and bf16 (line {arguments.lines['bf16']}) are both on")
    fused = [name for name, given in arguments.settings.items()
             if _FUSED.search(name) and (given is True or ("torch" in name and given))]  # fmt: skip
    if fused:
        arguments.notes.append(f"{', '.join(fused)}: priced as without")
    for name in (DEEPSPEED, CONFIG_FILE):
        if isinstance(file := arguments.settings.get(name), Mapping) and "facts" in file:
            _same_numbers(arguments, file, arguments.files[name])
    for name in (*_SAME.values(), "lora_r", "lora_rank", "micro_batch_size"):
        if isinstance(number := arguments.settings.get(name), int) and number < 1:
            contradiction(arguments, name, f"`{number}` is not 1 or more", hint="")


def _without_switch(arguments: Arguments) -> None:
    """Drops the options of FSDP, which is off."""
    for name in [name for name in (*arguments.settings, *arguments.unknown) if name.startswith("fsdp_config.")]:
        arguments.unknown.pop(name, None)
        if arguments.settings.pop(name, None) is not None and name in FSDP:
            note = f"fsdp_config (line {arguments.lines[name]}) is without fsdp: transformers does not read it"
            arguments.notes += [note] if not any("is without fsdp" in other for other in arguments.notes) else []


def kernels(*options: str) -> Entry:
    """Refuses an attention that keeps its scores. options: those that name one."""

    def read(settings: Settings, facts: Facts) -> Facts:
        for name in options:
            if settings.get(name) == _EAGER.get(name, "eager"):
                raise NoCounterpartError(f"{name}: this attention keeps all scores, and no plan does")
        return {}

    return reads((), options, read)


def _same_numbers(arguments: Arguments, file: Mapping[str, Any], path: str) -> None:
    """Transformers refuses a DeepSpeed file that states another number than the recipe (integrations/deepspeed.py)."""
    for theirs, name in _SAME.items():
        ours, other = arguments.settings.get(name), file["settings"].get(theirs)
        if isinstance(other, int) and isinstance(ours, int) and other != ours:
            text = f"{ours} here, and {theirs} {other} in {path}, line {file['lines'].get(theirs, 0)}"
            contradiction(arguments, name, text)


def contradiction(arguments: Arguments, name: str, text: str, hint: str = "keep one") -> None:
    """Adds the problem of an option that excludes another, or its value."""
    arguments.problems.append(FieldProblem(text, file=arguments.files.get(name, ""), line=arguments.lines.get(name, 0),
                                           field=name, hint=hint))  # fmt: skip


def sharding() -> Entry:
    """ZeRO stage, shards and degrees: of DeepSpeed, FSDP or accelerate; without them plain data parallelism."""
    fields = ("zero", "shard", "dp", "offload", "tp", "cp", "cp_algorithm", "num_gpus")
    return reads(fields, tuple(SHARDING_KINDS), sharded)


def sharded(settings: Settings, facts: Facts) -> Facts:
    plain: Facts = {"zero": 0, "offload": "none", "tp": 1, "cp": 1}
    for name in (DEEPSPEED, "fsdp"):
        if isinstance(number := settings.get(name), int | float) and not isinstance(number, bool):
            raise InputError(f"{name}: {number} is neither the name of a file nor a block")
    given = (settings.get(name) for name in (CONFIG_FILE, DEEPSPEED))
    files = [file for file in given if isinstance(file, Mapping) and "facts" in file]
    names = ("zero", "offload", "tp", "cp", "cp_algorithm", "replicas", "dp", "num_gpus", "workload.techniques", "ep")
    for file in files:
        plain |= {name: file["facts"][name] for name in names if name in file["facts"]}
    strategy = settings.get("fsdp")
    block = {name.rpartition(".")[2].removeprefix("fsdp_"): settings[name] for name in FSDP if name in settings}
    if not strategy and not block:
        if not files and settings.get(DEEPSPEED) is None:
            return plain | noted(facts, "no accelerate, DeepSpeed or FSDP options: plain data parallelism is taken "
                                        "(give their file as a further FILE)")  # fmt: skip
        return plain
    return plain | _fsdp(strategy, block)


def _fsdp(strategy: Any, block: Mapping[str, Any]) -> Facts:
    """FSDP by its words (`full_shard auto_wrap`) and its block."""
    named = strategy if isinstance(strategy, list) else str(strategy or "").split()
    given = [str(word).lower() for word in (*named, str(block.get("sharding_strategy", "full_shard")))]
    kind = next((word for word in given if word in _STAGES), "full_shard")
    stage = 2 if block.get("reshard_after_forward") is False else _STAGES[kind]
    away = "offload" in given or block.get("offload_params") is True
    host = cpu_offload.of_stage(stage, "fsdp") if away else {}
    return {"zero": stage, **host} | ({"replicas": NODES} if kind.startswith("hybrid") else {})


def recompute(option: str = "gradient_checkpointing", *, unless: str = "", default: bool = False) -> Entry:
    """Recomputation of whole layers. unless: an option that switches it off where it is on by default; default: without
    the option."""
    blocks = ("fsdp_config.activation_checkpointing", "fsdp_config.fsdp_activation_checkpointing")

    def read(settings: Settings, facts: Facts) -> Facts:
        given = settings.get(option, default) if not unless else not settings.get(unless, False)
        if given not in (True, False, None):
            raise NoCounterpartError(f"{option} `{given}` has no counterpart in a plan: saved activations elsewhere")
        file = settings.get(CONFIG_FILE)
        of_file = isinstance(file, Mapping) and file["facts"].get("recompute", {}).get("mode") == "full"
        full = bool(given) or of_file or any(settings.get(name) is True for name in blocks)
        return {"recompute": {"mode": "full" if full else "none"}}

    return reads(("recompute", "recompute_modules", "recompute_layers"), (unless or option, *blocks), read)


def batch(size: str = "per_device_train_batch_size", default: int = 8, also: tuple[str, ...] = ()) -> Entry:
    """The micro-batch and the batch of a data-parallel rank. also: older names of the micro-batch, which win."""
    steps = "gradient_accumulation_steps"

    def read(settings: Settings, facts: Facts) -> Facts:
        micro = next((settings[name] for name in (*also, size) if settings.get(name) is not None), default)
        number = settings.get(steps) or 1
        return {"micro_batch": micro, "batch_per_rank": micro * number}

    return reads(("micro_batch", "workload.global_batch"), (size, steps, *also), read)


def length(option: str, packing: tuple[str, ...], default: int | None = None, also: tuple[str, ...] = ()) -> Entry:
    """The longest sequence. packing: options that put several documents into one."""
    own = value("workload.seq_len", option, default, also)

    def read(settings: Settings, facts: Facts) -> Facts:
        out = own.read(settings, facts)
        if not out or any(settings.get(name) for name in packing):
            return out
        return out | noted(facts, f"{packing[0]} is off: every sequence is priced at its full length")

    return reads(("workload.seq_len",), (option, *also, *packing), read)


def precision(*also: str, pure: str = "", default: str = "fp32") -> Entry:
    """bf16 or fp16 of the recipe; else that of the accelerate file, else the default. also: further options of the
    framework, of fp8, bfloat16 and float16; pure: an option for bf16 without a copy of the weights in fp32."""
    options = tuple(filter(None, ("bf16", "fp16", *also, pure)))

    def read(settings: Settings, facts: Facts) -> Facts:
        on = {name for name in options if settings.get(name) not in (None, False, "false")}
        file = settings.get(CONFIG_FILE)
        of_file = file["facts"].get("precision", default) if isinstance(file, Mapping) else default
        if "fp8" in on:
            return {"precision": "fp8"}
        if on & {"fp16", "float16"} and settings.get("bf16") is not True:
            return {"precision": "fp16"}
        if settings.get("bf16") is False and not on:
            return {"precision": "fp32"}
        return {"precision": "bf16" if on & {"bf16", "bfloat16", pure} else of_file}

    return reads(("precision",), options, read)


def weights(loaded: Callable[[Settings], Any]) -> Entry:
    """A sentence where plain data parallelism trains weights that are loaded in bf16; FSDP and DeepSpeed keep them in
    fp32 (accelerate 1.15, accelerator.py: upcasts under mixed precision). loaded: the data type of the weights."""

    def read(settings: Settings, facts: Facts) -> Facts:
        low = str(loaded(settings)).endswith(("bfloat16", "bf16", "True"))
        if not low or facts["zero"] or "workload.lora" in facts:
            return {}
        return noted(facts, "weights and states are trained in bf16: priced with weights and states in fp32")

    return reads((), (), read)


def optimizer(option: str = "optim") -> Entry:
    """The optimizer by its name in TrainingArguments."""

    def read(settings: Settings, facts: Facts) -> Facts:
        name = str(settings.get(option, "adamw_torch_fused")).lower()
        if name not in _OPTIMIZERS:
            raise NoCounterpartError(f"{option} `{name}` has no counterpart in a plan: its states have another size")
        if name == "muon" and facts.get("zero", 0) > 1:
            raise NoCounterpartError(f"{option} muon over shards of weights has no counterpart in a plan")
        return {"workload.optimizer": _OPTIMIZERS[name]}

    return reads(("workload.optimizer",), (option,), read)


def adapters(rank: int, option: str, targets: Any, base: str, words: Mapping[str, str], *,
             mixed: bool = False) -> Facts:  # fmt: skip
    """Low-rank adapters. targets: names of modules as `option` states them, or a word of `words`: word -> the way in
    which it picks modules (adapter_choices.py). mixed: whether names may stand beside the word.

    Raises NoCounterpartError for modules that no plan has.
    """
    listed = targets if isinstance(targets, list) else [word.strip() for word in str(targets).split(",")]
    given = [re.sub(r"^(self_attn|mlp)\.", "", str(name)) for name in listed]
    if not any(given) and "" not in words:
        raise NoCounterpartError(f"{option}: names no modules")
    words = words if mixed or len(given) == 1 else {}
    meaning = {name: targets_of(name) for name in given if name not in words}
    if strange := [name for name, known in meaning.items() if not known]:
        raise NoCounterpartError(f"{option}: no plan has adapters of {', '.join(map(str, strange))}")
    lora: dict[str, Any] = {"rank": rank, "base_dtype": base}
    if chosen := next((words[name] for name in given if name in words), ""):
        return {LORA: lora, adapter_choices.CHOSEN: (chosen, option)}
    lora["targets"] = list(dict.fromkeys(target for known in meaning.values() for target in known))
    if {*OF_FEED_FORWARD}.isdisjoint(lora["targets"]):
        return {LORA: lora}
    return {LORA: lora, adapter_choices.CHOSEN: (adapter_choices.LISTED, option)}  # the model decides on its experts


def base_dtype(four: Any, eight: Any) -> str:
    """The data type of frozen weights, by what is loaded in 4 and in 8 bits."""
    return "nf4" if four is True else "int8" if eight is True else "bf16"


PLAIN = states(pp=1, vpp=1, schedule="1f1b", ep=1, etp=1, sequence_parallel=False)


def compared(facts: Facts, own: str = "", *, splits: bool = False) -> Compared:
    """Layouts of `own`, the target that writes such recipes, where it can have them; of DeepSpeed where it alone has
    the sharding, of TRL where adapters are trained, else of accelerate; any where no target writes such recipes, as of
    preferences. splits: whether `own` has tensor parallelism.
    """
    degrees = {"pp": 1, "ep": 1, "tp": facts["tp"], "cp": facts["cp"]}
    unwritten = Compared("any", {"fix": degrees | preferences.fixed(facts), "stack": "accelerate"})
    if preferences.LEARNS in facts:
        return unwritten
    whole = facts["cp"] == 1 and (splits or facts["tp"] == 1)
    by_deepspeed = facts.get("zero") == 1 or facts["offload"] != "none" or cpu_offload.weights_alone(facts)
    if own and whole and not by_deepspeed:
        return Compared(own)
    if "workload.train_layers" in facts:  # which the others do not train
        return unwritten
    if by_deepspeed:
        return Compared("deepspeed")
    return Compared("trl" if "workload.lora" in facts and facts["tp"] == 1 else "accelerate")
