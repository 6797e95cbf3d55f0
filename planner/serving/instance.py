"""Instances of an engine on given GPUs as columns of a pool: the rates of their GPUs, links and engine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from ...cost_models.arrays import Array
from ...cost_models.quantities.exchanges import Op
from ...cost_models.rates.collectives import Curve, Levels, curve
from ...cost_models.rates.surfaces import GemmSurface
from ...cost_models.serving.methods import PLAIN, Methods
from ...cost_models.serving.pool import Pool
from ...cost_models.serving.seen_images import SeenImages
from ...cost_models.serving.served_model import ServedModel, stacked
from ...cost_models.specs.cluster import GpuSpec
from ...cost_models.specs.model import ModelSpec
from ...cost_models.techniques.base import Applied
from ...cost_models.techniques.registry import on_pool
from ...profiles.rates.device_rates import surfaces_for
from ...profiles.rates.link_rates import collective_rates
from ...profiles.stack.engines import Engine
from ...profiles.stack.load import stack_for
from ...profiles.stack.rates import ASSUMED_PCIE_EFFICIENCY
from .formats import BYTES, PRODUCTS, cache_read_bytes, dense_format

_REMEMBERED = 64  # pools: a plan asks for those of its searches and of single instances several times


@dataclass(frozen=True, slots=True, kw_only=True)
class Speculation:
    """A draft that proposes tokens, which the model verifies in one iteration."""

    tokens: int  # proposed for each sequence and iteration
    step_tokens: float  # that an iteration gives, mean: the accepted ones and that of the model
    draft: ModelSpec | None  # None: a module of the model for further tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Passes:
    """Passes that make an answer or an image."""

    number: int  # of an answer
    step_tokens: float  # that a pass gives, mean
    copies: int = 1  # of a sequence in a pass; 2: with and without its condition (classifier-free guidance)


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceLayout:
    """The layout of one instance, and how many instances there are."""

    tp: int  # of attention
    attention_dp: int
    pp: int
    ep: int
    instances: int

    @property
    def stage_gpus(self) -> int:
        return self.tp * self.attention_dp

    @property
    def gpus(self) -> int:
        return self.stage_gpus * self.pp * self.instances


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Instance:
    """A row of a pool: one configuration of an engine. Compared by identity, so that its simulation can be remembered
    for it."""

    model: ModelSpec
    gpu: GpuSpec
    levels: Levels  # that join its GPUs
    host_gpus: int | None = None  # of a host, where its first level joins several; None: of its first level
    weights: str  # number format of dense weights
    cache: str  # number format of the KV cache
    engine: Engine
    host_s: float  # of an iteration that takes prompts, per 1,000 kernels that it launches for them
    layout: InstanceLayout
    chunk_tokens: int  # prompt tokens of an iteration at most
    max_sequences: int  # of a group of tp ranks
    speculation: Speculation | None = None
    passes: Passes | None = None  # None: as many as tokens, where the model fills in masked tokens
    images: SeenImages | None = None  # of a request
    techniques: Applied = ()  # of serving


def pool(rows: Sequence[Instance]) -> Pool:
    """The rows as columns, under their techniques, which are the same in all rows."""
    return _pool(tuple(rows))


@lru_cache(maxsize=_REMEMBERED)
def _pool(rows: tuple[Instance, ...]) -> Pool:
    return on_pool(plain_pool(rows), rows[0].techniques if rows else ())


def plain_pool(rows: Sequence[Instance]) -> Pool:
    """The rows without their techniques."""

    def column(value: Callable[[Instance], float]) -> Array:
        return np.array([float(value(row)) for row in rows])

    pools = Pool(
        model=stacked([_served(row.model) for row in rows]), draft=stacked([_draft(row) for row in rows]),
        draft_tokens=column(lambda row: row.speculation.tokens if row.speculation else 0),
        step_tokens=column(_step_tokens),
        tp=column(lambda row: row.layout.tp), attention_dp=column(lambda row: row.layout.attention_dp),
        pp=column(lambda row: row.layout.pp), ep=column(lambda row: row.layout.ep),
        instances=column(lambda row: row.layout.instances),
        weight_bytes=column(lambda row: BYTES[dense_format(row.model, row.weights)]),
        expert_bytes=column(lambda row: BYTES[row.weights]), kv_bytes=column(lambda row: BYTES[row.cache]),
        kv_read_bytes=column(lambda row: cache_read_bytes(row.gpu, row.cache)),
        flops_per_s=column(lambda row: _product_rate(row.gpu, row.weights)),
        dense_flops_per_s=column(lambda row: _product_rate(row.gpu, dense_format(row.model, row.weights))),
        attention_flops_per_s=column(lambda row: _attention_rate(row.gpu)),
        memory_bw_bytes_per_s=column(lambda row: _memory_rate(row.gpu)),
        memory_bytes=column(lambda row: row.gpu.memory_bytes),
        all_reduce=_joined([_curve(row.levels, "all_reduce", row.layout.tp) for row in rows]),
        in_node=column(lambda row: row.layout.tp <= row.levels[0].size), own_sum_bytes=column(_own_sum_bytes),
        all_to_all=_joined([_curve(row.levels, "all_to_all", row.layout.stage_gpus) for row in rows]),
        all_gather=_joined([_curve(row.levels, "all_gather", row.layout.tp) for row in rows]),
        p2p=_joined([_curve(row.levels, "p2p", row.layout.pp, row.layout.stage_gpus) for row in rows]),
        host_s=column(lambda row: row.host_s), chunk_tokens=column(lambda row: row.chunk_tokens),
        largest_batch=column(lambda row: row.engine.chunk_tokens),
        max_sequences=column(lambda row: row.max_sequences),
        mixes_prompts=column(lambda row: row.engine.mixes_prompts),
        decodes_first=column(lambda row: row.engine.decodes_first),
        reserved_output=column(lambda row: row.engine.reserved_output),
        int4_flops_per_s=column(lambda row: _int4_rate(row.gpu)),
        launch_s=column(lambda row: row.engine.launch_s(row.model.num_layers, row.layout.tp, row.layout.pp)),
        host_bw_bytes_per_s=column(lambda row: row.gpu.pcie_bw_bytes_per_s * ASSUMED_PCIE_EFFICIENCY),
        methods=_methods(rows[0]) if rows else PLAIN, images=rows[0].images if rows else None,
    )  # fmt: skip
    return pools.hosted(pools.host_s)


def passes_of(model: ModelSpec, passes: int | None, output: float) -> Passes | None:
    """Passes that make an answer of so many tokens, in the mean."""
    if passes is None:
        return None
    guided = model.diffusion is not None and model.diffusion.guided
    return Passes(number=passes, step_tokens=output / passes, copies=2 if guided else 1)


def _step_tokens(row: Instance) -> float:
    return next((it.step_tokens for it in (row.speculation, row.passes) if it is not None), 1.0)


def _methods(row: Instance) -> Methods:
    """The methods of its model, which is that of all rows."""
    if not row.model.fills:
        return PLAIN
    number, copies = (row.passes.number, row.passes.copies) if row.passes is not None else (0, 1)
    return Methods(fills=True, denoises=row.model.diffusion is not None, passes=float(number), copies=float(copies))


def _own_sum_bytes(row: Instance) -> float:
    """The largest all-reduce that its engine makes by a kernel of its own: within a node alone, for most engines within
    a host, and over PCIe among as many GPUs as the engine allows."""
    node, tp, engine = row.levels[0], row.layout.tp, row.engine
    over_pcie = node.kind.startswith("pcie")
    most = node.size if engine.own_sums_over_hosts or row.host_gpus is None else row.host_gpus
    if tp > most or (over_pcie and tp > engine.own_sums_over_pcie):
        return 0.0
    return engine.own_sum_bytes(None if over_pcie else row.gpu.compute_capability, tp)


@lru_cache(maxsize=256)
def _served(model: ModelSpec) -> ServedModel:
    return ServedModel.of(model, stack_for("generic")[0])


def _draft(row: Instance) -> ServedModel:
    if row.speculation is None:
        return ServedModel.none()
    draft = row.speculation.draft
    return _served(draft) if draft else ServedModel.of_next_tokens(row.model, stack_for("generic")[0])


def _product_rate(gpu: GpuSpec, weights: str) -> float:
    """FLOP/s of large products. Weights narrower than what the GPU multiplies are widened to 16 bits. Products of 8-bit
    integers reach the share of their peak that those in 16 bits reach."""
    surface = surfaces_for(gpu).gemm.get(PRODUCTS.get(weights, weights)) or _plain_products(gpu)
    if weights == "int8" and "int8" in gpu.peak_flops_per_s and "fp8" not in gpu.peak_flops_per_s:
        return float(gpu.peak_flops_per_s["int8"] * surface.efficiency * surface.training_factor)
    return float(surface.peak_flops_per_s * surface.efficiency * surface.training_factor)


def _int4_rate(gpu: GpuSpec) -> float:
    """FLOP/s of large products of 4-bit integers, 0 where there are none: tensor cores of compute capability 7.5 to 8.9
    take them twice as fast as those of 8 bits, and these twice as fast as 16 (NVIDIA's white papers of A100 and Ada);
    Hopper's and Blackwell's do not. They reach the share of their peak that products in 16 bits reach."""
    if not 7.5 <= (gpu.compute_capability or 0.0) < 9.0:
        return 0.0
    peaks, surface = gpu.peak_flops_per_s, _plain_products(gpu)
    eight_bits = next((peaks[name] for name in ("int8", "fp8") if name in peaks), 2.0 * peaks.get("fp16", 0.0))
    return float(2.0 * eight_bits * surface.efficiency * surface.training_factor)


def _plain_products(gpu: GpuSpec) -> GemmSurface:
    """The surface of bf16; fp16 where the GPU lacks it (V100), else of the format that it has."""
    surfaces = surfaces_for(gpu).gemm
    return next(surfaces[name] for name in ("bf16", "fp16", *surfaces) if name in surfaces)


def _memory_rate(gpu: GpuSpec) -> float:
    surface = _plain_products(gpu)
    return float(surface.memory_bw_bytes_per_s * surface.memory_efficiency)


def _attention_rate(gpu: GpuSpec) -> float:
    surfaces = surfaces_for(gpu).attention
    surface = next(surfaces[name] for name in ("flash3", *surfaces) if name in surfaces)
    return float(surface.peak_flops_per_s * surface.forward_efficiency * surface.training_factor)


def link_curve(levels: Levels, op: Op, ranks: int, stride: int = 1) -> Curve:
    """A collective over ranks that are `stride` apart."""
    return _joined([_curve(levels, op, ranks, stride)])


@lru_cache(maxsize=1024)
def _curve(levels: Levels, op: Op, ranks: int, stride: int = 1) -> tuple[float, float, float]:
    """Latency, seconds per byte and ramp of a collective over ranks that are `stride` apart."""
    made = curve(collective_rates(), levels, op, ranks, stride)
    return float(made.latency_s[0]), float(made.s_per_byte[0]), float(made.ramp[0])


def _joined(curves: Sequence[tuple[float, float, float]]) -> Curve:
    latency, per_byte, ramp = np.array(curves).T
    return Curve(latency, per_byte, ramp)
