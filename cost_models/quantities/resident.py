"""What a device of a pipeline holds of its micro-batches when it is fullest.

Activations live from F to B or, where the backward pass is split, to I; what the products for the weights need then
waits for W. The counts are those of the orders of orders.py and v_shaped.py; a test compares.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..arrays import Array
from ..layouts import SCHEDULES, V_SCHEDULES

Moment = list[Array]  # [n] micro-batches held from F to I, of the chunk there and of the one back; of both from I to W
_CODE = {name: i for i, name in enumerate(SCHEDULES)}


def in_flight(schedule: NDArray[np.int64], pp: Array, vpp: Array, m: Array, device: Array) -> Array:
    """Micro-batches whose activations device `device` holds at its peak, in units of all its chunks.

    gpipe m; 1f1b min(m, p-i); interleaved min(m v, 2(p-i-1) + (v-1)p + 1)/v (stage 0: p(1 + (p-1)/(p v)), Megatron-LM
    theoretical_memory_usage.py); zb-h1 and zb-v p (zero-bubble README); dualpipe-v (2p+1)/2 (DualPipe README, PP = 2p).
    """
    one_f_one_b = pp - device
    held = np.where(schedule == _CODE["gpipe"], m, one_f_one_b)
    held = np.where(schedule == _CODE["interleaved"], (2 * (one_f_one_b - 1) + (vpp - 1) * pp + 1) / vpp, held)
    held = np.where((schedule == _CODE["zb-h1"]) | (schedule == _CODE["zb-v"]), pp, held)
    held = np.where(schedule == _CODE["dualpipe-v"], pp + 0.5, held)
    return np.asarray(np.minimum(held, m))


def resident_bytes(
    schedule: NDArray[np.int64], pp: Array, vpp: Array, m: Array, device: Array, saved: Array, waiting: Array
) -> Array:
    """[2, n] bytes of activations of device `device` at its fullest after an F and after an I. saved, waiting: [2, n]
    bytes of a micro-batch from F to I, and from I to W (Tables.waiting), of a device's chunks: of the one that a V
    comes back through, and of all others. Without a split backward pass nothing is there after an I.

    The numbers of micro-batches are those of `moments_held`.
    """
    held = np.zeros((2, *np.broadcast(schedule, saved[0]).shape))
    held[0] = saved.sum(axis=0) * in_flight(schedule, pp, vpp, m, device)
    columns = np.broadcast_arrays(schedule, pp, m, device, saved[0], saved[1], waiting[0], waiting[1])
    for rows, moments_of in ((schedule == _CODE["zb-h1"], _moments_of_h1), (schedule >= _CODE["zb-v"], _moments_of_v)):
        some = np.broadcast_to(rows, held[0].shape)
        if some.any():
            code, p, number, d, *chunks = (column[some] for column in columns)
            by_chunk = np.array(chunks)
            held[:, some] = [(np.array(counts) * by_chunk).sum(axis=1).max(axis=0)
                             for counts in moments_of(code == _CODE["dualpipe-v"], p, number, d)]  # fmt: skip
    return held


def moments_held(schedule: str, pp: Array, vpp: Array, m: Array, device: Array) -> tuple[Array, Array]:
    """[moment, 4, n] micro-batches (Moment) that devices of one schedule hold at each moment at which they may be
    fullest: after an F, the first with some of every chunk, and after an I. `held_bytes` is the most of these."""
    if schedule == "zb-h1" or schedule in V_SCHEDULES:
        moments_of = _moments_of_h1 if schedule == "zb-h1" else _moments_of_v
        after_f, after_i = moments_of(np.full(device.shape, schedule == "dualpipe-v"), pp, m, device)
        return np.array(after_f), np.array(after_i)
    held = in_flight(np.full(device.shape, _CODE[schedule]), pp, vpp, m, device)
    none = np.zeros_like(held)
    return np.array([[held, held, none, none]]), np.zeros((0, 4, *held.shape))


def _moments_of_h1(pairs: NDArray[np.bool_], p: Array, m: Array, d: Array) -> tuple[list[Moment], list[Moment]]:
    """What a device of zb-h1 holds (from F to I, from I to W): p-d, d after an F and p-d-1, d+1 after an I, and as many
    as are put off where d+1 is more than there are."""
    most = np.minimum(p, m)
    late = np.maximum(most - (p - d), 0.0)

    def after(number: Array) -> Moment:
        return [most - number, most - number, number, number]

    return [after(late)], [after(late + 1), after(np.minimum(d + 1, most))]


def _moments_of_v(pairs: NDArray[np.bool_], p: Array, m: Array, d: Array) -> tuple[list[Moment], list[Moment]]:
    """What a device of zb-v, or of dualpipe-v (pairs), holds at each moment at which it may be fullest: after an F,
    and after an I. A moment is four numbers of micro-batches: of the chunk there from F to I, of the chunk back, of the
    two from I to W.

    Full: (2p-1-d, d+1, 0, 0), in dualpipe-v (2p-d, d+1, 0, 0). As it drains no chunk that comes back waits for I any
    more: (p-1-d, 0, d+1, d+1), in dualpipe-v half as many wait for W. From there on two I of the chunk there follow
    for a W of each chunk. With m < 2p the W of zb-v wait longer, for which this is an upper bound.
    """
    none, short = np.zeros_like(m), ~pairs & (m < 2 * p)
    there, back = np.minimum(2 * p - d - ~pairs, m), np.minimum(d + 1, m)
    put_off = np.where(pairs, 0.0, np.clip(2 * p - there - back, 0.0, m - back))
    runs_on = 1.0 * (m > there)
    full, before_w = [there, back, none, put_off], [there, back - runs_on * ~pairs, runs_on * ~pairs, put_off]
    first = [np.minimum(2 * p - 1 - d, m), back - 1, none, put_off + 1]
    first = [np.where(pairs & (d == p - 1), 0.0, each) for each in first]
    second = [np.where(pairs, 0.0, each) for each in (there - 1, back - 1, none + 1, put_off + 1)]
    late = np.where(pairs, np.ceil((d + 1) / 2), back)
    late_back = np.where(pairs, np.floor((d + 1) / 2), np.minimum(np.maximum(d + 1, 2 * p - m), m))
    pace, left = np.where(short, 1, 2), np.where(short, m - late, p - d - (pairs & (d % 2 == 0)))

    def turned(number: Array) -> Moment:
        """After `number` more W of the chunk that comes back."""
        waits = np.where(short | (number > 0), left - pace * number, p - 1 - d)
        return [waits, none, late + number, late_back - number]

    most = np.minimum(np.minimum(left // pace, late_back), m - late)
    draining = [turned(none), turned(np.minimum(most, 1.0)), turned(most)]
    before_i = [np.minimum(p - d, m - late + 1), none, late - 1, late_back]
    # Some I of the chunk there may come before the last F of the other, with their W put off.
    early = np.where(short, np.clip(m - p, 0.0, there), 0.0)
    return [full, before_w, [there - early, back, early, put_off]], [first, second, *draining, before_i]


def splits_backward(schedule: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Schedules whose I and W come apart."""
    return np.asarray(schedule >= _CODE["zb-h1"])
