"""Seconds of collectives on a hierarchy of links, as curves over the bytes of the tensor.

The rate of a group depends on the number of its members in one domain (a node, a rack), at each level of the hierarchy.
`profiles/rates/fit.py` fits the constants per kind of link and operation; this file has only rough defaults.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import ArrayLike

from ..arrays import Array, Ints, group_rows
from ..quantities.exchanges import Op
from ..quantities.token_dispatch import distinct_share
from ..specs.cluster import NetworkLevel
from . import torus

Levels = tuple[NetworkLevel, ...]  # innermost first


@dataclass(frozen=True, eq=False)
class Curve:
    """Seconds of one call over the bytes S of the tensor: latency + slope S + ramp sqrt(latency slope S).

    The last term is what pipelining costs between the two regimes: a library that cuts S into chunks (or changes
    its protocol) so as to minimise steps x (start + chunk/bandwidth) pays 2 sqrt(latency x transfer) at best.
    A ramp in [-1, 0) is the share of the shorter of the two that hides behind the longer: of a library that sends some
    messages while it starts others. Arrays that broadcast against each other. A group of one rank has all zero.
    """

    latency_s: Array  # of a call without bytes
    s_per_byte: Array  # of the tensor, as S grows
    ramp: Array  # share of sqrt(latency x transfer), see above

    @cached_property
    def hides(self) -> bool:
        """Whether a part of the shorter one hides behind the longer."""
        return bool((self.ramp < 0).any())

    def rows(self, index: Ints) -> Curve:
        """Those of the rows `index` [m] of columns [n]."""
        return Curve(self.latency_s[index], self.s_per_byte[index], self.ramp[index])


def seconds(curve: Curve, num_bytes: ArrayLike, calls: ArrayLike = 1.0) -> Array:
    """[n] seconds of `calls` calls on `num_bytes` bytes each; no bytes cost nothing."""
    call_s = call_seconds(curve, np.asarray(num_bytes, dtype=np.float64))
    return np.asarray(call_s * np.asarray(calls, dtype=np.float64))


def call_seconds(curve: Curve, num_bytes: Array) -> Array:
    """[n] seconds of one call."""
    return np.where(num_bytes > 0, joined(curve, curve.latency_s, curve.s_per_byte * num_bytes), 0.0)


def joined(curve: Curve, latency_s: Array, transfer_s: Array) -> Array:
    """[n] seconds of a message by those to start and to transfer it (Curve)."""
    between = np.sqrt(latency_s * transfer_s)
    if curve.hides:
        between = np.where(curve.ramp < 0, np.minimum(latency_s, transfer_s), between)
    return np.asarray(latency_s + transfer_s + curve.ramp * between)


@dataclass(frozen=True, slots=True, kw_only=True)
class OpRates:
    """Constants of one operation on one kind of link."""

    base_s: float  # start of a call; a level above the innermost adds its own on top
    hop_s: float  # each further rank (innermost) or domain (levels above) on the path
    efficiency: float  # share of NetworkLevel.bw_bytes_per_s that a large group reaches
    # Work beyond the wire, in shards of 1/n of the tensor. Above 0: each rank copies its own shard, which weighs in
    # small groups. Below 0: a pair under one PCIe switch avoids the host bridge.
    pair_excess: float = 0.0
    ramp: float = 1.0  # see Curve


@dataclass(frozen=True, slots=True, kw_only=True)
class LevelRates:
    """Constants of one kind of link."""

    ops: Mapping[str, OpRates]  # operation -> its constants
    # share of the bandwidth that a reduction in the switch reaches (NVLS, SHARP), 0: there is none
    switch_efficiency: float = 0.0
    source: str = ""  # of the constants


_REMEMBERED = 64  # groups of a batch of runs or of one layout; a search has more, and other ones every time


@dataclass(frozen=True, kw_only=True, eq=False)
class CollectiveRates:
    """Constants per NetworkLevel.kind; `inner` and `outer` serve kinds that are not in the table. Compared by identity,
    so that curves can be remembered for them."""

    kinds: Mapping[str, LevelRates]  # NetworkLevel.kind -> constants
    inner: LevelRates  # of an innermost level whose kind is not in the table
    outer: LevelRates  # of any other level whose kind is not in the table
    nics_per_ring: float = math.inf  # of the members of a domain, how many bring their share of the links that leave it
    tree_efficiency: float = 0.0  # of a tree over two domains, over that of a ring; 0: rings only
    sources: Mapping[str, str] = field(default_factory=dict)  # constant -> source

    def level(self, kind: str, depth: int) -> LevelRates:
        """The constants of the level of this kind at this depth (0: innermost).

        Falls back to the family that a part of the kind names: `xdr-ib` to `ib`, `efa-v2` to `efa`, `pcie6` to `pcie`.
        """
        words = kind.removesuffix("-rail-only").split("-")
        for name in (kind, "-".join(words), *words, *(word.rstrip("0123456789") for word in words)):
            if name in self.kinds:
                return self.kinds[name]
        return self.outer if depth else self.inner


def members(size: ArrayLike, stride: ArrayLike, domain: int) -> Array:
    """[n] least number of members of a group that share a domain of `domain` consecutive ranks.

    The group is `size` ranks, `stride` apart. All groups of that shape tile the ranks, so it lies inside if
    size x stride divides the domain; otherwise every domain holds gcd(size x stride, domain) / stride, at least one.
    """
    size, stride = np.asarray(size, dtype=np.int64), np.asarray(stride, dtype=np.int64)
    span = size * stride
    inside = (span <= domain) & (domain % np.maximum(span, 1) == 0)
    shared = np.clip(np.gcd(span, domain) // np.maximum(stride, 1), 1, size)
    return np.asarray(np.where(inside, size, shared), dtype=np.float64)


def curve(
    rates: CollectiveRates, levels: Levels, op: Op, size: ArrayLike, stride: ArrayLike, copies: float = 1.0,
    groups: tuple[int, int] = (1, 1),
) -> Curve:  # fmt: skip
    """The curve of `op` for groups of `size` ranks, `stride` apart in global rank.

    copies: of an all-to-all, for how many destinations each item is wanted, where it enters a domain once, is handed
    on there, and reaches each rank once (the bytes of the curve count all copies). groups: the ranks are in so many
    groups of neighbours, and the copies of an item go to so many of those (`distinct_share`).

    The bytes of the curve: all_reduce and broadcast the tensor; all_gather and reduce_scatter the full (gathered,
    unscattered) tensor; all_to_all the buffer of one rank; p2p and all_scan the message. All groups run at once, so
    each GPU has just its own share of every link (`bw_bytes_per_s`).
    """
    size, stride = (np.atleast_1d(np.asarray(v, dtype=np.int64)) for v in np.broadcast_arrays(size, stride))
    if op == "all_scan":
        return _scan_curve(rates, levels, size, stride)
    counts = [members(size, stride, level.size) for level in levels[:-1]] + [size.astype(np.float64)]
    latency, per_byte, ramp = (np.zeros(size.shape) for _ in range(3))
    below = np.ones(size.shape)  # members that already share a domain of the level below
    for depth, (level, within) in enumerate(zip(levels, counts, strict=True)):
        op_rates = rates.level(level.kind, depth).ops[op]
        crossed = within > below
        hops = torus.steps(level, size, stride) if level.torus and op != "p2p" else _hops(op, below, within, depth)
        start = op_rates.base_s + hops * np.maximum(op_rates.hop_s, level.latency_s if depth else 0.0)
        latency = latency + np.where(crossed, start, 0.0)
        ranks = size.astype(np.float64)
        if op == "all_to_all" and level.torus:
            here = torus.exchange_slope(level, size, stride) / op_rates.efficiency
        elif op in ("all_to_all", "p2p"):
            here = _direct_slope(rates, levels, depth, op, ranks, below, within, copies, groups)
        else:
            here = _ring_slope(rates, levels, depth, op, ranks, below, within) / torus.link_share(level, size, stride)
        per_byte = np.maximum(per_byte, np.where(crossed, here, 0.0))
        of_chunks = _start_of_chunks(op_rates, hops, start) if level.between_sites else 1.0
        ramp = np.where(crossed, op_rates.ramp * of_chunks, ramp)
        below = np.maximum(below, within)
    alone = size <= 1
    return Curve(np.where(alone, 0.0, latency), np.where(alone, 0.0, per_byte), np.where(alone, 0.0, ramp))


def _start_of_chunks(op_rates: OpRates, hops: Array, start: Array) -> Array:
    """Factor of the ramp between sites. Every chunk pays the start of the software. The time of light is paid once,
    since chunks follow one another along the line: sqrt(latency x transfer) has the software's part of the latency."""
    return np.asarray(np.sqrt((op_rates.base_s + hops * op_rates.hop_s) / start))


