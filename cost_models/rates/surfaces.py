"""Seconds of matrix products and attention kernels from a few constants per device and number format.

The constants are fitted to measured tables by `profiles/rates/fit.py`; this file only holds the formulas. All functions
are pure, take arrays (or numbers) and broadcast.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..arrays import Array

# Tiles that cuBLAS and CUTLASS choose from, largest first: NVIDIA Deep Learning Performance guide (256x128 is the most
# efficient, each halving loses reuse); the smallest wins where the larger leave multiprocessors idle.
TILES = ((256, 128), (128, 128), (128, 64), (64, 64))
_LARGEST_TILE = TILES[0][0] * TILES[0][1]
_QUERY_BLOCK = 128.0  # queries that one thread block of a flash kernel holds


@dataclass(frozen=True, slots=True, kw_only=True)
class GemmSurface:
    """The rate of matrix products on one device in one number format."""

    peak_flops_per_s: float  # datasheet
    memory_bw_bytes_per_s: float  # datasheet
    num_sms: float  # multiprocessors, datasheet
    efficiency: float  # share of the peak that a full wave of the largest tiles reaches
    ramp_k: float  # columns of k that filling and draining a tile costs
    fixed_s: float  # launch and tail of one kernel
    small_tile_factor: float  # rate of a tile over that of one twice its area
    wave_quantisation: float  # 0: work spreads evenly over the multiprocessors, 1: whole waves only
    memory_efficiency: float  # achieved share of memory_bw_bytes_per_s
    unaligned_64: float = 1.0  # time factor where contiguous n or k is no multiple of 64 elements
    unaligned_8: float = 1.0  # the same of 8 elements
    training_factor: float = 1.0  # sustained rate in training over that of a short benchmark: clocks, power, layouts
    tiles: tuple[tuple[int, int], ...] = TILES  # sizes that products choose from
    source: str = ""  # of the fit


def gemm_seconds(
    surface: GemmSurface,
    m: ArrayLike,
    n: ArrayLike,
    k: ArrayLike,
    element_bytes: float = 2.0,
    *,
    contiguous: tuple[ArrayLike, ArrayLike] | None = None,
    batch: Array | float = 1.0,
    ragged: NDArray[np.bool_] | bool = False,
) -> Array:
    """Seconds of `batch` products of [m, k] by [k, n] in one kernel, each operand of `element_bytes` bytes per element.

    Best tile: tiles = ceil(m/tile_m) ceil(n/tile_n); waves = q ceil(tiles/SMs) + (1-q) tiles/SMs;
    compute = waves 2 tile_m tile_n (k + ramp_k) / (rate of one SM); plus fixed_s, and a smooth maximum (exponent 4)
    with the time to read both operands and write the result once (two bytes per element at least: fp8 products write
    bf16).
    ragged: the products of a batch differ in their rows, and m is the mean: rows that fall anywhere in a tile need half
    a tile more in the mean than they fill.
    contiguous: the dimensions along which operands are, n and k unless given: only they are tested for alignment. The
    result never falls when m, n or k grows, as long as their alignment stays.
    """
    m, n, k = (np.asarray(dim, dtype=np.float64) for dim in (m, n, k))
    aligned = _alignment(surface, *(contiguous or (n, k)))
    compute = _tile_seconds(surface, m, n, k, batch, ragged) * aligned / surface.training_factor
    traffic = batch * (element_bytes * (m * k + k * n) + max(element_bytes, 2.0) * (m * n))
    memory = traffic / (surface.memory_bw_bytes_per_s * surface.memory_efficiency)
    high, low = np.maximum(compute, memory), np.minimum(compute, memory)
    ratio = low / np.maximum(high, 1e-300)
    return np.asarray(surface.fixed_s + high * np.sqrt(np.sqrt(1.0 + (ratio * ratio) ** 2)))


def _tile_seconds(
    surface: GemmSurface, m: Array, n: Array, k: Array, batch: Array | float, ragged: NDArray[np.bool_] | bool
) -> Array:
    rate = surface.peak_flops_per_s * surface.efficiency
    quantised = surface.wave_quantisation
    best: Array = np.full((), np.inf)
    for rows, columns in surface.tiles:
        down = np.where(ragged, m / rows + 0.5, np.ceil(m / rows)) if np.any(ragged) else np.ceil(m / rows)
        tiles = batch * (down * np.ceil(n / columns))
        waves = np.ceil(tiles / surface.num_sms) * (quantised * surface.num_sms) + tiles * (1.0 - quantised)
        halvings = np.log2(_LARGEST_TILE / (rows * columns))
        work = waves * (2.0 * rows * columns / (rate * surface.small_tile_factor**halvings))
        best = np.minimum(best, work)
    return np.asarray(best * (k + surface.ramp_k))


def _alignment(surface: GemmSurface, n: ArrayLike, k: ArrayLike) -> Array | float:
    """Time factor of leading dimensions that are no multiple of 128 or 16 bytes (of two-byte elements)."""
    if surface.unaligned_64 == 1.0 and surface.unaligned_8 == 1.0:
        return 1.0
    odd_64 = _is_no_multiple(n, 64.0) | _is_no_multiple(k, 64.0)
    odd_8 = _is_no_multiple(n, 8.0) | _is_no_multiple(k, 8.0)
    return np.where(odd_8, surface.unaligned_8, np.where(odd_64, surface.unaligned_64, 1.0))


def _is_no_multiple(dim: ArrayLike, of: float) -> NDArray[np.bool_]:
    """Whether `dim` is no multiple of a power of two: exact, and several times as fast as a remainder."""
    quotient = np.asarray(dim, dtype=np.float64) / of
    return np.asarray(np.floor(quotient) != quotient)


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionSurface:
    """The rate of one attention kernel on one device.

    Efficiencies are shares of peak_flops_per_s at long context, of the FLOPs that the kernel executes in the causal
    half: the published convention (forward 4 per score and head element, flash backward 10).
    """

    peak_flops_per_s: float  # datasheet
    memory_bw_bytes_per_s: float  # datasheet
    forward_efficiency: float  # share of the peak
    backward_efficiency: float  # share of the peak
    half_context: float  # tokens at which half of the efficiency is reached: s/(s + half_context)
    narrow_head_factor: float  # rate with head_dim below 100 over the rate above it
    num_sms: float = 1.0  # multiprocessors
    longest_block: float = 0.0  # exposed part of the longest block of 128 queries: the tail of a causal kernel
    fixed_s: float = 0.0  # start of a kernel
    backward_work: float = 1.25  # FLOPs backward over twice the forward: flash kernels recompute the scores
    training_factor: float = 1.0  # sustained rate in training over that of the benchmark
    source: str = ""  # of the fit


@dataclass(frozen=True, slots=True, kw_only=True)
class UnfusedSurface:
    """Attention by two products with a softmax between them: the whole square of scores goes through memory."""

    products: GemmSurface  # of matrices
    memory_bw_bytes_per_s: float  # achieved by the softmax
    element_bytes: float = 2.0  # of the scores


Surface = TypeVar("Surface", bound=GemmSurface | AttentionSurface | UnfusedSurface)


def attention_seconds(
    surface: AttentionSurface | UnfusedSurface, flops: ArrayLike, context: ArrayLike, head_dim: ArrayLike,
    backward: bool,
) -> Array:  # fmt: skip
    """Seconds of the score and value products of one attention, forward or backward.

    flops: model FLOPs of the causal half of this pass: forward 4 per (query, key) pair that is not masked, per head
    and element of the head; backward twice that (what a flash kernel recomputes on top is in `backward_work`).
    context: tokens that the last query sees; for packed documents E[s^2]/E[s]. No flops cost nothing.
    flops work / rate (1 + half_context/s) + tail of one block + fixed_s.
    """
    flops, context, head_dim = (np.asarray(value, dtype=np.float64) for value in (flops, context, head_dim))
    context = np.maximum(context, 1.0)
    if isinstance(surface, UnfusedSurface):
        return np.asarray(np.where(flops > 0, _unfused_seconds(surface, flops, context, head_dim, backward), 0.0))
    work = surface.backward_work if backward else 1.0
    best = surface.backward_efficiency if backward else surface.forward_efficiency
    rate = (
        surface.peak_flops_per_s
        * surface.training_factor
        * best
        * np.where(head_dim < 100.0, surface.narrow_head_factor, 1.0)
    )
    total = flops * (work / rate) * (1.0 + surface.half_context / context)
    if surface.longest_block:
        block = 4.0 * _QUERY_BLOCK * (2.0 if backward else 1.0) * work * context * head_dim
        total = total + surface.longest_block * surface.num_sms * block / rate
    return np.asarray(np.where(flops > 0, total + surface.fixed_s, 0.0))


def at_training_factor(surface: Surface, factor: float) -> Surface:
    """`surface` at another share of the benchmark's rate."""
    if isinstance(surface, UnfusedSurface):
        return replace(surface, products=replace(surface.products, training_factor=factor))
    return replace(surface, training_factor=factor)


def _unfused_seconds(surface: UnfusedSurface, flops: Array, context: Array, head_dim: Array, backward: bool) -> Array:
    """Forward: scores made, softmax in one pass (read, write), scores times values. Backward: the gradient of the
    scores made, softmax (gradient and result read, gradient written), scores taken by the gradients of queries, keys
    and values. All heads of all sequences at once: as rows of one product."""
    w = surface.element_bytes
    rows = flops / ((4.0 if backward else 2.0) * head_dim * context)
    making = gemm_seconds(surface.products, rows, context, head_dim, w)
    taking = gemm_seconds(surface.products, rows, head_dim, context, w)
    passes, taken = (3.0, 3.0) if backward else (2.0, 1.0)
    return np.asarray(making + taken * taking + passes * w * rows * context / surface.memory_bw_bytes_per_s)
