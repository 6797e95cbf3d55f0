"""Which layers sit on which pipeline stage, and how many micro-batches each stage holds.

A split is described by its distinct *profiles*: devices with the same layer counts and the same embedding and head
share one, so a pipeline of 64 stages is priced from about four rows. The profile keeps the first device that has it,
which holds the most micro-batches in flight.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import NDArray

from .layouts import SCHEDULES, V_SCHEDULES

Array = NDArray[np.float64]


def chunk_sizes(num_layers: int, num_chunks: int) -> list[int]:
    """Layers per chunk, as even as possible; the chunks in the middle take the remainder.

    The first and the last chunk also hold the embedding and the head, so they are the last to get an extra layer.
    """
    base, extra = divmod(num_layers, num_chunks)
    middle_first = sorted(range(num_chunks), key=lambda i: (abs(2 * i - (num_chunks - 1)), i))
    longer = set(middle_first[:extra])
    return [base + (i in longer) for i in range(num_chunks)]


def chunk_devices(pp: int, vpp: int, schedule: str) -> list[int]:
    """Device of each chunk in the order of the layers: round robin, or there and back for the V schedules."""
    if schedule in V_SCHEDULES:
        return [*range(pp), *reversed(range(pp))]
    return [chunk % pp for chunk in range(pp * vpp)]


@dataclass(frozen=True)
class Splits:
    """Profiles of a set of (pp, vpp, V-shaped?) splits, padded to the same number J of profiles.

    counts: [split, J, kind] layers (or embedding, head, MTP) per device; first: [split, J] lowest device index with
    that profile; devices: [split, J] how many have it (0: padding); total: [split, kind]. redone: [split, J, kind]
    layers under recompute, where they are chosen stage by stage; None: as the layout says, in every stage alike.
    last: [split, J] highest device index with the profile; None: there is no other. least: a profile stands for any of
    the devices from one to the other, and needs what the one that holds least does.
    """

    counts: Array
    first: Array
    devices: Array
    total: Array
    redone: Array | None = None
    last: Array | None = None
    least: bool = False

    @cached_property
    def layers(self) -> Array:
        """[split, J] decoder layers per device."""
        return np.asarray(self.counts[:, :, :-EXTRA_KINDS].sum(axis=2))


# The last columns of `counts`, from the end: embedding, head, MTP (projection and its run of the head), and the copy of
# the embedding that the last stage holds where it is not the first one too (tied head, MTP input).
EXTRA_KINDS = 4
EMBEDDING, HEAD, MTP, EMBEDDING_COPY = -4, -3, -2, -1


@dataclass(frozen=True, slots=True)
class Edges:
    """What the ends of the model add to a split: MTP modules, and a head tied to the embedding."""

    mtp_layers: int
    tied: bool


@lru_cache(maxsize=4096)
def _profiles(
    pattern: tuple[int, ...], num_kinds: int, edges: Edges, pp: int, vpp: int, schedule: str
) -> tuple[Array, NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], Array]:
    """Distinct rows of a split, the first and last device of each, how many have it, and the sum over devices."""
    rows = split_rows(pattern, num_kinds, edges, pp, vpp, schedule)
    distinct, first, devices = np.unique(rows, axis=0, return_index=True, return_counts=True)
    _, from_the_end = np.unique(rows[::-1], axis=0, return_index=True)
    return distinct, first, pp - 1 - from_the_end, devices, rows.sum(axis=0)


def split_rows(
    pattern: Sequence[int],
    num_kinds: int,
    edges: Edges,
    pp: int,
    vpp: int,
    schedule: str,
    sizes: Sequence[int] | None = None,
) -> Array:
    """[pp, num_kinds + EXTRA_KINDS] counts of one split. MTP modules sit beside the head.

    sizes: layers of each chunk in the order of the model; None: `chunk_sizes`.
    """
    rows = np.zeros((pp, num_kinds + EXTRA_KINDS))
    start = 0
    devices = chunk_devices(pp, vpp, schedule)
    for device, size in zip(devices, sizes or chunk_sizes(len(pattern), len(devices)), strict=True):
        for kind in pattern[start : start + size]:
            rows[device, kind] += 1
        start += size
    rows[devices[0], EMBEDDING] += 1
    rows[devices[-1], HEAD] += 1
    rows[devices[-1], MTP] += edges.mtp_layers
    rows[devices[-1], pattern[-1]] += edges.mtp_layers
    if devices[0] != devices[-1] and (edges.tied or edges.mtp_layers):
        rows[devices[-1], EMBEDDING_COPY] += 1
    return rows


def build_splits(
    pattern: Sequence[int], num_kinds: int, edges: Edges, keys: Sequence[tuple[int, int, str]]
) -> Splits:
    """Splits for each (pp, vpp, schedule) of `keys`."""
    found = [_profiles(tuple(pattern), num_kinds, edges, *key) for key in keys]
    profiles, firsts, lasts, shared_by, totals = zip(*found, strict=True)
    width = max(len(rows) for rows in profiles)
    counts = np.zeros((len(keys), width, num_kinds + EXTRA_KINDS))
    first_device, last_device, devices = np.zeros((3, len(keys), width))
    for i, (rows, first, last, number) in enumerate(zip(profiles, firsts, lasts, shared_by, strict=True)):
        counts[i, : len(rows)] = rows
        counts[i, len(rows) :] = rows[-1]  # padding repeats a real profile: maxima do not change
        first_device[i, : len(rows)] = first
        first_device[i, len(rows) :] = first[-1]
        last_device[i, : len(rows)] = last
        last_device[i, len(rows) :] = last[-1]
        devices[i, : len(rows)] = number
    return Splits(counts, first_device, devices, np.array(totals), last=last_device)


def mean_splits(
    pattern: Sequence[int], num_kinds: int, edges: Edges, keys: Sequence[tuple[int, int, str]]
) -> Splits:
    """Splits for each (pp, vpp, schedule) of `keys` into equal parts, of fractions of layers: one profile, which holds
    what the last or the first device does, whichever is less. No split into layers has a lesser maximum of what is
    linear."""
    total = np.array([split_rows(pattern, num_kinds, edges, *key).sum(axis=0) for key in keys])
    pp = np.array([[float(key[0])] for key in keys])
    return Splits((total / pp)[:, None], pp - 1.0, pp, total, last=np.zeros_like(pp), least=True)


@dataclass(frozen=True, slots=True)
class Partition:
    """Stages of one's own. sizes: layers of each chunk in the order of the model. redone: how many of them, the first
    ones, are fully recomputed; None: what the layout says, in every stage alike."""

    sizes: tuple[int, ...]
    redone: tuple[int, ...] | None = None


def chunk_rows(
    pattern: Sequence[int], num_kinds: int, edges: Edges, pp: int, vpp: int, schedule: str, sizes: Sequence[int]
) -> Array:
    """[chunk, num_kinds + EXTRA_KINDS] counts of each chunk, in the order of the model."""
    devices = chunk_devices(pp, vpp, schedule)
    rows = split_rows(pattern, num_kinds, edges, len(devices), 1, "1f1b", sizes)
    if devices[0] == devices[-1]:
        rows[-1, EMBEDDING_COPY] = 0.0
    return rows


def redone_by_layout(sizes: Sequence[int], devices: Sequence[int], layers: int) -> list[int]:
    """Layers of each chunk under full recompute of the first `layers` layers of every stage."""
    left, out = dict.fromkeys(devices, layers), []
    for size, device in zip(sizes, devices, strict=True):
        out.append(min(size, left[device]))
        left[device] -= out[-1]
    return out


def redone_rows(pattern: Sequence[int], num_kinds: int, edges: Edges, partition: Partition) -> Array:
    """[chunk, num_kinds + EXTRA_KINDS] layers under recompute; those of MTP modules where all beside the head are.
    `partition.redone` must be given."""
    rows, start = np.zeros((len(partition.sizes), num_kinds + EXTRA_KINDS)), 0
    for chunk, (size, redone) in enumerate(zip(partition.sizes, partition.redone or (), strict=True)):
        for kind in pattern[start : start + redone]:
            rows[chunk, kind] += 1
        start += size
    if partition.redone and 0 < partition.sizes[-1] == partition.redone[-1]:
        rows[-1, pattern[-1]] += edges.mtp_layers
    return rows


def on_devices(rows: Array, devices: Sequence[int]) -> Array:
    """Sums over the chunks of each device: [chunk, ...] -> [device, ...]."""
    out = np.zeros((max(devices) + 1, *rows.shape[1:]))
    np.add.at(out, list(devices), rows)
    return out


def own_splits(
    pattern: Sequence[int], num_kinds: int, edges: Edges, pp: int, vpp: int, schedule: str, partition: Partition
) -> Splits:
    """The split of one layout, every device a profile of its own: profile j is device j."""
    devices = chunk_devices(pp, vpp, schedule)
    rows = on_devices(chunk_rows(pattern, num_kinds, edges, pp, vpp, schedule, partition.sizes), devices)
    redone = None
    if partition.redone is not None:
        redone = on_devices(redone_rows(pattern, num_kinds, edges, partition), devices)[None]
    number = np.arange(pp, dtype=np.float64)[None]
    return Splits(rows[None], number, np.ones_like(number), rows.sum(axis=0)[None], redone)


def in_flight(schedule: NDArray[np.int64], pp: Array, vpp: Array, m: Array, device: Array) -> Array:
    """Micro-batches whose activations device `device` holds at its peak, in units of all its chunks.

    gpipe m; 1f1b min(m, p-i); interleaved min(m v, 2(p-i-1) + (v-1)p + 1)/v (stage 0: p(1 + (p-1)/(p v)), Megatron-LM
    theoretical_memory_usage.py); zb-h1 and zb-v p (zero-bubble README); dualpipe-v (2p+1)/2 (DualPipe README, PP = 2p).
    """
    code = {name: i for i, name in enumerate(SCHEDULES)}
    one_f_one_b = pp - device
    held = np.where(schedule == code["gpipe"], m, one_f_one_b)
    held = np.where(schedule == code["interleaved"], (2 * (one_f_one_b - 1) + (vpp - 1) * pp + 1) / vpp, held)
    held = np.where((schedule == code["zb-h1"]) | (schedule == code["zb-v"]), pp, held)
    held = np.where(schedule == code["dualpipe-v"], pp + 0.5, held)
    return np.asarray(np.minimum(held, m))


def held_bytes(
    schedule: NDArray[np.int64], pp: Array, vpp: Array, m: Array, device: Array, saved: Array, waiting: Array
) -> Array:
    """[2, ...] bytes of activations of device `device` at its fullest after an F and after an I: of `saved` bytes per
    micro-batch, all its chunks together, and `waiting` bytes of one between I and W (Tables.waiting). Without a split
    backward pass the second is 0.

    (micro-batches held from F to I, from I to W), out of the orders of schedule_orders.py and schedule_v.py: zb-h1
    (p-d, d) and (p-d-1, d+1); zb-v (p, 0) and (p-1, 1), or ((p-d-1)/2, d+1) as it drains; dualpipe-v (p+1/2, 0) and
    (p-1/2, 1/2), or ((p-d-1)/2, (d+1)/2).
    """
    held = np.zeros((2, *np.broadcast(schedule, saved).shape))
    held[0] = saved * in_flight(schedule, pp, vpp, m, device)
    apart = splits_backward(schedule)
    if apart.any():
        columns = np.broadcast_arrays(schedule, pp, m, device, saved, waiting, held[0])
        held[:, apart] = _held_apart(*(column[apart] for column in columns))
    return held


def _held_apart(
    schedule: NDArray[np.int64], pp: Array, m: Array, device: Array, saved: Array, waiting: Array, forward: Array
) -> Array:
    """`held_bytes` under schedules whose backward pass is split. forward: what is held where nothing waits."""
    code = {name: i for i, name in enumerate(SCHEDULES)}
    late, most = device + 1, np.minimum(pp, m)

    def handed_over(number: Array) -> Array:
        number = np.minimum(number, most)
        return (most - number) * saved + number * waiting

    forward = np.where(schedule == code["zb-h1"], handed_over(late - 1), forward)
    draining = np.maximum(np.minimum((pp - late) / 2, m - np.minimum(late, m)), 0.0) * saved
    of_v = np.maximum(handed_over(np.ones_like(pp)), draining + np.minimum(late, m) * waiting)
    of_pairs = np.maximum(np.minimum(pp, m) - 0.5, (pp - late) / 2) * saved + 0.5 * waiting
    of_pairs = np.maximum(of_pairs, (pp - late) / 2 * saved + late / 2 * waiting)
    split = [schedule == code[name] for name in ("zb-h1", "zb-v", "dualpipe-v")]
    return np.array([forward, np.select(split, [handed_over(late), of_v, of_pairs], 0.0)])


def splits_backward(schedule: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Schedules whose I and W come apart."""
    return np.asarray(schedule >= SCHEDULES.index("zb-h1"))
