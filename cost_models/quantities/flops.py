"""Model and hardware FLOPs of a step: the one place that both utilisations are computed from.

MFU counts the FLOPs of the model and what is trained of it, without recomputation; HFU adds what is recomputed.
Attention counts its causal half (and of a packed batch each document's own). Both are over the dense peak.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ..layouts import RECOMPUTE_MODES, Layout
from ..problem import Problem
from .operations import LAST, TOWER


def _layers_per_kind(problem: Problem) -> list[int]:
    counts = [0] * problem.num_kinds
    for kind in (*problem.pattern, *problem.mtp):
        counts[kind] += 1
    return counts


def model_flops(problem: Problem) -> float:
    """FLOPs of one step: 3 x forward where everything trains (FORMULAS 1.4)."""
    counts = [*_layers_per_kind(problem), 1, 1, problem.model.mtp_layers, 1]
    return problem.workload.global_batch * float((np.array(counts) * problem.flops).sum())


def useful_flops(problem: Problem) -> float:
    """FLOPs of one step that its documents need: `model_flops` without those of padding."""
    work = problem.workload
    if work.packed or work.mean_len is None:
        return model_flops(problem)
    packed = replace(problem, workload=replace(work, packed=True))  # each of its tokens sees its own document alone
    return model_flops(packed) * work.mean_len / work.seq_len


def step_at_peak_s(problem: Problem, peak_flops_per_s: float) -> float:
    """Seconds of a step at the peak of all GPUs together, which no layout beats."""
    return model_flops(problem) / peak_flops_per_s


def recomputed_flops(problem: Problem, layout: Layout, recomputed: Sequence[float] | None = None) -> float:
    """FLOPs of one step that `layout` computes a second time. recomputed: layers of each kind, then vision towers,
    where they are chosen stage by stage. A tower is recomputed whole where a number of layers is."""
    mode = RECOMPUTE_MODES[layout.recompute]
    if mode == "none":
        return 0.0
    modules = None if mode == "full" else layout.recompute_modules
    *numbers, towers = recomputed or [*_layers_per_kind(problem), 1.0]
    layers = zip(numbers, problem.sequence_operations, strict=False)
    stops = mode == "full" and problem.stack.recompute_stops_early
    total = sum(n * (ops.forward_flops(modules) - stops * ops.forward_flops(LAST)) for n, ops in layers
                if ops.trains != "frozen")  # fmt: skip
    share = 1.0
    if layout.recompute_layers and recomputed is None:
        share = min(1.0, layout.recompute_layers * layout.pp / problem.model.num_layers)
    flops = problem.workload.global_batch * share * total
    if mode == "full":
        of_tower = problem.sequence_operations[problem.num_kinds].forward_flops(TOWER)  # beside the embedding
        flops += problem.workload.global_batch * towers * of_tower
    return flops
