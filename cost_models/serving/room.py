"""Passes of models that fill in, by their sequences, and the queues for room."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from ..arrays import Array
from .constants import ServingConstants
from .iteration import Batch, iteration_seconds
from .pool import Pool
from .service import PROBE, Load, RoomWaits

_POINTS = 16  # numbers of sequences at which a pass is priced; between them its seconds lie on lines
_FULL = 1.0 - 1e-6  # load factor, from which on the wait is that at it
_RARE = 1e-100  # requests per second, in place of none
_DEVIATIONS = np.linspace(0.0, 30.0, 601)  # of the sequences, from their mean to the room
_NORMAL = NormalDist()
_WAITING = -np.log1p([b * _NORMAL.cdf(b) / _NORMAL.pdf(b) for b in _DEVIATIONS])  # logarithm of the probability


def whole_passes(sequences: Array, load: Load) -> Batch:
    """A pass over so many [n] sequences of a lane, with their prompts."""
    none = np.zeros_like(sequences)
    return Batch(sequences=sequences, context=load.running_prompt + load.running_output, prompt_tokens=none,
                 prompt_context=load.prompt_context, prompt_groups=none + 1.0,
                 answer=load.running_output)  # fmt: skip


@dataclass(frozen=True, slots=True)
class PassSeconds:
    """Seconds of a pass over 1 to as many sequences as a lane has room for."""

    points: Array  # [point, n] sequences, in a geometric series
    seconds: Array  # [point, n]

    @classmethod
    def of(cls, capacity: Array, decode: Pool, load: Load, constants: ServingConstants) -> PassSeconds:
        """capacity: [n] sequences of an instance."""
        room = np.maximum(np.floor(capacity / decode.pp), 1.0)
        points = room ** np.linspace(0.0, 1.0, _POINTS)[:, None]
        return cls(points, np.stack([iteration_seconds(decode, constants, whole_passes(it, load)) for it in points]))

    @property
    def room(self) -> Array:
        """[n] sequences of a lane."""
        return np.asarray(self.points[-1])

    def at(self, sequences: Array) -> Array:
        """Seconds of a pass over so many [number, n], at least one and at most as many as there is room for."""
        number = np.clip(sequences, 1.0, self.room)
        place = np.log(number) / np.log(np.maximum(self.room, 1.0 + 1e-9)) * (_POINTS - 1)
        low = np.minimum(place.astype(np.int64), _POINTS - 2)
        (below, from_s), (above, to_s) = ([np.take_along_axis(it, index, axis=0) for it in (self.points, self.seconds)]
                                          for index in (low, low + 1))  # fmt: skip
        return np.asarray(from_s + (to_s - from_s) * (number - below) / np.maximum(above - below, 1e-9))

    def more_s(self, sequences: Array) -> Array:
        """[n] seconds that another one adds to a pass over so many."""
        low = np.clip(sequences, 1.0, self.room / (1.0 + PROBE))
        from_s, to_s = self.at(np.stack([low, low * (1.0 + PROBE)]))
        return np.asarray(np.maximum(to_s - from_s, 0.0) / (PROBE * low))


@dataclass(frozen=True, slots=True)
class RoomQueue:
    """Requests that wait for room, columns [n]."""

    load_factor: Array  # rate over the one at which all room is always taken
    running: Array  # mean sequences of a lane
    waits: RoomWaits


def room_queue(passes: PassSeconds, steps: Array, decode: Pool, load: Load) -> RoomQueue:
    """A lane has room for c sequences, and each of n leaves after `steps` passes that take T(n). Their number is a
    birth and death process with the death rates n / (steps T(n)) up to c, which stay the same beyond it.

    The mean wait of that process is multiplied by (c_a^2 + c_s^2) / 2, the mean of the squared coefficients of
    variation of the times between arrivals and of passes. So it is the formula of Allen and Cunneen for several servers
    (A. O. Allen, Probability, Statistics, and Queueing Theory, 1990, section 5.3.4), and that of processor sharing
    among at most c requests (B. Avi-Itzhak and S. Halfin, Expected response times in a non-symmetric time sharing queue
    with a limited number of service positions, 1988). steps: [n] passes of an answer."""
    rate = np.maximum(load.rate / decode.instances / decode.pp, _RARE)
    number = np.arange(1.0, passes.room.max() + 1.0)[:, None]
    each = np.minimum(number, passes.room)
    factors = rate * steps * passes.at(each) / each  # arrivals over departures
    full = np.minimum(factors[-1], _FULL)
    # Probabilities of 0 to c - 1 requests, and of c or more, each over that of the most likely number.
    logarithms = np.cumsum(np.log(factors), axis=0)
    states = np.concatenate([np.zeros_like(rate)[None], np.where(number < passes.room, logarithms, -np.inf)])
    at_room = np.take_along_axis(logarithms, passes.room[None].astype(np.int64) - 1, axis=0)[0]
    beyond = at_room - np.log1p(-full)
    most = np.maximum(states.max(axis=0), beyond)
    weights, waiting = np.exp(states - most), np.exp(beyond - most)
    whole = weights.sum(axis=0) + waiting
    running = ((number * weights[1:]).sum(axis=0) + passes.room * waiting) / whole
    return RoomQueue(factors[-1], running, RoomWaits(waiting / whole, _wait_s(full, rate, decode.pp, decode, load)))


def decoders_queue(
    factor: Array, running: Array, spread: Array, capacity: Array, decode: Pool, load: Load
) -> RoomQueue:  # fmt: skip
    """As `room_queue`, of instances that decode, which have room for thousands: many servers.

    A request waits with the probability of S. Halfin and W. Whitt (Heavy-traffic limits for queues with many
    exponential servers, 1981), 1 / (1 + b Phi(b) / phi(b)), where b deviations of the sequences lie between their mean
    and the room. factor: [n] rate over the one at which all room is always taken; spread: the deviation.
    """
    beyond = np.maximum(capacity - running, 0.0) / np.maximum(spread, 1e-9)
    waiting = np.exp(np.interp(beyond, _DEVIATIONS, _WAITING))
    full, rate = np.minimum(factor, _FULL), np.maximum(load.rate / decode.instances, _RARE)
    waits = RoomWaits(np.where(load.rate > 0, waiting, 0.0), _wait_s(full, rate, 1.0, decode, load))
    return RoomQueue(factor, running, waits)


def _wait_s(full: Array, rate: Array, lanes: Array | float, decode: Pool, load: Load) -> Array:
    """Mean wait of requests that wait, of a queue with this load factor."""
    arrivals = 1.0 + (load.arrival_scv - 1.0) / decode.instances / lanes
    answers = np.maximum(load.running_output / load.output - 1.0, 0.0)
    return np.asarray(full / rate / (1.0 - full) * (arrivals + answers) / 2.0)