def _scan_curve(rates: CollectiveRates, levels: Levels, size: Ints, stride: Ints) -> Curve:
    """The curve of a scan over the ranks of a group, one after another, in the best number of parts (ZeCO, arXiv
    2507.01004, section 3.2).

    K parts take (P-1+K) (S/(K bw) + start). The best K, sqrt((P-1) S / (bw start)), gives S/bw + (P-1) start
    + 2 sqrt((P-1) start S/bw). bw: of the slowest link on the way; start: summed over the links that messages cross.
    """
    message = curve(rates, levels, "p2p", size, stride)
    starts, below = np.zeros(size.shape), np.ones(size.shape)
    for depth, level in enumerate(levels):
        within = members(size, stride, level.size) if depth < len(levels) - 1 else size.astype(np.float64)
        op_rates = rates.level(level.kind, depth).ops["p2p"]
        start = op_rates.base_s + np.maximum(op_rates.hop_s, level.latency_s if depth else 0.0)
        starts = starts + np.maximum(size / below - size / np.maximum(within, below), 0.0) * start
        below = np.maximum(below, within)
    return Curve(starts, message.s_per_byte, np.where(size > 1, 2.0, 0.0))


def curve_of_rows(
    rates: CollectiveRates, levels: Levels, op: Op, size: ArrayLike, stride: ArrayLike, copies: float = 1.0,
    groups: tuple[int, int] = (1, 1),
) -> Curve:  # fmt: skip
    """The curve of each row's group, [n], computed once per distinct group, and for few rows once and for all.

    Levels may hold arrays [n] where rows are priced under different rates; then every row has its own curve.
    """
    size, stride = np.asarray(size, dtype=np.int64), np.asarray(stride, dtype=np.int64)
    if any(np.ndim(level.bw_bytes_per_s) or np.ndim(level.latency_s) for level in levels):
        return curve(rates, levels, op, size, stride, copies, groups)
    if size.size <= _REMEMBERED:
        code = size << 32 | stride
        return _remembered(rates, levels, op, copies, groups, np.ascontiguousarray(code).tobytes())
    first, inverse = group_rows(np.broadcast_arrays(size, stride))
    of_distinct = curve(rates, levels, op, size[first], stride[first], copies, groups)
    return Curve(of_distinct.latency_s[inverse], of_distinct.s_per_byte[inverse], of_distinct.ramp[inverse])


