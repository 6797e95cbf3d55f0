"""Long runs: the middle of a schedule is run until two periods agree to the last bit, and the rest is shifted.

The order repeats: between its beginning and its end a device runs the same operations every period, on later
micro-batches. A shorter schedule with fewer periods is run. In it a *cut* is a set of first operations of every device
that is closed: all they wait for is in it. If every operation that anything from one period before the cut onwards
waits for ends exactly k periods after its counterpart, plus one constant, then inserting k periods at the cut shifts
all that follows by that constant: each inserted operation sees the same inputs as its counterpart, later by the
constant. Sums are exact (engine.py), so `exactly` means to the last bit, and the result is the full run's.
A link may fall behind unseen for long, so messages sent must have waited for it as long as their counterparts, too.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ...errors import InputError
from ..arrays import Array, Ints
from .costs import Costs
from .engine import Work, prepare, run
from .orders import F, Schedule, Steady, find_steady, resized, steady

_MOST_PERIODS = 64  # longest time pattern looked for, in periods of the order


def run_repeating(schedule: Schedule, work: Work, costs: Costs) -> tuple[Array, Array, int]:
    """(end of each operation, waits as of `run`, operations not run). Runs everything where no steady state is found in
    half of it."""
    repeats = find_steady(schedule)
    if repeats is None:
        return *run(schedule, work, costs), 0
    have = int(((repeats.end - repeats.begin) // repeats.length).min()) - 1
    keep = 4 + 3 * -(-schedule.num_devices // repeats.period)
    while 2 * keep < have:
        repeated_run = _try(schedule, work, costs, repeats, have - keep)
        if repeated_run is not None:
            return repeated_run
        keep *= 2
    return *run(schedule, work, costs), 0


def _try(schedule: Schedule, work: Work, costs: Costs, repeats: Steady, cut: int) -> tuple[Array, Array, int] | None:
    """Run without `cut` periods of the middle and put them back, if the times repeat."""
    for _ in range(3):
        small = resized(schedule, repeats, -cut)
        middle = steady(small, repeats.period)
        if middle is None or cut < 1:
            return None
        short = prepare(small, costs, work.quantum_s)
        try:
            end, waits = run(small, short, costs)
        except InputError:
            return None  # the full run names the place
        agreement = _agreement(small, short, end, _waits_of_sent(small, short, waits), middle)
        if agreement is None:
            return None
        places, k, delta_s = agreement
        if cut % k == 0:
            ends, queued = (_expanded(small, middle, times, places, k, shift, cut // k)
                            for times, shift in ((end, delta_s), (waits, 0.0)))  # fmt: skip
            return ends, queued, len(schedule.code) - len(small.code)
        cut -= cut % k
    return None


def _waits_of_sent(small: Schedule, work: Work, waits: Array) -> Array:
    """[2, ops] how long what an operation sends waits for its link: the inputs of F, and of B or I."""
    sent, readers = np.zeros((2, len(waits))), np.flatnonzero(work.link > 0)
    sent[(small.kind[readers] != F).astype(int), work.dep[readers]] = waits[readers]
    return sent


def _agreement(small: Schedule, work: Work, end: Array, sent: Array, middle: Steady) -> tuple[Ints, int, float] | None:
    """(cut, periods per repetition, seconds per repetition) where the run repeats itself; None where it does not."""
    periods = int(((middle.end - middle.begin) // middle.length).min())
    first, device = small.first[:-1], small.device_of_op
    for at in (periods, periods - 1, 3 * periods // 4, periods // 2):
        places = _closed(small, work, first + middle.begin + at * middle.length)
        if (places <= first + middle.end).all():
            break
    else:
        return None
    sooner = np.arange(len(end)) >= (places - middle.length)[device]
    needed = _oldest(small, work, sooner, places)
    for k in range(1, min(_MOST_PERIODS, periods // 2) + 1):
        size = k * middle.length
        if k > 1:
            needed = np.minimum(needed, _oldest(small, work, np.arange(len(end)) >= (places - size)[device], places))
        begin = np.minimum(places - 2 * size, needed)
        if (begin < first + middle.begin).any():
            return None
        delta = end[places[0] - 1] - end[places[0] - 1 - size[0]]
        rows = zip(begin.tolist(), places.tolist(), size.tolist(), strict=True)
        if all((end[low + n : high] - end[low : high - n] == delta).all()
               and (sent[:, low + n : high] == sent[:, low : high - n]).all() for low, high, n in rows):  # fmt: skip
            return places, k, float(delta)
    return None


def _closed(small: Schedule, work: Work, places: Ints) -> Ints:
    """The least closed cut that contains the operations before `places`, one index per device."""
    n, device = len(work.dep), small.device_of_op
    places = np.minimum(places, small.first[1:])
    while True:
        inside = np.flatnonzero((np.arange(n) < places[device]) & (work.dep < n))
        needed = work.dep[inside]
        grown = places.copy()
        np.maximum.at(grown, device[needed], needed + 1)
        split = (grown > small.first[:-1]) & small.fused[np.maximum(grown - 1, 0)]
        grown = grown + split
        if (grown == places).all():
            return grown
        places = grown


def _oldest(small: Schedule, work: Work, later: NDArray[np.bool_], places: Ints) -> Ints:
    """Per device, the earliest operation before the cut that any of the `later` operations waits for."""
    oldest = places.copy()
    needed = work.dep[later & (work.dep < len(work.dep))]
    np.minimum.at(oldest, small.device_of_op[needed], needed)
    return oldest


def _expanded(
    small: Schedule, middle: Steady, end: Array, places: Ints, k: int, delta_s: float, times: int
) -> Array:
    """End times, or with no shift waits, with `times` repetitions of k periods inserted at the cut."""
    parts = []
    for d, place in enumerate(places.tolist()):
        size = k * int(middle.length[d])
        cycle = end[place - size : place] + delta_s * (1 + np.arange(times))[:, None]
        parts += [end[small.first[d] : place], cycle.ravel(), end[place : small.first[d + 1]] + delta_s * times]
    return np.concatenate(parts)
