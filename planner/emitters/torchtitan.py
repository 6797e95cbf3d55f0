"""torchtitan: a Python config module for torchtitan.train."""

import numpy as np

from ...cost_models.layouts import MODULES, SELECTIVE_DEFAULT
from ...cost_models.layouts import SCHEDULES as _SCHEDULES
from ...cost_models.tables import Problem
from ..constraints import Columns, Mask, Rule
from .base import Target, only

_N = "torchtitan"
_SPLIT_BACKWARD = [_SCHEDULES.index(name) for name in ("zb-v", "dualpipe-v")]
_DEFAULT_MODULES = sum(1 << MODULES.index(name) for name in SELECTIVE_DEFAULT)


def _reshard(columns: Columns, problem: Problem) -> Mask:
    # Schedules that split the backward pass cannot gather weights again between its halves.
    return np.asarray((columns["zero"] != 3) | ~np.isin(columns["schedule"], _SPLIT_BACKWARD))


def _selective(columns: Columns, problem: Problem) -> Mask:
    return np.asarray(np.isin(columns["recompute_modules"], (0, _DEFAULT_MODULES)))


TARGET = Target(
    _N,
    "torchtitan (Trainer.Config module)",
    "torch-fsdp",
    "torchtitan b5bcd76c (2026-08-21), torchtitan/config/configs.py and distributed/parallel_dims.py",
    rules=(
        only(_N, "cp_algorithm", ("ring", "allgather"), "torchtitan's context parallelism has no {algorithm}"),
        only(_N, "etp", (1,), "torchtitan has no expert-tensor parallelism (etp {etp})"),
        only(_N, "schedule", ("1f1b", "gpipe", "interleaved", "zb-v", "dualpipe-v"),
             "torchtitan has no {schedule_name}"),
        only(_N, "zero", (0, 2, 3),
             "z1: it replicates (DDP) or shards parameters (FSDP2); ParallelismConfig cannot shard only the optimizer"),
        Rule(f"{_N}: reshard", ("schedule", "zero"), _reshard,
             "{schedule_name} splits the backward pass and cannot reshard weights (z3) between its halves"),
        Rule(f"{_N}: recompute_modules", ("recompute_modules",), _selective,
             "torchtitan's selective recompute is by operator, not by these modules"),
        only(_N, "recompute_layers", (0,), "torchtitan recomputes all layers or none"),
        only(_N, "offload", ("none", "opt"), "torchtitan offloads no activations"),
        only(_N, "precision", ("bf16", "fp8", "fp32"), "torchtitan trains in bf16, fp8 or fp32"),
    ),
)  # fmt: skip
