"""The layers of each pipeline stage, and its number of resident micro-batches.

A split is described by its distinct *profiles*: devices with the same layer counts and the same embedding and head
share one, so a pipeline of 64 stages is priced from about four rows. The profile keeps the first device that has it,
which holds the most micro-batches in flight.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from ..arrays import Array
from ..layouts import Layout
from ..schedule_kinds import KINDS
from .even_stages import Edges, even_sizes

SplitKey = tuple[int, int, bool]  # (pp, vpp, whether the chunks are folded in a V): all that a split depends on


def chunk_devices(pp: int, vpp: int, folded: bool) -> list[int]:
    """Device of each chunk in the order of the layers: round robin, or there and back in a V."""
    if folded:
        return [*range(pp), *reversed(range(pp))]
    return [chunk % pp for chunk in range(pp * vpp)]


def chunks_per_stage(layout: Layout) -> int:
    return layout.vpp if layout.pp > 1 else 1


def is_folded(layout: Layout) -> bool:
    """Whether the layout is V-shaped, with two chunks per stage."""
    return KINDS[layout.schedule].folded


def devices_of(layout: Layout) -> list[int]:
    """Device of each chunk, in the order of the model."""
    return chunk_devices(layout.pp, chunks_per_stage(layout), is_folded(layout))


@dataclass(frozen=True)
class Splits:
    """Profiles of a set of (pp, vpp, folded) splits, padded to the same number J of profiles."""

    counts: Array  # [split, J, kind] layers, embeddings, heads, MTP modules per device
    first: Array  # [split, J] lowest device with the profile
    devices: Array  # [split, J] how many devices have it, 0: padding
    total: Array  # [split, kind] over all devices
    # [split, J, kind] layers under recompute where stages differ in it, None: every stage as the layout has it
    recomputed: Array | None = None
    last: Array | None = None  # [split, J] highest device with the profile, None: every device has one of its own
    # A profile stands for any device from `first` to `last`, and needs what the one that holds least does.
    is_bound: bool = False
    # A profile is a single item, and the caller adds items up: matrices count as if they could be cut.
    adds_up: bool = False
    # [split, J, kind] the part of `counts` on the chunk that a V comes back through, None: no split is folded. It holds
    # other numbers of micro-batches than the chunk there (resident.py).
    back: Array | None = None
    recomputed_back: Array | None = None  # [split, J, kind] the part of `recomputed` on that chunk

    @cached_property
    def layers(self) -> Array:
        """[split, J] decoder layers per device."""
        return np.asarray(self.counts[:, :, :-EXTRA_KINDS].sum(axis=2))


# The last columns of `counts`, from the end: embedding, head, MTP (projection and its run of the head), and the copy of
# the embedding that the last stage holds where it is not the first one too (tied head, MTP input).
EXTRA_KINDS = 4
EMBEDDING, HEAD, MTP, EMBEDDING_COPY = -4, -3, -2, -1


@lru_cache(maxsize=4096)
def _profiles(
    pattern: tuple[int, ...], num_kinds: int, edges: Edges, pp: int, vpp: int, folded: bool,
    sizes: tuple[int, ...] | None,
) -> tuple[Array, Array, NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], Array]:
    """Distinct rows of a split and what of them comes back through a V, the first and last device of each, how many
    have it, and the sum over devices."""
    rows = split_rows(pattern, num_kinds, edges, pp, vpp, folded, sizes)
    back = back_rows(pattern, num_kinds, edges, pp, folded, sizes)
    both = np.hstack([rows, back])
    distinct, first, devices = np.unique(both, axis=0, return_index=True, return_counts=True)
    _, from_the_end = np.unique(both[::-1], axis=0, return_index=True)
    return *np.hsplit(distinct, 2), first, pp - 1 - from_the_end, devices, rows.sum(axis=0)


def split_rows(
    pattern: Sequence[int],
    num_kinds: int,
    edges: Edges,
    pp: int,
    vpp: int,
    folded: bool,
    sizes: Sequence[int] | None = None,
) -> Array:
    """[pp, num_kinds + EXTRA_KINDS] counts of one split. MTP modules sit beside the head.

    sizes: layers of each chunk in the order of the model; None: `even_sizes`.
    """
    rows = np.zeros((pp, num_kinds + EXTRA_KINDS))
    start = 0
    devices = chunk_devices(pp, vpp, folded)
    sizes = sizes or even_sizes(pattern, edges, len(devices))
    for device, size in zip(devices, sizes, strict=True):
        for kind in pattern[start : start + size]:
            rows[device, kind] += 1
        start += size
    holders = [devices[_chunk_of(layer, sizes)] for layer in edges.lookups]
    rows[holders[0], EMBEDDING] += 1
    rows[devices[-1], HEAD] += 1
    rows[devices[-1], MTP] += edges.mtp_layers
    for kind in edges.mtp:
        rows[devices[-1], kind] += 1
    copies = {*holders[1:], *(devices[-1:] if edges.tied or edges.mtp_layers else ())} - {holders[0]}
    rows[list(copies), EMBEDDING_COPY] += 1
    return rows


def _chunk_of(layer: int, sizes: Sequence[int]) -> int:
    """The chunk of a layer: the first one for the first layer, even if it holds none."""
    ends = list(accumulate(sizes))
    return next((chunk for chunk, end in enumerate(ends) if layer < end), len(ends) - 1) if layer else 0


def build_splits(
    pattern: Sequence[int], num_kinds: int, edges: Edges, keys: Sequence[SplitKey],
    given: tuple[int, ...] | None = None,
) -> Splits:  # fmt: skip
    """Splits for each of `keys`. given: layers of each chunk, for keys of as many chunks."""
    return _even_splits(tuple(pattern), num_kinds, edges, tuple(keys), given)


@lru_cache(maxsize=256)  # batches of a search that follow one another have mostly the same splits
def _even_splits(
    pattern: tuple[int, ...], num_kinds: int, edges: Edges, keys: tuple[SplitKey, ...], given: tuple[int, ...] | None
) -> Splits:
    splits = [_profiles(pattern, num_kinds, edges, *key, given if _fits(given, key) else None) for key in keys]
    profiles, coming_back, firsts, lasts, shared_by, totals = zip(*splits, strict=True)
    width = max(len(rows) for rows in profiles)
    counts, back = np.zeros((2, len(keys), width, num_kinds + EXTRA_KINDS))
    first_device, last_device, devices = np.zeros((3, len(keys), width))
    for i, (rows, mine, first, last, number) in enumerate(
        zip(profiles, coming_back, firsts, lasts, shared_by, strict=True)
    ):
        counts[i, : len(rows)], back[i, : len(rows)] = rows, mine
        counts[i, len(rows) :], back[i, len(rows) :] = rows[-1], mine[-1]  # padding repeats a real profile: maxima stay
        first_device[i, : len(rows)] = first
        first_device[i, len(rows) :] = first[-1]
        last_device[i, : len(rows)] = last
        last_device[i, len(rows) :] = last[-1]
        devices[i, : len(rows)] = number
    return Splits(counts, first_device, devices, np.array(totals), last=last_device, back=back if back.any() else None)


def _fits(given: tuple[int, ...] | None, key: SplitKey) -> bool:
    pp, vpp, folded = key
    return given is not None and len(given) == pp * (2 if folded else vpp)


def mean_splits(pattern: Sequence[int], num_kinds: int, edges: Edges, keys: Sequence[SplitKey]) -> Splits:
    """Splits for each of `keys` into equal parts, of fractions of layers: one profile, which holds the activations of
    the last or the first device, whichever are less.

    No split into layers has a lesser maximum of a linear quantity. In a V as many layers come back as go there, the
    most that the integer program of the stages allows: they are resident for fewer micro-batches than the others.
    """
    total = np.array([split_rows(pattern, num_kinds, edges, *key).sum(axis=0) for key in keys])
    pp = np.array([[float(key[0])] for key in keys])
    counts = (total / pp)[:, None]
    folded = np.array([key[2] for key in keys])
    coming = counts * np.where(np.arange(counts.shape[2]) < num_kinds, 0.5, 1.0)
    back = np.where(folded[:, None, None], coming, 0.0) if folded.any() else None
    return Splits(counts, pp - 1.0, pp, total, last=np.zeros_like(pp), is_bound=True, back=back)


@dataclass(frozen=True, slots=True)
class Partition:
    """A custom partition of the layers into stages."""

    sizes: tuple[int, ...]  # [chunk] layers, in the order of the model
    recomputed: tuple[int, ...] | None = None  # [chunk] how many of them, the first ones, are; None: as the layout says


def chunk_rows(
    pattern: Sequence[int], num_kinds: int, edges: Edges, pp: int, vpp: int, folded: bool, sizes: Sequence[int]
) -> Array:
    """[chunk, num_kinds + EXTRA_KINDS] counts of each chunk, in the order of the model."""
    devices = chunk_devices(pp, vpp, folded)
    rows = split_rows(pattern, num_kinds, edges, len(devices), 1, False, sizes)
    holders = {device for device, row in zip(devices, rows, strict=True) if row[EMBEDDING]}
    for chunk in np.flatnonzero(rows[:, EMBEDDING_COPY]).tolist():
        if devices[chunk] in holders:
            rows[chunk, EMBEDDING_COPY] = 0.0
        holders.add(devices[chunk])
    return rows


def back_rows(
    pattern: Sequence[int], num_kinds: int, edges: Edges, pp: int, folded: bool, sizes: Sequence[int] | None = None
) -> Array:
    """[pp, num_kinds + EXTRA_KINDS] what of `split_rows` is on the chunk that a V comes back through; else nothing."""
    if not folded:
        return np.zeros((pp, num_kinds + EXTRA_KINDS))
    sizes = sizes or even_sizes(pattern, edges, 2 * pp)
    return chunk_rows(pattern, num_kinds, edges, pp, 2, folded, sizes)[: pp - 1 : -1]


def recomputed_by_layout(sizes: Sequence[int], devices: Sequence[int], layers: int) -> list[int]:
    """Layers of each chunk under full recompute of the first `layers` layers of every stage."""
    remaining, out = dict.fromkeys(devices, layers), []
    for size, device in zip(sizes, devices, strict=True):
        out.append(min(size, remaining[device]))
        remaining[device] -= out[-1]
    return out


def recomputed_rows(pattern: Sequence[int], num_kinds: int, edges: Edges, partition: Partition) -> Array:
    """[chunk, num_kinds + EXTRA_KINDS] layers under recompute; those of MTP modules where all beside the head are;
    a vision tower where a layer beside it is, or where it has none beside it and some stage recomputes.
    `partition.recomputed` must be given."""
    rows, start = np.zeros((len(partition.sizes), num_kinds + EXTRA_KINDS)), 0
    for chunk, (size, recomputed) in enumerate(zip(partition.sizes, partition.recomputed or (), strict=True)):
        for kind in pattern[start : start + recomputed]:
            rows[chunk, kind] += 1
        start += size
    if partition.recomputed and 0 < partition.sizes[-1] == partition.recomputed[-1]:
        for kind in edges.mtp:
            rows[-1, kind] += 1
    tower_alone = partition.sizes[0] == 0 and any(partition.recomputed or ())
    if edges.tower is not None and (tower_alone or (partition.recomputed and partition.recomputed[0])):
        rows[0, EMBEDDING] = 1
    return rows


def on_devices(rows: Array, devices: Sequence[int]) -> Array:
    """Sums over the chunks of each device: [chunk, ...] -> [device, ...]."""
    out = np.zeros((max(devices) + 1, *rows.shape[1:]))
    np.add.at(out, list(devices), rows)
    return out


def custom_splits(
    pattern: Sequence[int], num_kinds: int, edges: Edges, pp: int, vpp: int, folded: bool, partition: Partition
) -> Splits:
    """The split of one layout, every device a profile of its own: profile j is device j."""
    devices = chunk_devices(pp, vpp, folded)

    def by_device(chunks: Array) -> tuple[Array, Array | None]:
        """[1, device, kind] sums, and the part of them that comes back."""
        return on_devices(chunks, devices)[None], chunks[: pp - 1 : -1][None] if folded else None

    rows, back = by_device(chunk_rows(pattern, num_kinds, edges, pp, vpp, folded, partition.sizes))
    recomputed = recomputed_back = None
    if partition.recomputed is not None:
        recomputed, recomputed_back = by_device(recomputed_rows(pattern, num_kinds, edges, partition))
    number = np.arange(pp, dtype=np.float64)[None]
    return Splits(rows, number, np.ones_like(number), rows[0].sum(axis=0)[None], recomputed, back=back,
                  recomputed_back=recomputed_back)  # fmt: skip
