"""Plan <-> options of Axolotl's YAML, which has its own names for options of accelerate and of the Trainer.

Axolotl 0.19.0, utils/schemas/config.py, fsdp.py, model.py, peft.py and training.py; loaders/model.py (how weights are
loaded and quantised), utils/trainer.py (what it sets for accelerate).
"""

from __future__ import annotations

from dataclasses import replace

from .. import adapters
from ..accelerate.options import ARGUMENTS, OPTIMIZERS, SHARDS
from ..accelerate.options import TABLE as ACCELERATE
from ..accelerate.recipes import CHECKPOINTING, of_recipe
from ..options import Entry, Facts, NoCounterpartError, Settings, Table, number, renamed
from ..setup import Setup

_P = "parallelism_config.parallelism_config_"
# Option of accelerate or of TrainingArguments -> that of Axolotl.
_NAMES = {
    "fsdp_config.fsdp_version": "fsdp_version",
    **{f"fsdp_config.fsdp_{name}": f"fsdp_config.{name}" for name in ("reshard_after_forward", "auto_wrap_policy",
       "state_dict_type")},
    f"{_P}dp_replicate_size": "dp_replicate_size", f"{_P}dp_shard_size": "dp_shard_size",
    f"{_P}tp_size": "tensor_parallel_size",
    f"{ARGUMENTS}per_device_train_batch_size": "micro_batch_size",
    f"{ARGUMENTS}gradient_accumulation_steps": "gradient_accumulation_steps",
}  # fmt: skip
_SHARDS = renamed(SHARDS, _NAMES)
_CHECKPOINTING = ("gradient_checkpointing", "gradient_checkpointing_kwargs", "fsdp_config.activation_checkpointing")
_HALVES = ("bf16", "fp16")
_PACKING = ("sample_packing", "attn_implementation")
_LORA = ("adapter", "lora_r", "lora_dropout", "lora_target_modules", "lora_target_linear", "load_in_4bit",
         "load_in_8bit")  # fmt: skip


def _shards_read(settings: Settings, facts: Facts) -> Facts:
    """Sharding. A version or a block of FSDP enables it (prepare_optim_env)."""
    there = any(name == "fsdp_version" or name.startswith("fsdp_config.") for name in settings)
    known = {name: settings[ours] for name, ours in _NAMES.items() if ours in settings}
    return SHARDS.read({**known, "distributed_type": "FSDP"} if there else known, facts)


def _recompute_write(setup: Setup) -> Settings:
    """Recomputation. A reentrant one does not stop early, as plans assume."""
    full = setup.recompute == "full"
    return {"gradient_checkpointing": full} | ({_CHECKPOINTING[1]: {"use_reentrant": False}} if full else {})


def _recompute_read(settings: Settings, facts: Facts) -> Facts:
    full = settings.get(_CHECKPOINTING[0])
    if full not in (None, True, False):
        raise NoCounterpartError(f"{_CHECKPOINTING[0]} `{full}` has no counterpart in a plan")
    return {"recompute": {"mode": "full" if full or settings.get(_CHECKPOINTING[2]) else "none"}}


def _precision_read(settings: Settings, facts: Facts) -> Facts:
    halves = [name for name in _HALVES if settings.get(name)]
    if len(halves) > 1:
        raise NoCounterpartError("bf16 and fp16 are both on", hint="keep one")
    return {"precision": halves[0] if halves else "fp32"}


def _optimizer_write(setup: Setup) -> Settings:
    """The optimizer. FSDP2 shards 8-bit states of torchao, not of bitsandbytes (check_fsdp2_w_8bit_optimizer)."""
    if setup.workload.optimizer == "adamw-8bit" and setup.layout.zero:
        return {"optimizer": "adamw_torch_8bit"}
    return {"optimizer": OPTIMIZERS[setup.workload.optimizer]}


def _optimizer_read(settings: Settings, facts: Facts) -> Facts:
    meaning = {value: name for name, value in OPTIMIZERS.items()} | {"adamw_torch": "adamw"}
    meaning |= dict.fromkeys(("adamw_torch_8bit", "adamw_bnb_8bit"), "adamw-8bit")
    given = settings.get("optimizer", "adamw_torch_fused")
    if given not in meaning:
        known = ", ".join(meaning)
        raise NoCounterpartError(f"optimizer `{given}` has no counterpart in a plan", hint=f"known: {known}")
    return {"workload.optimizer": meaning[given]}


def _lora_write(setup: Setup) -> Settings:
    """Adapters. `qlora` loads doubly quantised nf4, stored as bf16 for FSDP (loaders/model.py)."""
    lora = setup.workload.lora
    if lora is None:
        return {}
    four = lora.base_dtype == "nf4"
    loaded = {"load_in_4bit": True} if four else {"load_in_8bit": True} if lora.base_dtype == "int8" else {}
    return {"adapter": "qlora" if four else "lora", "lora_r": lora.rank, "lora_dropout": 0.0,
            "lora_target_modules": adapters.modules(setup.model, lora), **loaded}  # fmt: skip


def _lora_read(settings: Settings, facts: Facts) -> Facts:
    if not settings.get("adapter"):
        return {adapters.LORA: None}
    base = "nf4" if settings.get("load_in_4bit") else "int8" if settings.get("load_in_8bit") else "bf16"
    names = settings.get("lora_target_modules") or (["all"] if settings.get("lora_target_linear") else [])
    return adapters.facts(settings.get("lora_r", 0), names if isinstance(names, list) else [names], base)


_OWN = (
    replace(_SHARDS, read=_shards_read),
    Entry(("recompute", "recompute_modules", "recompute_layers"), _CHECKPOINTING, _recompute_write, _recompute_read),
    Entry(("precision",), _HALVES, lambda s: {name: name == s.precision for name in _HALVES}, _precision_read),
    Entry(("workload.optimizer",), ("optimizer",), _optimizer_write, _optimizer_read),
    number("workload.seq_len", "sequence_len", lambda s: s.workload.seq_len),
    Entry(("workload.packed",), _PACKING,
          lambda s: {_PACKING[0]: s.workload.packed, _PACKING[1]: "sdpa"},
          lambda given, facts: {"workload.packed": bool(given.get(_PACKING[0]))}),
    Entry((adapters.LORA,), _LORA, _lora_write, _lora_read),
)  # fmt: skip
# Options of accelerate that the entries above stand for, or that launch.sh states.
_ELSEWHERE = {*SHARDS.options, CHECKPOINTING, "mixed_precision", "num_processes", "num_machines",
              *of_recipe("bf16", "optim")}  # fmt: skip
TABLE = Table((
    *(renamed(entry, _NAMES) for entry in ACCELERATE.entries if not _ELSEWHERE.intersection(entry.options)), *_OWN,
))  # fmt: skip
