"""DeepSpeed: ds_config.json, and a small Python file for what JSON cannot say."""

import numpy as np

from ...cost_models.layouts import CP_ALGORITHMS, OFFLOADS
from ...cost_models.tables import Problem
from ..constraints import Columns, Mask, Rule
from .base import Target, only

_N = "deepspeed"
_ULYSSES = CP_ALGORITHMS.index("ulysses")


def _pipeline(columns: Columns, problem: Problem) -> Mask:
    return np.asarray((columns["zero"] <= 1) | (columns["pp"] == 1))


def _shards(columns: Columns, problem: Problem) -> Mask:
    # MiCS and hpZ shard over part of the ranks; both refuse much else, and no plan uses them yet.
    return np.asarray((columns["zero"] == 0) | (columns["shard"] == columns["dp"]))


def _experts(columns: Columns, problem: Problem) -> Mask:
    return np.asarray((columns["zero"] < 3) | (columns["ep"] == 1))


def _host_optimizer(columns: Columns, problem: Problem) -> Mask:
    return np.asarray((columns["zero"] > 0) | (columns["offload"] != OFFLOADS.index("opt")))


def _no_sequence_parallel(columns: Columns, problem: Problem) -> Mask:
    return np.asarray((columns["tp"] == 1) | (columns["sequence_parallel"] == 0))


def _ulysses_alone(columns: Columns, problem: Problem) -> Mask:
    return np.asarray((columns["cp"] == 1) | (columns["pp"] == 1))


TARGET = Target(
    _N,
    "DeepSpeed (ds_config.json)",
    "deepspeed",
    "DeepSpeed edaa7221 (2026-08-22, 0.19.6), runtime/pipe/engine.py:77, runtime/zero/config.py, sequence/layer.py",
    rules=(
        Rule(f"{_N}: pipeline", ("pp", "zero"), _pipeline,
             "PipelineEngine refuses ZeRO-2 and 3 (z{zero} with pp {pp})"),
        Rule(f"{_N}: sequence_parallel", ("tp", "sequence_parallel"), _no_sequence_parallel,
             "AutoTP keeps activations whole: no sequence parallelism with tp {tp}"),
        only(_N, "schedule", ("1f1b",), "DeepSpeed's pipeline has only 1f1b, not {schedule_name}"),
        Rule(f"{_N}: context", ("cp", "pp"), _ulysses_alone, "Ulysses does not combine with the pipeline engine"),
        Rule(f"{_N}: cp_algorithm", ("cp", "cp_algorithm"),
             lambda x, p: np.asarray((x["cp"] == 1) | (x["cp_algorithm"] == _ULYSSES)),
             "DeepSpeed has Ulysses only, no {algorithm}"),
        only(_N, "etp", (1,), "DeepSpeed has no expert-tensor parallelism (etp {etp})"),
        Rule(f"{_N}: shard", ("dp", "zero", "shard"), _shards,
             "sharding over part of the ranks (MiCS, hpZ) is not planned for DeepSpeed"),
        Rule(f"{_N}: experts", ("ep", "zero"), _experts, "DeepSpeed refuses its experts (ep {ep}) with ZeRO-3"),
        Rule(f"{_N}: offload", ("zero", "offload"), _host_optimizer, "offload_optimizer belongs to ZeRO 1 and above"),
        only(_N, "recompute", ("none", "full"), "DeepSpeed checkpoints whole layers only"),
        only(_N, "recompute_layers", (0,), "activation_checkpointing takes all layers"),
        only(_N, "offload", ("none", "opt"), "activation offload needs cpu_checkpointing of its own model code"),
        only(_N, "precision", ("bf16", "fp16", "fp32"), "DeepSpeed's JSON has no fp8 recipe"),
    ),
)  # fmt: skip
