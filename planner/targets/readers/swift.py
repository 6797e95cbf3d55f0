"""The options of ms-swift: the YAML of `swift sft`, or the args.json that it leaves beside its checkpoints.

Sources: ms-swift 3602360a (2026-08-22), swift/arguments/sft_args.py, tuner_args.py and base_args/ (options, defaults),
trainers/arguments.py (batch, recomputation), config/ (its own files of DeepSpeed and FSDP2) and
sequence_parallel/sequence_parallel.py (_init_device_mesh: heads as far as they divide, a ring for the rest).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from math import gcd
from typing import Any

from ....errors import FieldProblem, InputError
from ....profiles.io.document import Document
from .. import adapter_choices
from ..argv import Arguments
from ..foreign import is_recipe
from ..model_names import known_model
from ..options import Facts, NoCounterpartError, Settings
from ..reading import Reading
from . import accelerator_block, commands, engine_files, preferences
from . import transformers_family as family
from .engine_files import DEEPSPEED
from .reader import Reader, noted, reads, value
from .towers import TOWERS

_CHUNKS = "sequence_parallel_size"
_FREEZES = ("freeze_parameters", "freeze_vit", "freeze_aligner")
_LORA = ("tuner_type", "train_type", "lora_rank", "target_modules", "quant_bits", "quant_method", "torch_dtype")
_WITHOUT_PADDING = ("packing", "padding_free")
_STEPS = "gradient_accumulation_steps"
_ON_HOST = {"device": "cpu"}
# swift/config: the files that `--deepspeed NAME` and `--fsdp NAME` mean.
_DEEPSPEED: dict[str, dict[str, Any]] = {
    **{f"zero{stage}": {"stage": stage} for stage in range(4)},
    "zero2_offload": {"stage": 2, "offload_optimizer": _ON_HOST},
    "zero3_offload": {"stage": 3, "offload_optimizer": _ON_HOST, "offload_param": _ON_HOST},
}
_FSDP: dict[str, dict[str, Any]] = {
    "fsdp2": {"fsdp_config": {"activation_checkpointing": True, "reshard_after_forward": True}},
}
# Words of FSDP, to which swift turns its options before it writes args.json.
_READ = re.compile(r"((full_shard|shard_grad_op|no_shard|hybrid_shard(_zero2)?|auto_wrap|offload)\s*)+")
# Option of swift -> where it stands in DeepSpeed's JSON.
_IN_DEEPSPEED = {"zero_hpz_partition_size": ("zero_optimization", "zero_hpz_partition_size"),
                 "deepspeed_autotp_size": ("tensor_parallel", "autotp_size")}  # fmt: skip
_COMMAND = commands.of_program(r"(^|[\s/])swift (sft|pt|rlhf) |swift/cli/(sft|pt|rlhf)\.py ")
_FLASH = ("flash_attn", "flash_attention_2", "flash_attention_3", "flash_attention_4")
_DTYPES = ("bfloat16", "float16", "float32")


def _modernise(arguments: Arguments) -> None:
    """Options as swift completes them (sft_args.py, _check_padding_free, _init_deepspeed and _init_fsdp)."""
    given = arguments.settings
    if given.get("fsdp") and given.get(DEEPSPEED):
        family.contradiction(arguments, "fsdp", f"fsdp and deepspeed (line {arguments.lines[DEEPSPEED]}) are both on")
    _complete_fsdp(arguments)
    _complete_deepspeed(arguments)
    if given.get("packing") and given.get("packing_length"):
        given["max_length"] = given["packing_length"]
    feature = next((name for name in _WITHOUT_PADDING if given.get(name)), None)
    if feature is not None and given.get("attn_impl") not in _FLASH:
        family.contradiction(arguments, feature, "goes with an attn_impl of flash attention alone",
                             f"`attn_impl: {_FLASH[0]}`")  # fmt: skip
    if given.get(_STEPS) is None:
        _gap(arguments, _STEPS, "is not given: swift takes as many as make 16 sequences of the ranks that it starts")
    preferences.of_swift(arguments)
    family.modernise(arguments)


def _complete_fsdp(arguments: Arguments) -> None:
    """`fsdp` as a name, the options themselves, or a file of them."""
    value = arguments.settings.get("fsdp")
    block = _FSDP.get(value, value) if isinstance(value, str) else value
    if isinstance(block, Mapping):
        line, file = arguments.lines.get("fsdp", 0), arguments.files.get("fsdp", "")
        arguments.settings["fsdp"] = block.get("fsdp", "full_shard auto_wrap")
        inner = block.get("fsdp_config") or {}
        if not isinstance(inner, Mapping):
            family.contradiction(arguments, "fsdp", f"fsdp_config `{inner}` is no block of options", hint="")
            return
        for name, part in inner.items():
            option = f"fsdp_config.{name}"
            if option in family.FSDP:
                arguments.settings[option] = part
            else:
                arguments.unknown[option] = line
                if part in (None, False):
                    arguments.off.add(option)
            arguments.lines[option], arguments.files[option] = line, file
    elif value is True:
        family.contradiction(arguments, "fsdp", "is neither a name, its options nor a file of them", "`fsdp: fsdp2`")
    elif isinstance(value, str) and value and not _READ.fullmatch(value):
        _gap(arguments, "fsdp", f"its options are in {value}: give it as a further FILE")


def _complete_deepspeed(arguments: Arguments) -> None:
    """`deepspeed` as a name, or the options themselves, with those that swift puts into them."""
    given = arguments.settings
    block = given.get(DEEPSPEED)
    if isinstance(block, str) and (known := _DEEPSPEED.get(block.removeprefix("default-").replace("-", "_"))):
        block = {"zero_optimization": dict(known)}  # `default-zero3` is a name of releases before 3
    options = {name: given[name] for name in _IN_DEEPSPEED if given.get(name) is not None}
    if not block:
        arguments.notes += [f"{name}: swift takes it into the options of deepspeed, which are not given"
                            for name in options]  # fmt: skip
    elif isinstance(block, Mapping) and "facts" in block:
        for name, number in options.items():
            engine_files.amend(arguments, {".".join(_IN_DEEPSPEED[name]): number}, name)
    elif isinstance(block, Mapping):
        for name, number in options.items():
            part, inner = _IN_DEEPSPEED[name]
            if isinstance(stated := block.get(part, {}), Mapping):
                block = {**block, part: {**stated, inner: number}}
        given[DEEPSPEED] = block


def _beside(path: str, text: str) -> Arguments | None:
    """The files of engine_files.py, and one with the options of `fsdp`."""
    if (other := engine_files.beside(path, text)) is not None or is_recipe(text):
        return other
    try:
        block = json.loads(text)
    except json.JSONDecodeError:
        return None
    is_fsdp = isinstance(block, dict) and block.keys() & {"fsdp", "fsdp_config"}
    return Arguments(settings={"fsdp": block}, lines={"fsdp": 1}) if is_fsdp else None


def _prepared(document: Document, arguments: Arguments) -> Document:
    return accelerator_block.expanded(commands.prepared(document, arguments), arguments, ("fsdp",))


def _gap(arguments: Arguments, option: str, text: str) -> None:
    file, line = arguments.files.get(option, next(iter(arguments.files.values()), "")), arguments.lines.get(option, 0)
    arguments.gaps.append(FieldProblem(text, file=file, line=line, field=option))


def _chunks(settings: Settings, facts: Facts) -> Facts:
    """Sequence parallelism: by heads of keys over as many ranks as divide them, around a ring over the others."""
    ranks = settings.get(_CHUNKS) or 1
    if ranks == 1:
        return {}
    spec = known_model(facts.get("model_name", ""))
    if spec is None or not spec.attentions:
        return {"cp": ranks, "cp_algorithm": "ulysses"} | noted(
            facts, f"{_CHUNKS} {ranks} is taken to divide the key heads of the model: Ulysses, no ring")  # fmt: skip
    heads = max(attention.kv_heads for attention in spec.attentions)
    by_heads = gcd(heads, ranks)
    if by_heads < ranks and not any(settings.get(name) for name in _WITHOUT_PADDING):
        raise InputError(f"{_CHUNKS} {ranks} of {heads} key heads: a ring of {ranks // by_heads} takes no padding",
                         hint="`padding_free: true`")  # fmt: skip
    if 1 < by_heads < ranks:
        raise NoCounterpartError(f"{_CHUNKS} {ranks} of {heads} key heads: {by_heads} by heads and a ring of "
                                 f"{ranks // by_heads}, which no plan has")  # fmt: skip
    return {"cp": ranks, "cp_algorithm": "ulysses" if by_heads == ranks else "ring"}


def _trained(settings: Settings, facts: Facts) -> Facts:
    """`lora` (the default) or `full`."""
    kind = settings.get("tuner_type") or settings.get("train_type") or "lora"
    bits, method = settings.get("quant_bits"), settings.get("quant_method")
    if method is not None and (bits not in (4, 8) or method != "bnb"):
        text = f"quant_bits {bits} of quant_method {method} has no counterpart in a plan"
        raise NoCounterpartError(text, hint="known: 4, 8 of bnb")
    if kind not in ("full", "lora"):
        raise NoCounterpartError(f"tuner_type `{kind}` has no counterpart in a plan", hint="known: full, lora")
    if kind == "full":
        if method is not None:
            raise InputError(f"quant_method {method}: weights of few bits do not learn", hint="`tuner_type: lora`")
        return {}
    targets = ["all-linear"] if (named := settings.get("target_modules")) is None else named
    if method is None and _dtype(settings) == "float32":
        raise NoCounterpartError("torch_dtype float32: no plan has frozen weights in fp32")
    base = family.base_dtype(method and bits == 4, method and bits == 8)
    words = {"all-linear": adapter_choices.OF_LANGUAGE}
    return family.adapters(settings.get("lora_rank", 8), "target_modules", targets, base, words, mixed=True)


def _unquantised(settings: Settings, facts: Facts) -> Facts:
    """quant_args.py, get_quantization_config: without quant_method there is none."""
    if settings.get("quant_bits") is None or settings.get("quant_method") is not None:
        return {}
    return noted(facts, "quant_bits is without quant_method: swift loads the weights as they are")


def _dtype(settings: Settings) -> str | None:
    """The data type of the weights; None: that of the model's config, which is taken to be bfloat16."""
    return str(given).removeprefix("torch.") if (given := settings.get("torch_dtype")) is not None else None