@lru_cache(maxsize=1 << 14)
def _remembered(
    rates: CollectiveRates, levels: Levels, op: Op, copies: float, groups: tuple[int, int], code: bytes
) -> Curve:
    codes = np.frombuffer(code, dtype=np.int64)
    return curve(rates, levels, op, codes >> 32, codes & 0xFFFFFFFF, copies, groups)


def _hops(op: Op, below: Array, within: Array, depth: int) -> Array:
    """Steps of latency at one level: p2p one; rings domains - 1 (all-reduce twice, or the tree where it is shorter)."""
    domains = np.maximum(np.ceil(within / below), 1.0)
    if op == "p2p":
        return np.ones_like(domains)
    if op != "all_reduce":
        return domains - 1.0  # NCCL broadcasts along its ring too
    tree = np.log2(domains)
    if depth == 0:  # hop_s is fitted on 2, 4, 8 ranks as one up-and-down step per rank
        return np.asarray(np.minimum(domains - 1.0, 2.0 * tree + 1.0))
    return np.asarray(np.minimum(2.0 * (domains - 1.0), 2.0 * tree))


def _ring_slope(
    rates: CollectiveRates, levels: Levels, depth: int, op: Op, n: Array, below: Array, within: Array
) -> Array:
    """Seconds per byte of a ring through all n ranks, at one level: wire bytes over the rings' bandwidth there.

    Innermost: one GPU's link. Above: every member of a domain brings its own share of the links that leave it.
    """
    level, constants = levels[depth], rates.level(levels[depth].kind, depth)
    op_rates = constants.ops[op]
    bandwidth = level.bw_bytes_per_s * _mesh_share(level, within / below, depth) * op_rates.efficiency
    below = np.minimum(below, rates.nics_per_ring) if depth else below
    wire = (n - 1.0 + (op_rates.pair_excess if depth == 0 else 0.0)) / n
    if op == "all_reduce":
        ring = 2.0 * wire / (bandwidth * below)
        if depth and rates.tree_efficiency:  # over two domains a tree sends every byte just once
            tree = 1.0 / (bandwidth * below * rates.tree_efficiency)
            return np.where((within == 2 * below) & (n == within), np.minimum(ring, tree), ring)
        if depth or not constants.switch_efficiency:
            return np.asarray(ring)
        # The switch adds: each GPU sends its data once and receives the sum once, but for its own 1/n share.
        through_switch = (1.0 + 1.0 / within) / (level.bw_bytes_per_s * constants.switch_efficiency)
        return np.asarray(np.minimum(ring, through_switch))
    if op == "broadcast":
        return np.asarray(1.0 / (bandwidth * below))
    return np.asarray(wire / (bandwidth * below))


