"""Seconds of products of matrices, forward and backward."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

import numpy as np

from ..arrays import Array
from ..quantities.operations import BatchedProduct, Gemm
from .rates import Rates
from .surfaces import GemmSurface, gemm_seconds

_SLAB = 64.0  # tokens that a tile of a product takes in at a time (CUTLASS: 128 bytes of bf16)
_STACKED = 1 << 11  # elements of one call (measured: less is slower by the call, more by the cache)


def batched(product: BatchedProduct, rates: Rates) -> tuple[Array, Array, Array]:
    """[key] seconds of a batch of products: its output, and the gradients of both operands. Nothing of activations is
    fp8."""
    if product.fp32 and rates.vector_flops_per_s is not None:
        alike = product.flops / rates.vector_flops_per_s
        return alike, alike, alike
    m, n, k = product.m, product.n, product.k
    output, left, right = (
        gemm_seconds(rates.wide_gemm, *dims, rates.wide_element_bytes, batch=product.batch)
        for dims in ((m, n, k), (m, k, n), (k, n, m))
    )
    return output, left, right


def products(gemms: Sequence[Gemm], rates: Rates) -> Iterator[tuple[Array, Array, Array]]:
    """[key] seconds of every product, for all its `count`: output, input gradient, weight gradient.

    Weights, inputs and gradients are contiguous along n or k in all three products and never along the tokens m
    (row-major, as in torch), whose number for an expert is a mean anyway. Products are stacked up to _STACKED elements:
    with few keys the calls cost more than what they work on.
    """
    for (wide, at_once, ragged), run in groupby(gemms, key=lambda gemm: (gemm.wide, gemm.at_once, gemm.ragged)):
        surface, w = (rates.wide_gemm, rates.wide_element_bytes) if wide else (rates.gemm, rates.element_bytes)
        few = list(run)
        together = max(_STACKED // (3 * len(few[0].m)), 1)
        for start in range(0, len(few), together):
            yield from _stacked(few[start : start + together], surface, w, at_once, ragged)


def _stacked(
    gemms: Sequence[Gemm], surface: GemmSurface, element_bytes: float, at_once: bool, ragged: bool
) -> Iterator[tuple[Array, Array, Array]]:
    m, n, k, count = (np.array([getattr(gemm, dim) for gemm in gemms]) for dim in ("m", "n", "k", "count"))
    # The gradient of a weight contracts over the tokens: slabs of which the last is half empty in the mean.
    tokens = m + _SLAB / 2 if at_once and ragged else m
    rows, columns, depth = (np.concatenate(dims) for dims in ((m, m, n), (n, k, k), (k, n, tokens)))
    along, number = (np.concatenate((n, n, n)), np.concatenate((k, k, k))), np.concatenate((count, count, count))
    by_tokens = np.arange(len(rows)) < 2 * len(m)
    seconds = gemm_seconds(
        surface, rows, columns, depth, element_bytes, contiguous=along, batch=number if at_once else 1.0,
        ragged=by_tokens[:, np.newaxis] if at_once and ragged else False,
    )  # fmt: skip
    if not at_once:
        seconds = seconds * number
    parts = len(gemms)
    return zip(seconds[:parts], seconds[parts:-parts], seconds[-parts:], strict=True)