def precision(settings: Settings, facts: Facts) -> Facts:
    """model_args.py, _init_mixed_precision: what bf16 and fp16 leave open follows torch_dtype."""
    dtype = _dtype(settings)
    if dtype not in (None, *_DTYPES):
        raise InputError(f"torch_dtype `{dtype}` is none of {', '.join(_DTYPES)}")
    low = dtype in ("float16", "float32")
    fp16, bf16 = (default if (given := settings.get(name)) is None else given is True
                  for name, default in (("fp16", low), ("bf16", not low)))  # fmt: skip
    if fp16 and bf16:
        raise InputError(f"fp16 and bf16 are both on: torch_dtype {dtype or 'bfloat16'} turns on one of them",
                         hint="turn one off")  # fmt: skip
    if fp16 or bf16:
        return {"precision": "fp16" if fp16 else "bf16"}
    return {"precision": {"float32": "fp32", "float16": "fp16"}.get(str(dtype), "bf16")}


def head(settings: Settings, facts: Facts) -> Facts:
    kind = settings.get("task_type") or "causal_lm"
    if kind != "causal_lm":
        raise NoCounterpartError(f"task_type `{kind}`: another head than that of the vocabulary")
    return {}


def frozen(settings: Settings, facts: Facts) -> Facts:
    """Towers are frozen unless swift is asked otherwise; texts are priced without them."""
    for name in ("freeze_vit", "freeze_aligner"):
        if settings.get(name) is False:
            raise NoCounterpartError(f"{name} false: a tower learns, and its images are not stated")
    frozen = settings.get("freeze_parameters") or []
    others = [str(name) for name in frozen if not TOWERS.search(str(name))]
    if isinstance(frozen, str) or others:
        raise NoCounterpartError(f"freeze_parameters: no plan freezes {', '.join(others) or frozen}")
    return noted(facts, "towers are frozen: text is priced, without them") if frozen else {}


