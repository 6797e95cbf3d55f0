"""The planner's memory for a job, priced by the cost models alone: no file of facts, no search, no torch."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ..cost_models import ledger
from ..cost_models.layouts import SCHEDULES, Layouts
from ..cost_models.operations import Builder, LayerOperations, Shard
from ..cost_models.specs import Workload
from ..cost_models.stages import split_rows
from ..cost_models.tables import Problem, Tables, index_keys
from .job import Job

# The cost models know no float64: everything that they price in fp32 is twice as large.
_SCALE = {"fp64": 2.0, "fp32": 1.0, "bf16": 1.0}


def predicted_bytes(job: Job) -> list[dict[str, float]]:
    """Per stage: bytes of every buffer on one rank, and their sum `allocated`."""
    problem = _problem(job)
    columns = Layouts.of([job.layout])
    keys, index = index_keys(columns)
    batch = ledger.build(problem, _tables(problem, keys), columns, index)
    scale, split = _SCALE[job.dtype], int(batch.split[0])
    counts, first = batch.splits.counts[split], batch.splits.first[split]
    vpp = job.layout.vpp if job.layout.pp > 1 else 1
    rows = split_rows(problem.pattern, problem.num_kinds, problem.edges, job.layout.pp, vpp,
                      SCHEDULES[job.layout.schedule])  # fmt: skip
    out = []
    for stage, layers in enumerate(rows):
        j = int(np.flatnonzero((counts == layers).all(axis=1))[0])
        buffers = {name: float(held[0]) for name, held in batch.memory(j).items()}
        if stage != first[j]:
            buffers["activations"] = batch.activations_on(j, 0, stage)
        buffers = {name: value * scale for name, value in buffers.items()}
        out.append({**buffers, "allocated": sum(buffers.values())})
    return out


def _problem(job: Job) -> Problem:
    workload = Workload(
        seq_len=job.seq_len, global_batch=job.global_batch, precision="bf16" if job.dtype == "bf16" else "fp32",
        optimizer="sgd" if job.optimizer == "sgd" else "adamw",
    )  # fmt: skip
    # Imbalance is between the ranks of an expert group: one rank has all experts and gets every token.
    stack = replace(job.stack, moe_imbalance=1.0) if job.layout.ep == 1 else job.stack
    return Problem(job.model, workload, stack, job.world_size, job.world_size)


def _tables(problem: Problem, keys: dict[str, np.ndarray[tuple[int, ...], np.dtype[np.int64]]]) -> Tables:
    """As `tables.build`, without seconds: those would need the rates of a GPU."""
    builder = Builder(problem.model, problem.workload, problem.stack, Shard.of(keys, problem.model, problem.workload))
    layers = [builder.layer(problem.model.kinds[variant.kind], variant.trains) for variant in problem.variants]
    edges = [builder.embedding(), builder.head(), builder.mtp(), LayerOperations(name="embedding copy")]
    return Tables(problem, keys, (), tuple(layers + edges))
