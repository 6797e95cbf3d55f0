"""Plan <-> options of accelerate's YAML and of TrainingArguments, and the rules on combinations of options."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from ....cost_models.layouts import CP_ALGORITHMS
from .. import cpu_offload
from ..options import Entry, Facts, NoCounterpartError, Settings, Table, always, number, positive, word
from ..setup import Setup
from ..switch_options import entries_of
from .older_names import FILE, PLUGIN

_P = "parallelism_config.parallelism_config_"
_F = "fsdp_config.fsdp_"
# Prefix of the options that the YAML cannot hold: fields of TrainingArguments.
ARGUMENTS = "training_arguments."
# Strategy of FSDP1 by name and number -> (stage, whether it shards within a node and replicates over nodes).
_STRATEGIES = {
    "FULL_SHARD": (3, False), "1": (3, False), "SHARD_GRAD_OP": (2, False), "2": (2, False),
    "NO_SHARD": (0, False), "3": (0, False), "HYBRID_SHARD": (3, True), "4": (3, True),
    "HYBRID_SHARD_ZERO2": (2, True), "5": (2, True),
}  # fmt: skip
# Facts of the batch.
_BATCH = ("micro_batch", "workload.global_batch", "batch_per_rank", "dp_by_batch", "accumulation")
_TYPES = ("NO", "MULTI_GPU", "FSDP", "DEEPSPEED", "MEGATRON_LM", "MULTI_CPU", "XLA", "TP")
OPTIMIZERS = {"adamw": "adamw_torch_fused", "adamw-8bit": "adamw_8bit", "sgd": "sgd"}


def _shards_write(setup: Setup) -> Settings:
    layout = setup.layout
    if not layout.zero:
        return {"distributed_type": "MULTI_GPU" if layout.num_gpus > 1 else "NO"}
    return {
        "distributed_type": "FSDP", f"{_F}version": 2, f"{_F}reshard_after_forward": layout.zero == 3,
        f"{_F}auto_wrap_policy": "TRANSFORMER_BASED_WRAP", f"{_F}state_dict_type": "SHARDED_STATE_DICT",
        f"{_P}dp_replicate_size": layout.dp // layout.shard, f"{_P}dp_shard_size": layout.shard,
    }  # fmt: skip


def _shards_read(settings: Settings, facts: Facts) -> Facts:
    if of_json := _of_json(settings):
        return {name: value for name, value in of_json.items() if name not in _BATCH}
    if settings.get("distributed_type") == "DEEPSPEED":
        optimizer, weights = (str(settings.get(f"{PLUGIN}offload_{name}_device", "none")).lower() == "cpu"
                              for name in ("optimizer", "param"))
        host: Facts = {"offload": "opt"} if optimizer else {"offload": "none"}
        if weights:
            host = cpu_offload.ON_HOST if optimizer else cpu_offload.WEIGHTS_ON_HOST
        return {"zero": int(settings.get(f"{PLUGIN}zero_stage", 0)), **host}
    if settings.get("distributed_type") != "FSDP":
        return {"zero": 0}
    reshard = settings.get(f"{_F}reshard_after_forward", True)
    if settings.get(f"{_F}version", 1) == 1:  # FSDP1 has a named strategy
        strategy = str(settings.get(f"{_F}sharding_strategy", "FULL_SHARD")).upper()
        if strategy not in _STRATEGIES:
            known = ", ".join(_STRATEGIES)
            raise NoCounterpartError(f"{_F}sharding_strategy `{strategy}` has no counterpart in a plan", hint=known)
        zero, hybrid = _STRATEGIES[strategy]
        return {"zero": zero} | ({"replicas": int(settings.get("num_machines", 1))} if hybrid else {})
    out: Facts = {"zero": 3 if reshard in (True, "true", "True") else 2}
    replicas, shard = settings.get(f"{_P}dp_replicate_size", 1), settings.get(f"{_P}dp_shard_size")
    return out | {"replicas": replicas} | ({} if shard is None else {"dp": replicas * shard})


def _context_write(setup: Setup) -> Settings:
    if setup.layout.cp == 1:
        return {}
    strategy = {"allgather": "allgather", "ring": "alltoall"}[CP_ALGORITHMS[setup.layout.cp_algorithm]]
    return {f"{_P}cp_size": setup.layout.cp, f"{_P}cp_backend": "torch", f"{_P}cp_comm_strategy": strategy}


def _context_read(settings: Settings, facts: Facts) -> Facts:
    if (heads := settings.get(f"{_P}sp_size", 1)) > 1:
        return {"cp": heads, "cp_algorithm": "ulysses"}
    size = settings.get(f"{_P}cp_size", 1)
    strategy = settings.get(f"{_P}cp_comm_strategy", "allgather")
    return {"cp": size} | ({"cp_algorithm": "ring" if strategy == "alltoall" else "allgather"} if size > 1 else {})


def _recompute_write(setup: Setup) -> Settings:
    if setup.recompute == "none":
        return {}
    option = f"{_F}activation_checkpointing" if setup.layout.zero else f"{ARGUMENTS}gradient_checkpointing"
    return {option: True}


def _recompute_read(settings: Settings, facts: Facts) -> Facts:
    full = settings.get(f"{_F}activation_checkpointing") or settings.get(f"{ARGUMENTS}gradient_checkpointing")
    return {"recompute": {"mode": "full" if full in (True, "true", "True") else "none"}}


def _batch_write(setup: Setup) -> Settings:
    return {f"{ARGUMENTS}per_device_train_batch_size": setup.layout.micro_batch,
            f"{ARGUMENTS}gradient_accumulation_steps": setup.num_micro_batches}  # fmt: skip


def _of_json(settings: Settings) -> Facts:
    """The facts of the DeepSpeed JSON beside the file, {} without one."""
    facts = settings.get(FILE)
    return facts if isinstance(facts, dict) else {}


def _batch_read(settings: Settings, facts: Facts) -> Facts:
    if of_json := {name: value for name, value in _of_json(settings).items() if name in _BATCH}:
        return of_json
    size = settings.get(f"{ARGUMENTS}per_device_train_batch_size")
    steps = settings.get(f"{ARGUMENTS}gradient_accumulation_steps",
                         settings.get(f"{PLUGIN}gradient_accumulation_steps"))  # fmt: skip
    positive(settings, f"{PLUGIN}gradient_accumulation_steps")
    if size is None:
        return {} if steps is None else {"accumulation": steps}
    return {"micro_batch": size, "batch_per_rank": size * (steps or 1)}


def _whole(field: str, value: Any) -> Entry:
    """A field that accelerate has no option for."""
    return Entry((field,), (), lambda setup: {}, lambda given, facts: {field: value})


SHARDS = Entry(
    ("zero", "shard", "dp"),
    ("distributed_type", *(_F + name for name in ("version", "reshard_after_forward", "auto_wrap_policy",
     "state_dict_type", "sharding_strategy")), f"{_P}dp_replicate_size", f"{_P}dp_shard_size",
     *(PLUGIN + name for name in ("zero_stage", "offload_optimizer_device", "offload_param_device")), FILE),
    _shards_write, _shards_read,
)  # fmt: skip
TABLE = Table((
    always(("compute_environment", "LOCAL_MACHINE"), ("main_training_function", "main"), ("rdzv_backend", "static")),
    number("num_gpus", "num_processes", lambda s: s.layout.num_gpus),
    number("num_nodes", "num_machines", lambda s: s.num_nodes),
    word("precision", "mixed_precision", lambda s: s.precision, {"bf16": "bf16", "fp16": "fp16", "fp32": "no"},
         also={"fp8": "fp8"}),
    Entry(("precision",), tuple(f"{ARGUMENTS}{name}" for name in ("bf16", "fp16")),
          lambda s: {f"{ARGUMENTS}{s.precision}": True} if s.precision in ("bf16", "fp16") else {},
          lambda given, facts: {}),
    number("tp", f"{_P}tp_size", lambda s: s.layout.tp, 1),
    Entry(("cp", "cp_algorithm"),
          tuple(_P + name for name in ("cp_size", "cp_backend", "cp_comm_strategy", "sp_size")),
          _context_write, _context_read),
    SHARDS,
    Entry(("recompute", "recompute_modules", "recompute_layers"),
          (f"{_F}activation_checkpointing", f"{ARGUMENTS}gradient_checkpointing"), _recompute_write, _recompute_read),
    Entry(("micro_batch", "workload.global_batch"),
          (f"{ARGUMENTS}per_device_train_batch_size", f"{ARGUMENTS}gradient_accumulation_steps"),
          _batch_write, _batch_read),
    word("workload.optimizer", f"{ARGUMENTS}optim", lambda s: s.workload.optimizer, OPTIMIZERS,
         also={"adamw_torch": "adamw", "adamw_bnb_8bit": "adamw-8bit"}),
    _whole("pp", 1), _whole("vpp", 1), _whole("schedule", "1f1b"), _whole("ep", 1), _whole("etp", 1),
    _whole("sequence_parallel", False),
    cpu_offload.entry(f"{_F}offload_params"),
    *entries_of("accelerate"),
))  # fmt: skip


def conflicts(settings: Settings, environment: Mapping[str, str]) -> list[tuple[str, str]]:
    """Rules that accelerate's loader does not check."""
    out = []
    sizes = {name: settings.get(f"{_P}{name}_size", 1) for name in ("dp_replicate", "dp_shard", "tp", "cp", "sp")}
    product, ranks = math.prod(sizes.values()), settings.get("num_processes")
    fsdp = settings.get("distributed_type") == "FSDP"
    if any(name.startswith(_P) for name in settings):
        spelled = " x ".join(f"{name} {size}" for name, size in sizes.items() if size != 1) or "1"
        if ranks is not None and product != ranks:
            out.append(("num_processes", f"{spelled} = {product}, but num_processes is {ranks}"))
        if not fsdp or settings.get(f"{_F}version", 1) != 2:
            out.append(("distributed_type", "parallelism_config needs distributed_type FSDP and fsdp_version 2"))
    if sizes["cp"] > 1 and sizes["sp"] > 1:
        out.append((f"{_P}sp_size", "context (cp) and sequence parallelism (sp) exclude one another"))
    if fsdp and sizes["tp"] > 1 and sizes["dp_shard"] * sizes["cp"] == 1:
        out.append((f"{_P}tp_size", "tp alone crashes FSDP2: dp_shard_size or cp_size must be above 1"))
    bad = [name for name, size in sizes.items() if size < 1]
    out += [(f"{_P}{name}_size", f"`{sizes[name]}` is not 1 or more") for name in bad]
    if (given := settings.get("distributed_type")) not in (None, *_TYPES):
        out.append(("distributed_type", f"`{given}` is none of {', '.join(_TYPES)}"))
    return out
