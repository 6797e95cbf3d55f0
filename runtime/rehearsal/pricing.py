"""The planner's memory of a job, from the cost models alone: no catalogue, no search, no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from ...cost_models import build_ledger
from ...cost_models.layerwise.memory import Bytes, LayerStages
from ...cost_models.layouts import RECOMPUTE_MODES, Layouts
from ...cost_models.problem import Problem
from ...cost_models.quantities import ledger
from ...cost_models.quantities.device_memory import DeviceMemory
from ...cost_models.quantities.stages import Partition
from ...cost_models.quantities.tables import Tables, index_keys, operations
from ...cost_models.specs.workload import Workload
from ..job import Job
from ..mixed_lengths.job import LengthsJob
from ..parallel.strategies import Strategies

# The cost models have no float64. All their fp32 buffers are twice as large.
_SCALE = {"fp64": 2.0, "fp32": 1.0, "bf16": 1.0}


def predicted_bytes(job: Job, *, on_gpu: bool = False) -> list[dict[str, float]]:
    """Bytes of every buffer on one rank, and their sum `allocated`, per stage.

    on_gpu: with the attention that is planned for GPUs. That of CPUs keeps no scores, also in fp32.
    """
    if isinstance(job, LengthsJob):
        job = job.uniform
    if not on_gpu and job.stack.attention == "unfused":
        job = replace(job, stack=replace(job.stack, attention="sdpa"))
    if job.strategies is not None:
        return [_scaled(job, buffers) for buffers in _layerwise_bytes(job.strategies, job, problem_of(job))]
    memory = DeviceMemory(ledger_of(job))
    stages = [memory.buffers(stage) for stage in range(job.layout.pp)]
    return [_scaled(job, {name: float(buffers[0]) for name, buffers in stage.items()}) for stage in stages]


def ledger_of(job: Job) -> ledger.Ledger:
    """The quantities of a job with one strategy for all layers."""
    problem, columns = problem_of(job), Layouts.of([job.layout])
    keys, index = index_keys(columns)
    return build_ledger.build(problem, tables_of(problem, keys), columns, index, _partition(job))


def _scaled(job: Job, unscaled: Mapping[str, float]) -> dict[str, float]:
    buffers = {name: num_bytes * _SCALE[job.dtype] for name, num_bytes in unscaled.items()}
    return {**buffers, "allocated": sum(buffers.values())}


def _layerwise_bytes(strategies: Strategies, job: Job, problem: Problem) -> list[dict[str, float]]:
    """Bytes per stage for layer-wise strategies."""
    columns, partition = Layouts.of(strategies.distinct), _partition(job)
    keys, index = index_keys(columns)
    whole = build_ledger.build(problem, tables_of(problem, keys), columns, index, partition)
    stages = LayerStages(Bytes.of_rows(whole), job.num_micro_batches, partition.sizes)
    indices = [strategies.distinct.index(strategy) for strategy in strategies.in_order]
    return [buffers for buffers, _ in stages.buffers_of(indices)]


def _partition(job: Job) -> Partition:
    """The stages of the job in order, so that profile j of the ledger is stage j."""
    sizes = tuple(chunk.layers[-1] - chunk.layers[0] + 1 if chunk.layers else 0 for chunk in job.chunks)
    full = RECOMPUTE_MODES[job.layout.recompute] == "full"
    return Partition(sizes, tuple(chunk.recompute_layers for chunk in job.chunks) if full else None)


def problem_of(job: Job) -> Problem:
    """The planner's problem of a job."""
    workload = Workload(
        seq_len=job.seq_len, global_batch=job.global_batch, precision="bf16" if job.dtype == "bf16" else "fp32",
        optimizer="sgd" if job.optimizer == "sgd" else "adamw", lora=job.lora,
        trains_layers=None if job.lora is None else 0, images=job.images, freeze_tower=job.freezes_tower,
        source_len=job.source_len,
        techniques=() if job.technique is None else ((job.technique[0], tuple(job.technique[1].items())),),
    )  # fmt: skip
    # Imbalance is between the ranks of an expert group. A group of one rank has all experts and gets every token.
    stack = replace(job.stack, moe_imbalance=1.0) if job.layout.ep == 1 else job.stack
    return Problem(job.model, workload, stack, job.world_size, job.world_size)


def tables_of(problem: Problem, keys: dict[str, np.ndarray[tuple[int, ...], np.dtype[np.int64]]]) -> Tables:
    """The tables of these keys, built anew."""
    return Tables(problem, keys, operations(problem, keys))
