"""Measured runs as columns of pools and loads: the rates of their GPUs, links and engines."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache

import numpy as np

from ...cost_models.arrays import Array
from ...cost_models.quantities.exchanges import Op
from ...cost_models.rates.collectives import Curve, curve
from ...cost_models.serving.load import Load
from ...cost_models.serving.pool import Pool
from ...cost_models.serving.served_model import ServedModel, stacked
from ...cost_models.specs.cluster import GpuSpec
from ...cost_models.specs.model import ModelSpec
from ...profiles.cluster.build import of_gpus
from ...profiles.rates.device_rates import surfaces_for
from ...profiles.rates.link_rates import collective_rates
from ...profiles.stack.engines import Engines
from .formats import BYTES, PRODUCTS, cache_read_bytes, dense_format
from .row import InstanceLayout, ServingCase


def pools_of(cases: Sequence[ServingCase], engines: Engines) -> tuple[Pool, Pool, Load]:
    """The pools that prefill and decode, and the load."""
    decode = _pool(cases, engines, lambda case: case.decode)
    return _pool(cases, engines, lambda case: case.prefill), decode, _load(cases)


def _column(cases: Sequence[ServingCase], value: Callable[[ServingCase], float]) -> Array:
    return np.array([float(value(case)) for case in cases])


def _pool(cases: Sequence[ServingCase], engines: Engines, layout: Callable[[ServingCase], InstanceLayout]) -> Pool:
    def of_layout(value: Callable[[InstanceLayout], int]) -> Array:
        return _column(cases, lambda case: value(layout(case)))

    groups = [(case, layout(case)) for case in cases]
    return Pool(
        model=stacked([_served(case.model) for case in cases]),
        tp=of_layout(lambda it: it.tp), attention_dp=of_layout(lambda it: it.attention_dp),
        pp=of_layout(lambda it: it.pp), ep=of_layout(lambda it: it.ep),
        instances=of_layout(lambda it: it.instances),
        weight_bytes=_column(cases, lambda case: BYTES[dense_format(case.model, case.weights)]),
        expert_bytes=_column(cases, lambda case: BYTES[case.weights]),
        kv_bytes=_column(cases, lambda case: BYTES[case.cache]),
        kv_read_bytes=_column(cases, lambda case: cache_read_bytes(case.gpu, case.cache)),
        flops_per_s=_column(cases, lambda case: _product_rate(case.gpu, case.weights)),
        attention_flops_per_s=_column(cases, lambda case: _attention_rate(case.gpu)),
        memory_bw_bytes_per_s=_column(cases, lambda case: _memory_rate(case.gpu)),
        memory_bytes=_column(cases, lambda case: case.gpu.memory_bytes),
        all_reduce=_joined([_curve(case.gpu.name, "all_reduce", it.tp) for case, it in groups]),
        all_to_all=_joined([_curve(case.gpu.name, "all_to_all", it.tp * it.attention_dp) for case, it in groups]),
        host_s=_column(cases, lambda case: engines.host_s(case.engine, case.version)),
        chunk_tokens=_column(cases, lambda case: engines.of(case.engine).chunk_tokens),
        max_sequences=_column(cases, lambda case: engines.of(case.engine).max_sequences),
        mixes_prompts=_column(cases, lambda case: engines.of(case.engine).mixes_prompts),
        reserved_output=_column(cases, lambda case: engines.of(case.engine).reserved_output),
    )  # fmt: skip


@lru_cache(maxsize=256)
def _served(model: ModelSpec) -> ServedModel:
    return ServedModel.of(model)


def _product_rate(gpu: GpuSpec, weights: str) -> float:
    """FLOP/s of large products. Weights narrower than what the GPU multiplies are widened to bf16."""
    surfaces, wanted = surfaces_for(gpu).gemm, PRODUCTS.get(weights, weights)
    surface = surfaces.get(wanted) or surfaces["bf16"]
    return float(surface.peak_flops_per_s * surface.efficiency * surface.training_factor)


def _memory_rate(gpu: GpuSpec) -> float:
    surface = surfaces_for(gpu).gemm["bf16"]
    return float(surface.memory_bw_bytes_per_s * surface.memory_efficiency)


def _attention_rate(gpu: GpuSpec) -> float:
    surface = surfaces_for(gpu).attention["flash3"]
    return float(surface.peak_flops_per_s * surface.forward_efficiency * surface.training_factor)


@lru_cache(maxsize=1024)
def _curve(gpu: str, op: Op, ranks: int) -> tuple[float, float, float]:
    """Latency, seconds per byte and ramp of a collective over neighbours."""
    made = curve(collective_rates(), of_gpus(gpu, ranks).levels, op, ranks, 1)
    return float(made.latency_s[0]), float(made.s_per_byte[0]), float(made.ramp[0])


def _joined(curves: Sequence[tuple[float, float, float]]) -> Curve:
    latency, per_byte, ramp = np.array(curves).T
    return Curve(latency, per_byte, ramp)


def _load(cases: Sequence[ServingCase]) -> Load:
    return Load(
        prompt=_column(cases, lambda case: case.prompt), output=_column(cases, lambda case: case.output),
        concurrency=_column(cases, lambda case: case.concurrency), rate=_column(cases, lambda case: case.rate),
        burst_share=_column(cases, lambda case: case.burst_share), transfer_s=np.zeros(len(cases)),
    )  # fmt: skip
