"""torchtitan: a Python config module for torchtitan.train."""

import numpy as np

from ...cost_models.tables import Problem
from ..constraints import Columns, Mask, Rule
from .base import Target, only

_N = "torchtitan"


def _reshard(columns: Columns, problem: Problem) -> Mask:
    # A pipeline stage neither reshards nor scatters before its last micro-batch: stage 3 would be stage 2.
    return np.asarray((columns["zero"] != 3) | (columns["pp"] == 1))


def _replicas(columns: Columns, problem: Problem) -> Mask:
    return np.asarray((columns["zero"] > 0) | ((columns["cp"] == 1) & (columns["ep"] == 1)))


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
        Rule(f"{_N}: reshard", ("pp", "zero"), _reshard,
             "in a pipeline weights stay whole through the step: z3 is z2 there (pp {pp})"),
        only(_N, "recompute", ("none", "full"), "torchtitan's selective recompute is by operator, not by module"),
        Rule(f"{_N}: replicas", ("cp", "ep", "zero"), _replicas,
             "z0 replicates (DDP): with cp {cp} or ep {ep} its mesh shards parameters (FSDP2)"),
        only(_N, "recompute_layers", (0,), "torchtitan recomputes all layers or none"),
        only(_N, "offload", ("none",), "enable_cpu_offload also moves the weights, which this plan keeps on the GPU"),
        only(_N, "precision", ("bf16", "fp8", "fp32"), "torchtitan trains in bf16, fp8 or fp32"),
    ),
)  # fmt: skip