def _direct_slope(
    rates: CollectiveRates, levels: Levels, depth: int, op: Op, n: Array, below: Array, within: Array, copies: float,
    groups: tuple[int, int],
) -> Array:  # fmt: skip
    """Seconds per byte where every rank talks to its peers itself, over its own share of the link only."""
    level = levels[depth]
    op_rates = rates.level(level.kind, depth).ops[op]
    if op == "p2p":
        one_link = 1.0 / (level.size - 1.0) if level.topology == "mesh" and level.size > 1 else 1.0
        one_link = 0.5 / len(level.torus) if level.torus else one_link
        return np.full(n.shape, 1.0 / (level.bw_bytes_per_s * one_link * op_rates.efficiency))
    bandwidth = level.bw_bytes_per_s * _mesh_share(level, within / below, depth) * op_rates.efficiency
    excess = op_rates.pair_excess if depth == 0 else 0.0
    leaving = (n - below + excess) / n if depth else (within - 1.0 + excess) / n
    if depth:
        leaving = leaving * distinct_share(n / below, copies, groups)
    elif copies > 1:  # what comes from other domains is handed on here; a rank gets one copy for all of its experts
        leaving = (leaving + (n - within) / n * (within - 1.0) / within) * distinct_share(n, copies, groups)
    slope = leaving / bandwidth
    if depth and copies == 1 and "rail-only" in level.kind:
        # No spine: what leaves for another rail, of those that members sit on, goes to the GPU of its node on that rail
        # first and then out (arXiv 2307.12169). Copies handed on where they arrive need not: they stay on their rail.
        node = levels[depth - 1]
        inside = node.bw_bytes_per_s * rates.level(node.kind, depth - 1).ops[op].efficiency
        slope = slope + (n - below) / n * (below - 1.0) / below / inside
    return np.asarray(slope)


def _mesh_share(level: NetworkLevel, group: Array, depth: int) -> Array | float:
    """A full mesh has one link per pair: a group of g uses g-1 of the size-1 links of each GPU (MI300X)."""
    if level.topology != "mesh" or depth or level.size <= 1:
        return 1.0
    return np.clip((group - 1.0) / (level.size - 1.0), 1.0 / (level.size - 1.0), 1.0)
