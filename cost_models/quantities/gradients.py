"""Gradients of a batch of layouts: calls that reduce them, bytes that add them up, and casts of the weights."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from ..arrays import Array
from .element_bytes import activation_bytes
from .element_bytes import cast_bytes as cast_bytes_per_weight
from .ledger import Ledger, weighted

# Megatron-LM DistributedDataParallelConfig: gradients are reduced in buckets of max(40M, 1M x dp) parameters.
BUCKET_PARAMETERS, BUCKET_PARAMETERS_PER_RANK = 40e6, 1e6


def reductions(ledger: Ledger) -> tuple[Array, Array]:
    """[n] calls in which the gradients of the fullest stage are reduced: dense, of experts (StackSpec.reduces)."""
    x = ledger.layouts
    if ledger.problem.stack.reduces == "buckets":
        size = np.maximum(BUCKET_PARAMETERS, BUCKET_PARAMETERS_PER_RANK * x["dp"])
        largest = np.max([dense + experts for dense, experts in ledger.trained], axis=0)
        buckets = np.asarray(np.maximum(np.ceil(largest / size), 1.0))
        return buckets, buckets
    moe = [k for k, variant in enumerate(ledger.problem.variants) if ledger.problem.model.kinds[variant.kind].is_moe]
    experts = _most_parts(ledger, moe)
    dense = _most_parts(ledger) + np.where(x["tp"] > 1, whole_parts(ledger), 0.0)
    return dense, np.where(ledger.states.separate_experts, experts, 0.0)


def _most_parts(ledger: Ledger, kinds: Collection[int] | None = None) -> Array:
    """[n] layers and ends of the model, of these kinds, on the stage that has most of them."""
    of_profile = [sum((counts[k] for k in ledger.kinds if kinds is None or k in kinds), np.zeros(len(ledger.layouts)))
                  for counts in ledger.counts]  # fmt: skip
    return np.asarray(np.max(of_profile, axis=0))


def whole_parts(ledger: Ledger) -> Array:
    """[n] of them, those with trained weights that tp does not split."""
    return _most_parts(ledger, np.flatnonzero(ledger.tables.parameters["trained_whole"].any(axis=1)).tolist())


def trained_whole(ledger: Ledger) -> Array:
    """[n] trained parameters of the fullest stage that tp does not split."""
    rows = ledger.per_kind(ledger.tables.parameters["trained_whole"])
    return np.asarray(np.max([ledger.on_profile(j, rows) for j in range(ledger.num_profiles)], axis=0))


def accumulated_bytes(ledger: Ledger, j: int, *, scattered: bool = True) -> Array:
    """[n] bytes per micro-batch of adding its gradients to the sum: it is read and written, and the gradient of a
    product that does not add by itself is written and read before. None if there is one micro-batch. Without
    `scattered` as if no ZeRO stage divided them."""
    return _accumulated(ledger, *ledger.trained[j], scattered)


def accumulated_per_kind(ledger: Ledger) -> dict[int, Array]:
    """Kind -> [n] the same bytes of one layer of that kind."""
    dense = ledger.per_kind(ledger.tables.parameters["trained_dense"])
    experts = ledger.per_kind(ledger.tables.parameters["trained_experts"])
    return {kind: _accumulated(ledger, dense[kind], experts[kind], True) for kind in ledger.kinds}


def _accumulated(ledger: Ledger, dense: Array, experts: Array, scattered: bool) -> Array:
    divided = scattered & (ledger.layouts["zero"] >= 2) & ~ledger.states.whole_gradients
    sharers = ledger.state_sharers(ledger.exchanges.gradients_over, divided)
    summed = dense / sharers[0] + experts / sharers[1]
    moved = 2 * np.where(divided, ledger.problem.state_bytes.gradient, ledger.states.whole_gradient_bytes) * summed
    if not ledger.problem.stack.fused_accumulation:
        whole = np.where(divided, 0.0, dense + experts)  # what is scattered was written by its collective
        moved = moved + 2 * activation_bytes(ledger.problem.workload) * whole
    return np.asarray(np.where(ledger.m > 1, moved, 0.0))


def cast_bytes(ledger: Ledger, j: int) -> Array:
    """[n] bytes per step of quantising a rank's weights, where that is kept over the micro-batches."""
    stack, layers = ledger.problem.stack, ledger.problem.num_kinds
    if not (ledger.problem.workload.is_quantised and stack.caches_fp8_weights):
        return np.zeros(len(ledger.layouts))
    matrices = ledger.tables.parameters["dense"] + ledger.tables.parameters["experts"]
    rows = {kind: row for kind, row in ledger.per_kind(matrices).items() if kind < layers}
    counts = {kind: ledger.counts[j][kind] for kind in rows}
    per_weight = cast_bytes_per_weight(ledger.problem.workload, stack, any_fp8_layout=ledger.problem.any_fp8_layout)
    return per_weight * weighted(counts, rows)
