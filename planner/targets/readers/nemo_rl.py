"""The training part of NeMo-RL's configs: SFT, and the policy of GRPO, on its DTensor worker (FSDP2) or Megatron-Core.

Source: NeMo-RL 7ea279ab (0.6.0): examples/configs/sft.yaml and grpo_math_1B.yaml (names, defaults),
nemo_rl/models/policy/lm_policy.py (choice of the worker), nemo_rl/models/policy/workers/dtensor_policy_worker.py (FSDP2
over all ranks that tp and cp leave, dynamic batches and packing), nemo_rl/models/megatron/setup.py (recomputation).
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import replace

from ....errors import InputError
from ....profiles.io.document import Document
from .. import adapter_choices, cpu_offload
from ..adapters import LORA, facts_of_core, facts_of_model
from ..argv import Arguments
from ..import_format import Compared, on_stack
from ..model_names import known_model
from ..nemo_rl.read import merged
from ..nemo_rl.trainer import RECOMPUTE
from ..option_lists import OptionList
from ..options import Facts, NoCounterpartError, Settings
from ..reading import Reading
from . import preferences
from . import transformers_family as family
from .interpolation import resolved
from .reader import Reader, noted, precision_by, reads, states, value, whole_micro_batch

_POLICY = "policy."
_CORE, _DTENSOR = f"{_POLICY}megatron_cfg.", f"{_POLICY}dtensor_cfg."
_ON = (f"{_CORE}enabled", f"{_DTENSOR}enabled")
_OF_CORE = {"tp": "tensor_model_parallel_size", "pp": "pipeline_model_parallel_size", "cp": "context_parallel_size",
            "ep": "expert_model_parallel_size", "etp": "expert_tensor_parallel_size"}  # fmt: skip
_OF_DTENSOR = {"tp": "tensor_parallel_size", "cp": "context_parallel_size", "ep": "expert_parallel_size"}
_NAMES = tuple([*(f"{_CORE}{name}" for name in _OF_CORE.values()),
                *(f"{_DTENSOR}{name}" for name in _OF_DTENSOR.values())])  # fmt: skip
_FLAGS = tuple(f"{block}{name}" for block in (_CORE, _DTENSOR)
               for name in ("sequence_parallel", "activation_checkpointing"))  # fmt: skip
_GRANULARITY, _HOST = f"{_CORE}recompute_granularity", f"{_DTENSOR}cpu_offload"
_PEFT, _LORA_CFG = f"{_CORE}peft.", f"{_DTENSOR}lora_cfg."
_ADAPTERS = tuple(f"{block}{name}" for block in (_PEFT, _LORA_CFG)
                  for name in ("enabled", "dim", "target_modules", "exclude_modules"))  # fmt: skip
_ALL = f"{_LORA_CFG}match_all_linear"
# Names of the head in patterns of modules.
_HEADS = {"lm_head", "output_layer"}
# Blocks that say nothing where they are off.
_SWITCHED = (f"{_POLICY}draft", f"{_POLICY}reward_model_cfg", f"{_CORE}fp8_cfg")
_UNEVEN = (f"{_CORE}num_layers_in_first_pipeline_stage", f"{_CORE}num_layers_in_last_pipeline_stage")
_MICRO, _BATCH = f"{_POLICY}train_micro_batch_size", f"{_POLICY}train_global_batch_size"
_LENGTH, _DTYPE = f"{_POLICY}max_total_sequence_length", f"{_POLICY}precision"
_BY_TOKENS = {name: (f"{_POLICY}{name}.enabled", f"{_POLICY}{name}.train_mb_tokens")
              for name in ("dynamic_batching", "sequence_packing")}  # fmt: skip
_TOKENS = tuple(option for pair in _BY_TOKENS.values() for option in pair)
_OPTIMIZER, _OF_CORES = f"{_POLICY}optimizer.name", f"{_CORE}optimizer.optimizer"
_GPUS = ("cluster.num_nodes", "cluster.gpus_per_node")
_COLOCATED = f"{_POLICY}generation.colocated.enabled"
_OPTIMIZERS = {"adamw": "adamw", "adam": "adamw", "sgd": "sgd"}


def _layout(settings: Settings, facts: Facts) -> Facts:
    """Degrees and recomputation of the worker that is switched on."""
    core, dtensor = (settings.get(name, False) for name in _ON)
    if core == dtensor:
        raise NoCounterpartError(f"{_ON[1]}: {'both workers are' if core else 'no worker is'} switched on",
                                 hint=f"one of {' and '.join(_ON)} is true")  # fmt: skip
    block, names = (_CORE, _OF_CORE) if core else (_DTENSOR, _OF_DTENSOR)
    out: Facts = {name: settings.get(f"{block}{option}", 1) for name, option in names.items()}
    if not core and out["ep"] > 1:
        raise NoCounterpartError(f"{_DTENSOR}expert_parallel_size: experts over the ranks of Automodel")
    full = bool(settings.get(f"{block}activation_checkpointing"))
    granularity = str(settings.get(_GRANULARITY, "full")) if core else "full"
    if full and granularity not in RECOMPUTE:
        raise NoCounterpartError(f"{_GRANULARITY} `{granularity}` has no counterpart in a plan")
    mode = {"mode": "full"} if granularity == "full" else {"mode": "selective", "modules": ["act"]}
    host = cpu_offload.of_stage(3, "fsdp") if not core and settings.get(_HOST) else {}
    return {"pp": 1, "etp": 1, **out, **({"cp_algorithm": "allgather"} if out["cp"] > 1 else {}), **host,
            "zero": 1 if core else 3, "recompute": mode if full else {"mode": "none"},
            "sequence_parallel": out["tp"] > 1 and bool(settings.get(f"{block}sequence_parallel"))}  # fmt: skip


def _uneven(settings: Settings, facts: Facts) -> Facts:
    if given := next((name for name in _UNEVEN if settings.get(name)), ""):
        raise NoCounterpartError(f"{given}: stages of unlike numbers of layers are not read")
    return {}


def _named(pattern: str) -> str:
    """The name of a module where a pattern picks it in every layer, as `*.linear_qkv` does; else the pattern."""
    before, _, last = pattern.rpartition("*")
    return last.rpartition(".")[2] if not before.strip("*.") and pattern != "*_proj" else pattern


def _lora(settings: Settings, facts: Facts) -> Facts:
    """The adapters of the worker that trains: of Megatron-Bridge, or of Automodel."""
    core = bool(settings.get(_ON[0]))
    block = _PEFT if core else _LORA_CFG
    if not settings.get(f"{block}enabled"):
        return {}
    option, excludes = f"{block}target_modules", f"{block}exclude_modules"
    modules = [_named(str(name)) for name in settings.get(option) or ()]
    without = {str(name).strip("*.") for name in settings.get(excludes) or ()}
    every = not core and settings.get(_ALL, False)
    if (modules and without) or (every and (modules or without)):
        raise InputError(f"{option if modules else excludes}: goes with neither {excludes if modules else _ALL} nor "
                         "further choices of modules", hint="keep one of them")  # fmt: skip
    if without - _HEADS:
        raise NoCounterpartError(f"{excludes}: all linear modules but {', '.join(sorted(without))}",
                                 hint=f"name those that learn: {option}")  # fmt: skip
    if modules == ["*_proj"] or not (core or modules or without or every):  # the default of Automodel
        modules, words = [""], {"": adapter_choices.BY_NAME}
    elif core:
        words = {"": adapter_choices.OF_CORE if without else adapter_choices.CORE_WITH_HEAD}
    else:
        words = {"": adapter_choices.BY_NAME if without else adapter_choices.WITH_HEAD}
    if not core or not modules:
        return family.adapters(settings.get(f"{block}dim", 8), option, modules or [""], "bf16", words)
    spec = known_model(str(settings.get(f"{_POLICY}model_name", "")))
    known = {**facts, **(facts_of_model(spec) if spec is not None else {})}
    return facts_of_core(settings.get(f"{block}dim", 8), option, modules, known)


def _batch(settings: Settings, facts: Facts) -> Facts:
    """Sequences of an optimizer step, and of a micro-batch, which tokens may limit."""
    batch, micro = settings.get(_BATCH, 32), settings.get(_MICRO, 1)
    used = next((name for name, (on, _) in _BY_TOKENS.items() if settings.get(on)), "")
    if used and preferences.LEARNS in settings:
        raise NoCounterpartError(f"{_BY_TOKENS[used][0]}: pairs in micro-batches of so many tokens")
    if not used:
        return {"micro_batch": micro, "workload.global_batch": batch}
    length = facts["workload.seq_len"]
    tokens = settings.get(_BY_TOKENS[used][1]) or length * micro
    copies = settings.get(_GPUS[0], 1) * settings.get(_GPUS[1], 1) // (facts["tp"] * facts["cp"] * facts["pp"])
    size = whole_micro_batch(tokens // max(length, 1), batch, copies)
    told = f"{used}: {tokens} tokens are priced as {size} sequences of {length}"
    return {"micro_batch": size, "workload.global_batch": batch} | noted(facts, told)


def _reference(settings: Settings, facts: Facts) -> Facts:
    """The place of the frozen reference of DPO: a copy on the host, which takes the place of the weights that learn
    (use_reference_model)."""
    if settings.get(preferences.LEARNS) != preferences.COMPARED:
        return {}
    if facts["pp"] > 1:
        raise NoCounterpartError(f"{_CORE}pipeline_model_parallel_size: no plan has a reference in a pipeline")
    if LORA in facts:
        return {}
    return noted(facts, "the reference is on the host and changes places with the model in every step: it is priced on "
                        "the GPU, without the change")  # fmt: skip


def _optimizer(settings: Settings, facts: Facts) -> Facts:
    option = _OF_CORES if facts["zero"] == 1 else _OPTIMIZER
    name = str(settings.get(option, "adamw")).rpartition(".")[2].lower()
    if name not in _OPTIMIZERS:
        raise NoCounterpartError(f"{option} `{name}` has no counterpart in a plan")
    return {"workload.optimizer": _OPTIMIZERS[name]}


def _without_off(document: Document) -> Document:
    """The document without blocks that are switched off."""
    data = copy.deepcopy(document.data)
    for name in _SWITCHED:
        *above, last = path = tuple(name.split("."))
        if document.at((*path, "enabled")) is False:
            holder = data
            for block in above:
                holder = holder[block]
            del holder[last]
    return replace(document, data=data)


def _prepared(document: Document, arguments: Arguments) -> Document:
    """The document without references, and what of the config is not read."""
    found, open_texts = resolved(_without_off(document))
    for path, text in open_texts.items():
        arguments.doubt(".".join(path), f"`{text}` is set when it runs", document.line(path), document.file(path),
                        "give its value: --arg OPTION=VALUE")  # fmt: skip
    if found.at(("grpo",)):
        arguments.notes.append("not read: generation, reference and rewards (`--output N` compares all of it)")
        if found.at(tuple(_COLOCATED.split(".")), True) is False:
            arguments.gap(_COLOCATED, "its engine has GPUs of its own: `--output N` compares the whole step")
    ranks = {name: found.at(("cluster", name)) for name in ("num_nodes", "gpus_per_node")}
    arguments.ranks |= {name: count for name, count in ranks.items() if isinstance(count, int) and count > 0}
    return found


def _compared(facts: Facts) -> Compared:
    """Layouts of Megatron-Core; those of FSDP2 with the same ranks of a sequence."""
    pairs = preferences.fixed(facts)
    if facts["zero"] == 1:
        return Compared("any", {**on_stack("megatron-core").fields, **({"fix": pairs} if pairs else {})})
    return Compared("any", {"fix": {"pp": 1, "ep": 1, "cp": facts["cp"], **pairs}, "stack": "torchtitan"})


READER = Reader(
    name="nemo-rl",
    framework="NeMo-RL",
    version="0.6.0",
    commit="7ea279ab",
    kinds={**dict.fromkeys((*_NAMES, _MICRO, _BATCH, _LENGTH, *_GPUS, *_UNEVEN), "int"),
           **dict.fromkeys((*_FLAGS, *_ON, f"{_PEFT}enabled", f"{_LORA_CFG}enabled", _ALL, _HOST,
                            *(on for on, _ in _BY_TOKENS.values())), "bool"),
           **dict.fromkeys((f"{_PEFT}dim", f"{_LORA_CFG}dim"), "int"),
           **dict.fromkeys((f"{block}{names}_modules" for block in (_PEFT, _LORA_CFG) for names in
                            ("target", "exclude")), "any"), preferences.LEARNS: "any",
           **dict.fromkeys((tokens for _, tokens in _BY_TOKENS.values()), "int"),
           **dict.fromkeys((_GRANULARITY, _DTYPE, _OPTIMIZER, _OF_CORES, f"{_POLICY}model_name"), "str")},
    entries=(
        states(vpp=1, schedule="1f1b"),
        value("model_name", f"{_POLICY}model_name"),
        reads(("tp", "pp", "cp", "ep", "etp", "zero", "sequence_parallel", "recompute", "offload"),
              (*_ON, *_NAMES, *_FLAGS, _GRANULARITY, _HOST), _layout),
        reads(("stages",), _UNEVEN, _uneven),
        reads((LORA,), (*_ADAPTERS, _ALL), _lora),
        value("workload.seq_len", _LENGTH, 512),
        reads(("micro_batch", "workload.global_batch"), (_MICRO, _BATCH, *_TOKENS), _batch),
        preferences.entry(),
        reads((), (f"{_CORE}pipeline_model_parallel_size", preferences.LEARNS), _reference),
        precision_by(_DTYPE),
        reads(("workload.optimizer",), (_OPTIMIZER, _OF_CORES), _optimizer),
        reads(("num_gpus",), _GPUS, lambda settings, facts: {}),
    ),
    reading=Reading(
        changes={
            r"(distillation|teacher)(\..*)?": "a teacher beside the model that learns",
            rf"{_POLICY}(draft|reward_model_cfg)(\..*)?": "another model beside the policy",
            rf"{_CORE}fp8_cfg(\..*)?": "training in fp8",
        },
        harmless=(r"^(sft|grpo|reward_\w+|data|env|loss_fn|checkpointing|logger|cluster|defaults|policy\.(tokenizer|generation|"
                  r"scheduler|optimizer|make_sequence|max_grad|logprob|offload_optimizer|refit|hf_config|dynamic_batching|"
                  r"sequence_packing|megatron_cfg\.(?!fp8)|dtensor_cfg\.))"),
        modernise=preferences.of_nemo,
    ),
    prepared=_prepared,
    compared=_compared,
)  # fmt: skip


def _read(files: Mapping[str, str], options: OptionList, given: Sequence[str]) -> Arguments:
    """The settings of files, each the child of the next, and of the parents that they name."""
    whole = merged(files)
    reader = replace(READER, document=lambda path, text, words: whole)
    return reader.format.read({whole.name: ""}, options, given)


FORMAT = replace(READER.format, read=_read)