READER = Reader(
    name="swift",
    framework="ms-swift",
    version="4.6",
    commit="3602360a",
    kinds={
        **family.SHARDING_KINDS, accelerator_block.OPTION: "any", **dict.fromkeys(_IN_DEEPSPEED, "int"),
        "model": "str", "max_length": "int", "packing": "bool", "padding_free": "bool", _CHUNKS: "int",
        "tuner_type": "str", "train_type": "str", "lora_rank": "int", "target_modules": "any", "quant_bits": "int",
        "quant_method": "str", "per_device_train_batch_size": "int", _STEPS: "int", "gradient_checkpointing": "bool",
        "bf16": "any", "fp16": "any", "torch_dtype": "str", "optim": "str", "attn_impl": "any",
        "global_world_size": "int", "freeze_parameters": "any", "freeze_vit": "bool", "freeze_aligner": "bool",
        "task_type": "str", "packing_length": "int", "rlhf_type": "str", preferences.LEARNS: "any",
    },
    entries=(
        family.PLAIN,
        family.sharding(),
        accelerator_block.synchronisation(),
        value("num_gpus", "global_world_size"),
        value("model_name", "model"),
        reads(("cp", "cp_algorithm"), (_CHUNKS,), _chunks),
        family.length("max_length", _WITHOUT_PADDING),
        family.batch(default=1),
        reads(("precision",), ("torch_dtype", "bf16", "fp16"), precision),
        family.recompute(default=True),
        family.optimizer(),
        family.kernels("attn_impl"),
        reads(("workload.lora",), _LORA, _trained),
        reads((), ("quant_bits",), _unquantised),
        reads((), (*_IN_DEEPSPEED, "packing_length"), lambda settings, facts: {}), reads((), ("task_type",), head),
        reads((), _FREEZES, frozen),
        preferences.entry(),
        family.weights(_dtype),
    ),
    reading=Reading(
        changes={
            **family.CHANGES,
            r"rlhf_type|ref_model.*|reward_(model|funcs).*|teacher_model.*|loss_type|use_vllm":
                "preferences or rewards: passes beside those of a training step",
            r"num_labels|problem_type": "another head than that of the vocabulary",
            r"use_galore|lisa_activated_layers|optimizer|optim_target_modules":
                "an optimizer whose states have another size",
            r"freeze_llm|freeze_parameters_(ratio|regex)|trainable_parameters(_regex)?|target_(regex|parameters)|"
            r"modules_to_save|use_dora|llamapro_num_groups|use_swift_lora": "another part of the model that learns",
            r"device_map|max_memory|use_ray|device_groups": "layers or jobs put on devices by its own rules",
            r"local_repo_path|external_plugins|custom_register_path|model_kwargs(\..*)?|num_new_tokens|"
            r"new_special_tokens": "another model or trainer than its own",
            r"auto_find_batch_size": "a batch that follows the memory",
            r"parallelism_config(\..*)?": "degrees in another block: give them in the accelerate file",
        },
        harmless=(
            family.FSDP_HARMLESS
            + r"|^(acc_strategy|adalora|adapter|adam|add_(non_thinking|version)|boft|bnb_4bit|callbacks|check_model|"
            r"dataloader|dataset|ddp|download|ds3_gather|early|eval|fourier|galore|generation|gradient_checkpointing_kwargs|"
            r"group_by|hqq|hub|include|init|label|lazy|liger|lisa_step|llamapro_num_new|local_world_size|log|lora|lorap|"
            r"loss_scale|lr|max_(epochs|grad_norm|model_len|new_tokens|pixels|shard_size|steps)|"
            r"model_(author|dir|info|meta|name|revision|suffix|type)|num_(beams|train_epochs)|optim_args|"
            r"packing_(num_proc|strategy)|padding_side|per_device_eval|reft|remove_unused|safe_serialization|save|"
            r"stopping_strategy|swanlab|swift|system|template|trackio|training_args|use_hf|truncation_strategy|tuner_backend|vera|"
            r"vit_(lr|gradient_checkpointing)|columns|decision|disable_(auto_column_mapping|ignore_empty_think)|interleave_prob|"
            r"(enable|preserve)_thinking|ignore_args_error|norm_bbox|response_prefix|stop_words|stream|streaming|strict|"
            r"structured_outputs|temperature|top_[pk]|top_logprobs|repetition_penalty|use_logits_to_keep|use_rslora|"
            r"rope_scaling)(_|\.|$)"
        ),
        modernise=_modernise),
    prepared=_prepared,
    beside=_beside,
    document=commands.from_command("swift sft", _COMMAND, family.loaded),
    commands=True,
    compared=family.compared,
)  # fmt: skip
