"""Resident micro-batches of a pipeline device at its peak.

Activations live from F to B, or to I with a split backward pass; the wgrad stash then lives until W. The counts are
those of the orders in orders.py and v_shaped.py; a test compares them.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ..arrays import Array, Ints
from ..degrees import interleaving_group
from ..schedule_kinds import KINDS, SPLITS_BACKWARD, by_code, rows_by_schedule

Moment = list[Array]  # [n] micro-batches held from F to I, of the chunk there and of the one back; of both from I to W


def in_flight(schedule: Ints, pp: Array, vpp: Array, m: Array, device: Array) -> Array:
    """[n] micro-batches whose activations device `device` holds at its peak, in units of all its chunks: those of
    `_IN_FLIGHT`, and never more than there are."""
    columns = np.broadcast_arrays(schedule, pp, vpp, m, device)
    most = np.empty(columns[0].shape)
    for code, rows in rows_by_schedule(columns[0]):
        most[rows] = _IN_FLIGHT[code](*(column[rows] for column in columns[1:]))
    return np.minimum(most, m)


# Of (pp, vpp, m, device). Interleaved: on device 0 p(1 + (p-1)/(p v)) where groups are of p (Megatron-LM
# theoretical_memory_usage.py). ZB-H1 and ZB-V: zero-bubble README. DualPipeV: (2p+1)/2 (DualPipe README, PP = 2p).
_IN_FLIGHT: dict[int, Callable[[Array, Array, Array, Array], Array | float]] = by_code("micro-batches in flight", {
    "1f1b": lambda pp, vpp, m, device: pp - device,
    "gpipe": lambda pp, vpp, m, device: np.inf,
    "interleaved": lambda pp, vpp, m, device: (
        2 * (pp - device - 1) + (vpp - 1) * interleaving_group(pp, m) + 1) / vpp,
    "zb-h1": lambda pp, vpp, m, device: pp,
    "zb-v": lambda pp, vpp, m, device: pp,
    "dualpipe-v": lambda pp, vpp, m, device: pp + 0.5,
})  # fmt: skip


def resident_bytes(
    schedule: Ints, pp: Array, vpp: Array, m: Array, device: Array, saved: Array, wgrad_stash: Array
) -> Array:
    """[2, n] bytes of activations of device `device` at its fullest after an F and after an I. saved, wgrad_stash:
    [2, n] bytes of a micro-batch from F to I, and from I to W (Tables.wgrad_stash), on the chunks of the device but the
    one that a V comes back through, and on that one. Without a split backward pass nothing is there after an I.

    The numbers of micro-batches are those of `resident_moments`.
    """
    resident = np.zeros((2, *np.broadcast(schedule, saved[0]).shape))
    resident[0] = saved.sum(axis=0) * in_flight(schedule, pp, vpp, m, device)
    if not SPLITS_BACKWARD[schedule].any():
        return resident
    schedule, *columns = np.broadcast_arrays(schedule, pp, m, device, *saved, *wgrad_stash)
    for code, rows in rows_by_schedule(schedule):
        if KINDS[code].splits_backward:
            p, number, d, *chunks = (column[rows] for column in columns)
            by_chunk = np.array(chunks)
            resident[:, rows] = [(np.array(counts) * by_chunk).sum(axis=1).max(axis=0)
                             for counts in _MOMENTS[code](p, number, d)]  # fmt: skip
    return resident


def resident_moments(schedule: int, pp: Array, vpp: Array, m: Array, device: Array) -> tuple[Array, Array]:
    """[moment, 4, n] micro-batches (Moment) that devices of one schedule hold at each moment at which they may be
    fullest: after an F, the first with some of every chunk, and after an I. `resident_bytes` is the most of these."""
    if KINDS[schedule].splits_backward:
        after_f, after_i = _MOMENTS[schedule](pp, m, device)
        return np.array(after_f), np.array(after_i)
    held = in_flight(np.full(device.shape, schedule), pp, vpp, m, device)
    none = np.zeros_like(held)
    return np.array([[held, held, none, none]]), np.zeros((0, 4, *held.shape))


def _moments_of_h1(p: Array, m: Array, d: Array) -> tuple[list[Moment], list[Moment]]:
    """A device of zb-h1 holds (from F to I, from I to W): p-d, d after an F and p-d-1, d+1 after an I, and as many as
    are put off where d+1 is more than there are."""
    most = np.minimum(p, m)
    late = np.maximum(most - (p - d), 0.0)

    def after(number: Array) -> Moment:
        return [most - number, most - number, number, number]

    return [after(late)], [after(late + 1), after(np.minimum(d + 1, most))]


def _moments_of_zb_v(p: Array, m: Array, d: Array) -> tuple[list[Moment], list[Moment]]:
    """Full: (2p-1-d, d+1, 0, 0). As a device of zb-v drains, no chunk that comes back waits for I any more:
    (p-1-d, 0, d+1, d+1). From there on two I of the chunk there follow for a W of each chunk. With m < 2p the W wait
    longer, for which this is an upper bound."""
    none, short = np.zeros_like(m), m < 2 * p
    there, back = np.minimum(2 * p - d - 1, m), np.minimum(d + 1, m)
    put_off = np.clip(2 * p - there - back, 0.0, m - back)
    runs_on = 1.0 * (m > there)
    back_put_off = np.minimum(np.maximum(d + 1, 2 * p - m), m)
    pace, waiting_for_i = np.where(short, 1, 2), np.where(short, m - back, p - d)
    # Some I of the chunk there may come before the last F of the other, with their W put off.
    early = np.where(short, np.clip(m - p, 0.0, there), 0.0)

    def turned(number: Array) -> Moment:
        """After `number` more W of the chunk that comes back."""
        waits = np.where(short | (number > 0), waiting_for_i - pace * number, p - 1 - d)
        return [waits, none, back + number, back_put_off - number]

    most = np.minimum(np.minimum(waiting_for_i // pace, back_put_off), m - back)
    after_f = [
        [there, back, none, put_off],
        [there, back - runs_on, runs_on, put_off],
        [there - early, back, early, put_off],
    ]
    after_i = [
        [there, back - 1, none, put_off + 1],
        [there - 1, back - 1, none + 1, put_off + 1],
        turned(none),
        turned(np.minimum(most, 1.0)),
        turned(most),
        [np.minimum(p - d, m - back + 1), none, back - 1, back_put_off],
    ]
    return after_f, after_i


def _moments_of_dualpipe_v(p: Array, m: Array, d: Array) -> tuple[list[Moment], list[Moment]]:
    """Full: (2p-d, d+1, 0, 0). As a device drains, half as many as in zb-v wait for W: it runs an I and its W as one
    until then. The last device turns, so it never has an I with its W put off while it is full."""
    none = np.zeros_like(m)
    there, back = np.minimum(2 * p - d, m), np.minimum(d + 1, m)
    late, back_late = np.ceil((d + 1) / 2), np.floor((d + 1) / 2)
    waiting_for_i = p - d - (d % 2 == 0)

    def turned(number: Array) -> Moment:
        """After `number` more W of the chunk that comes back."""
        return [np.where(number > 0, waiting_for_i - 2 * number, p - 1 - d), none, late + number, back_late - number]

    most = np.minimum(np.minimum(waiting_for_i // 2, back_late), m - late)
    first = [np.where(d == p - 1, 0.0, count) for count in (np.minimum(2 * p - 1 - d, m), back - 1, none, none + 1)]
    before_i = [np.minimum(p - d, m - late + 1), none, late - 1, back_late]
    # The last keeps bytes from below zero, where layers of several kinds are recomputed by their mean.
    after_i = [first, turned(none), turned(np.minimum(most, 1.0)), turned(most), before_i, [none] * 4]
    return [[there, back, none, none]], after_i


# Of (pp, m, device), where I and W come apart: all moments at which the device may be fullest, after an F and after an
# I. Which of them is fullest depends on how the bytes of its two chunks, and of a wgrad stash, compare.
_MOMENTS: dict[int, Callable[[Array, Array, Array], tuple[list[Moment], list[Moment]]]] = by_code(
    "memory moments",
    {"zb-h1": _moments_of_h1, "zb-v": _moments_of_zb_v, "dualpipe-v": _moments_of_dualpipe_v},
    among=tuple(kind for kind in KINDS if kind.splits_backward),
)
