"""Model and hardware FLOPs of a step: the one place that both utilisations are computed from.

MFU counts the FLOPs of the model and what is trained of it, without recomputation; HFU adds what is recomputed.
Attention counts its causal half (and of a packed batch each document's own). Both are over the dense peak.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from .layouts import RECOMPUTE_MODES, Layout
from .operations import KEY_FIELDS, Builder, LayerOperations, Shard, Trains
from .specs import with_capacity

if TYPE_CHECKING:
    from .tables import Problem


def _operations(problem: Problem) -> list[LayerOperations]:
    """Operations of one sequence on one rank, with evenly loaded experts that drop nothing."""
    one = {name: np.array([int(name not in ("sequence_parallel", "cp_algorithm"))]) for name in KEY_FIELDS}
    stack = replace(problem.stack, moe_imbalance=1.0)
    shard, model = Shard.of(one, problem.model, problem.workload), with_capacity(problem.model, None)
    builder = Builder(model, problem.workload, stack, shard)
    edge: Trains = "all" if problem.trains_everything else "passes"
    layers = [builder.layer(model.kinds[v.kind], v.trains) for v in problem.variants]
    return [*layers, builder.embedding("frozen"), builder.head(edge), builder.mtp(edge)]


def _forward(ops: LayerOperations, modules: int | None = None) -> float:
    """Forward FLOPs of one sequence; `modules`: only of operations that selective recompute of them redoes."""
    gemms = sum(float((2 * g.m * g.n * g.k * g.count)[0]) for g in ops.gemms if modules is None or g.tag & modules)
    cores = sum(float(c.flops[0]) for c in ops.cores if modules is None or c.tag & modules)
    return gemms + cores


def _backward(ops: LayerOperations) -> float:
    if ops.trains == "frozen":
        return 0.0
    weights = sum(float((2 * g.m * g.n * g.k * g.count)[0]) for g in ops.gemms if g.has_wgrad)
    inputs = sum(float((2 * g.m * g.n * g.k * g.count)[0]) for g in ops.gemms)
    return inputs + weights + 2 * sum(float(c.flops[0]) for c in ops.cores)


def of_kinds(problem: Problem) -> NDArray[np.float64]:
    """[2, kind] forward and backward FLOPs of one sequence, of layers and edges in the order of stages.py. A copy of
    the embedding computes nothing."""
    each = [(_forward(ops), _backward(ops)) for ops in _operations(problem)]
    return np.array([*each, (0.0, 0.0)]).T


def _layers_per_kind(problem: Problem) -> list[int]:
    counts = [0] * problem.num_kinds
    for kind in problem.pattern:
        counts[kind] += 1
    if problem.model.mtp_layers:
        counts[problem.pattern[-1]] += problem.model.mtp_layers
    return counts


def model_flops(problem: Problem) -> float:
    """FLOPs of one step: 3 x forward where everything trains (FORMULAS 1.4)."""
    counts = [*_layers_per_kind(problem), 1, 1, problem.model.mtp_layers, 1]
    return problem.workload.global_batch * float((np.array(counts) * problem.flops).sum())


def recomputed_flops(problem: Problem, layout: Layout, redone: Sequence[float] | None = None) -> float:
    """FLOPs of one step that `layout` computes a second time. redone: layers of each kind, where they are chosen stage
    by stage."""
    mode = RECOMPUTE_MODES[layout.recompute]
    if mode == "none":
        return 0.0
    modules = None if mode == "full" else layout.recompute_modules
    layers = zip(redone or _layers_per_kind(problem), _operations(problem), strict=False)
    total = sum(n * _forward(ops, modules) for n, ops in layers if ops.trains != "frozen")
    share = 1.0
    if layout.recompute_layers and redone is None:
        share = min(1.0, layout.recompute_layers * layout.pp / problem.model.num_layers)
    return problem.workload.global_batch * share * total
