"""Plan <-> options of DeepSpeed's JSON and constants of ds_plan.py, and the rules on combinations of options."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ....cost_models.arrays import Ints, Mask
from ....errors import InputError
from ..cpu_offload import FACT
from ..options import Entry, Facts, Settings, Table, number, positive
from ..setup import Setup
from ..switch_options import SWITCH, entries_of
from . import compression, techniques

# Prefix of the options that JSON cannot hold: constants of ds_plan.py, which the script of the user imports.
PYTHON = "ds_plan"
_OVERLAP = "zero_optimization.overlap_comm"
OPTIMIZERS = {"adamw": "AdamW", "sgd": "SGD"}


def pipeline_shards(pp: Ints, dp: Ints, bf16: Mask) -> Mask:
    """[n] whether the states are sharded at stage 0, too: a pipeline in bf16 has BF16_Optimizer at every stage
    (deepspeed/runtime/engine.py, _do_optimizer_sanity_check); without a pipeline every rank has all of them."""
    return np.asarray((pp > 1) & (dp > 1) & bf16)


def _shards_write(setup: Setup) -> Settings:
    zero = setup.layout.zero
    out: Settings = {"zero_optimization.stage": zero}
    if zero:
        out |= {"zero_optimization.contiguous_gradients": True, "zero_optimization.reduce_scatter": True}
    if "opt" in setup.offload:
        out |= {"zero_optimization.offload_optimizer.device": "cpu",
                "zero_optimization.offload_optimizer.pin_memory": True}  # fmt: skip
    return out | techniques.states_write(setup)


def _shards_read(settings: Settings, facts: Facts) -> Facts:
    """The ZeRO stage. Where the number of replicas is not stated, there are several."""
    stage, bf16 = settings.get("zero_optimization.stage", 0), bool(settings.get("bf16.enabled"))
    pp, dp = settings.get(f"{PYTHON}.PIPELINE_STAGES", 1), settings.get(f"{PYTHON}.DATA_PARALLEL", 2)
    shards = pipeline_shards(*map(np.asarray, (pp, dp, bf16)))
    return {"zero": 1 if shards and not stage else stage, **techniques.states_read(settings)}


def _overlap_write(setup: Setup) -> Settings:
    return {_OVERLAP: setup.switches.get("overlap_grad_reduce") == "on"} if setup.layout.zero else {}


def _overlap_read(settings: Settings, facts: Facts) -> Facts:
    """Overlap of communication: on by default in stage 3 (runtime/zero/config.py), without an option outside ZeRO."""
    on, stage = settings.get(_OVERLAP, facts["zero"] == 3), settings.get("zero_optimization.stage", 0)
    return {f"{SWITCH}overlap_grad_reduce": "on" if on else "off"} if stage else {}


def _context_write(setup: Setup) -> Settings:
    if setup.layout.cp == 1:
        return {}
    return {"sequence_parallel_size": setup.layout.cp, "data_parallel_size": setup.layout.dp}


def _context_read(settings: Settings, facts: Facts) -> Facts:
    heads = settings.get("sequence_parallel_size", 1)
    out: Facts = {"cp": heads} | ({"cp_algorithm": "ulysses"} if heads > 1 else {})
    return out | ({"dp": settings["data_parallel_size"]} if "data_parallel_size" in settings else {})


def _experts_write(setup: Setup) -> Settings:
    if setup.layout.ep == 1:
        return {}
    return {"expert_parallel.enabled": True, "expert_parallel.autoep_size": setup.layout.ep}


def _experts_read(settings: Settings, facts: Facts) -> Facts:
    on = settings.get("expert_parallel.enabled", False)
    return {"ep": settings.get("expert_parallel.autoep_size", 1) if on else 1,
            "etp": settings.get("expert_parallel.expert_tensor_parallel_size", 1) if on else 1}  # fmt: skip


def _batch_write(setup: Setup) -> Settings:
    # Without an mpu (that of a pipeline) DeepSpeed takes all ranks of AutoTP for data-parallel ones, and refuses
    # the batch of the plan (`_batch_assertion` of DeepSpeedConfig). It needs only two of the three numbers.
    split = setup.layout.tp > 1 and setup.layout.pp == 1
    return {
        **({} if split else {"train_batch_size": setup.workload.global_batch}),
        "train_micro_batch_size_per_gpu": setup.layout.micro_batch,
        "gradient_accumulation_steps": setup.num_micro_batches,
    }


def _batch_read(settings: Settings, facts: Facts) -> Facts:
    names = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
    positive(settings, *names)
    batch, micro, steps = (settings.get(name) for name in names)
    out: Facts = {} if batch is None else {"workload.global_batch": batch}
    if micro is None:  # DeepSpeed divides the batch by the ranks and steps
        return out | ({"accumulation": steps} if steps else {})
    out |= {"micro_batch": micro}
    if batch is None:
        return out | {"batch_per_rank": micro * (steps or 1)}
    if not steps:
        return out
    if batch % (micro * steps):
        raise InputError(
            f"train_batch_size {batch} is no multiple of train_micro_batch_size_per_gpu {micro} x "
            f"gradient_accumulation_steps {steps} = {micro * steps}",
            hint="leave out one of the three: DeepSpeed works it out",
        )
    return out | {"dp_by_batch": batch // (micro * steps)}


def _precision_write(setup: Setup) -> Settings:
    return {} if setup.precision == "fp32" else {f"{setup.precision}.enabled": True}


def _precision_read(settings: Settings, facts: Facts) -> Facts:
    return {"precision": next((name for name in ("bf16", "fp16") if settings.get(f"{name}.enabled")), "fp32")}


def _recompute_write(setup: Setup) -> Settings:
    out: Settings = {f"{PYTHON}.RECOMPUTE": setup.recompute == "full"}
    if setup.recompute == "full" and setup.layout.pp > 1:
        out["pipeline.activation_checkpoint_interval"] = 1
    return out


def _recompute_read(settings: Settings, facts: Facts) -> Facts:
    names = (f"{PYTHON}.RECOMPUTE", "pipeline.activation_checkpoint_interval")
    mode = {"recompute": {"mode": "full" if any(settings.get(name) for name in names) else "none"}}
    if not settings.keys().isdisjoint(names):
        return mode
    return mode | {"notes": [*facts.get("notes", []), "recomputation is not in DeepSpeed's JSON: none is taken"]}


TABLE = Table((
    number("pp", f"{PYTHON}.PIPELINE_STAGES", lambda s: s.layout.pp, 1),
    number("tp", "tensor_parallel.autotp_size", lambda s: s.layout.tp, 1),
    Entry(("cp", "cp_algorithm"), ("sequence_parallel_size", "data_parallel_size"), _context_write, _context_read),
    Entry(("zero", "shard", "dp", "offload", FACT),
          (*(f"zero_optimization.{name}" for name in ("stage", "contiguous_gradients", "reduce_scatter",
             "offload_optimizer.device", "offload_optimizer.pin_memory")), *techniques.OPTIONS),
          _shards_write, _shards_read),
    Entry((f"{SWITCH}overlap_grad_reduce",), (_OVERLAP,), _overlap_write, _overlap_read),
    *(entry for entry in entries_of("deepspeed") if _OVERLAP not in entry.options),
    Entry(("ep", "etp"), ("expert_parallel.enabled", "expert_parallel.autoep_size"), _experts_write, _experts_read),
    Entry(("micro_batch", "workload.global_batch"),
          ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"),
          _batch_write, _batch_read),
    Entry(("precision",), ("bf16.enabled", "fp16.enabled"), _precision_write, _precision_read),
    Entry(("recompute", "recompute_modules", "recompute_layers"),
          (f"{PYTHON}.RECOMPUTE", "pipeline.activation_checkpoint_interval"), _recompute_write, _recompute_read),
    Entry(("workload.optimizer",), techniques.OPTIMIZER_OPTIONS,
          lambda s: techniques.optimizer_write(s, OPTIMIZERS), techniques.optimizer_read),
    Entry(("schedule", "vpp"), (), lambda s: {}, lambda given, facts: {"schedule": "1f1b", "vpp": 1}),
    compression.ENTRY,
    Entry(("sequence_parallel",), (), lambda s: {}, lambda given, facts: {"sequence_parallel": False}),
))  # fmt: skip


def conflicts(settings: Settings, environment: Mapping[str, str]) -> list[tuple[str, str]]:
    """Rules that DeepSpeed checks late or never."""
    out = []
    if settings.get("bf16.enabled") and settings.get("fp16.enabled"):
        out.append(("fp16.enabled", "bf16 and fp16 are both enabled"))
    stage, pp = settings.get("zero_optimization.stage", 0), settings.get(f"{PYTHON}.PIPELINE_STAGES", 1)
    if pp > 1 and stage > 1:
        out.append(("zero_optimization.stage", f"PipelineEngine refuses ZeRO-{stage} (PIPELINE_STAGES {pp})"))
    for name in ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"):
        if (value := settings.get(name)) is not None and value < 1:
            out.append((name, f"`{value}` is not 1 or more"))
    if settings.get("sequence_parallel_size", 1) > 1 and "data_parallel_size" not in settings:
        out.append(("sequence_parallel_size", "makes a mesh only together with data_parallel_size"))
    return out
