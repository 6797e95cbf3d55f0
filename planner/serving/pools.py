"""Measured runs as columns of pools and loads."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from ...cost_models.arrays import Array
from ...cost_models.serving.pool import Pool
from ...cost_models.serving.service import Load
from ...profiles.cluster.build import of_gpus
from ...profiles.stack.engines import Engines
from .instance import Instance, InstanceLayout, pool
from .row import ServingCase


def pools_of(cases: Sequence[ServingCase], engines: Engines) -> tuple[Pool, Pool, Load]:
    """The pools that prefill and decode, and the load."""
    prefill = pool([_instance(case, case.prefill, engines) for case in cases])
    return prefill, pool([_instance(case, case.decode, engines) for case in cases]), _load(cases)


def _instance(case: ServingCase, layout: InstanceLayout, engines: Engines) -> Instance:
    engine, cluster = engines.of(case.engine), of_gpus(case.gpu.name, layout.stage_gpus * layout.pp)
    return Instance(
        model=case.model, gpu=case.gpu, levels=cluster.levels, host_gpus=cluster.gpus_per_node,
        weights=case.weights, cache=case.cache, engine=engine, host_s=engines.host_s(case.engine, case.version),
        layout=layout, chunk_tokens=engine.group_chunk(layout.attention_dp), max_sequences=engine.max_sequences,
    )  # fmt: skip


def _column(cases: Sequence[ServingCase], value: Callable[[ServingCase], float]) -> Array:
    return np.array([float(value(case)) for case in cases])


def _load(cases: Sequence[ServingCase]) -> Load:
    return Load.equal(
        prompt=_column(cases, lambda case: case.prompt), output=_column(cases, lambda case: case.output),
        concurrency=_column(cases, lambda case: case.concurrency), rate=_column(cases, lambda case: case.rate),
        burst_share=_column(cases, lambda case: case.burst_share), transfer_s=np.zeros(len(cases)),
    )  # fmt: skip
