"""1F1B with vocabulary parallelism (vocabulary.py): passes S and T of every micro-batch on all devices, in between.

Chunks of p devices: 0 to p-1 layers; p + d the vocabulary of device d, whose F is S and whose B is T; 2p + d and 3p + d
the messages that join all S (C1) and all T (C2), on streams of their own: devices p and p + 1, which take what each
device has (an F or B of no time, the last of them the message's seconds). The broadcast C0 is what brings a vocabulary
chunk its input.

Device d runs the 1F1B of p-d-1 + barriers forwards first. S comes as soon as its input does and the device is free, so
that all devices run it at about the same time; T of the micro-batch before comes with it.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from ..arrays import Array, Ints
from .costs import Costs
from .orders import B, F, Schedule, assemble, codes, find_steady, resized

# Micro-batches per stage up to which an order is scheduled in full; beyond, its middle is repeated.
_FULL = 4


@dataclass(frozen=True)
class Seconds:
    """Seconds of the passes that an order is made for."""

    forward: tuple[float, ...]  # [device] F of its layers
    backward: tuple[float, ...]  # [device] B of its layers
    s: float  # the vocabulary pass S of a device
    t: float  # the vocabulary pass T of a device
    messages: tuple[float, float, float] = (0.0, 0.0, 0.0)  # C0, C1, C2 over all stages
    hop: float = 0.0  # a message between stages


def vocabulary_1f1b(m: int, barriers: int, seconds: Seconds) -> Schedule:
    """The order on len(seconds.forward) devices for m micro-batches, with one barrier or two."""
    p = len(seconds.forward)
    short = _FULL * p + 8
    if m <= 2 * short:
        return order_of_passes(m, barriers, seconds)
    made = order_of_passes(short, barriers, seconds)
    repeats = find_steady(made, 8)
    if repeats is None or (m - short) % repeats.period:
        return order_of_passes(m, barriers, seconds)
    return resized(made, repeats, (m - short) // repeats.period)


def with_passes(layers: Costs, barriers: int, seconds: Seconds, reduce_s: Array, gather_s: Array) -> Costs:
    """Costs of that order, out of those of its `layers` alone. reduce_s, gather_s: [layers, then vocabulary chunk]."""
    p, joins = len(layers.forward_s), (0.0,) * (len(layers.forward_s) - 1)
    streams, none = (0.0,) * barriers, (0.0,) * (barriers * p)
    joined = [second for message in seconds.messages[1 : 1 + barriers] for second in (*joins, message)]
    return replace(
        layers,
        forward_s=layers.forward_s + (seconds.s,) * p + none,
        input_s=layers.input_s + (seconds.t,) * p + tuple(joined),
        weight_s=layers.weight_s + (0.0,) * p + none,
        forward_hop_s=layers.forward_hop_s + (seconds.messages[0],) * p + none,
        backward_hop_s=layers.backward_hop_s[:-1] + (0.0,) * (p + 1) + none,
        forward_link_s=(layers.forward_link_s or layers.forward_hop_s) + (0.0,) * p + none,
        backward_link_s=(layers.backward_link_s or layers.backward_hop_s)[:-1] + (0.0,) * (p + 1) + none,
        reduce_s=(*reduce_s.tolist(), *none), gather_s=(*gather_s.tolist(), *none),
        activation_bytes=layers.activation_bytes and layers.activation_bytes + (0.0,) * p + none, stash_bytes=(),
        static_bytes=layers.static_bytes and layers.static_bytes + streams, optimizer_s=layers.optimizer_s + streams,
    )  # fmt: skip


@lru_cache(maxsize=64)
def order_of_passes(m: int, barriers: int, seconds: Seconds) -> Schedule:
    p, j = len(seconds.forward), np.arange(m)
    chunks = (2 + barriers) * p
    run = enumerate(_Run(m, barriers, seconds).rows())
    rows = [batches * chunks * 4 + (lanes * p + d) * 4 + kinds for d, (kinds, lanes, batches) in run]
    for lane in range(2, 2 + barriers):
        passes = [codes(kind, lane * p + d, j, chunks) for kind in (F, B) for d in range(p)]
        rows.append(np.stack(passes, axis=1).ravel())
    devices = [*range(p), *range(p), *([p] * p), *([p + 1] * p)][:chunks]
    upstream = [*range(-1, p - 1), *([p - 1] * p), *range(p, 2 * p), *([-1] * p)][:chunks]
    behind = [*range(1, p), chunks - 1, *range(2 * p, 3 * p), *([-1] * p), *range(p, 2 * p)][:chunks]
    return assemble("vocabulary-1f1b", devices, m, rows, period=0, upstream=upstream, behind=behind)


class _Run:
    """List scheduling in the order of time."""

    def __init__(self, m: int, barriers: int, seconds: Seconds) -> None:
        self.m, self.barriers, self.seconds, self.p = m, barriers, seconds, len(seconds.forward)
        self.layers = [self._layers(d) for d in range(self.p)]
        self.at, self.passes = [0] * self.p, [[0, 0] for _ in range(self.p)]  # next of the layers; next S and T
        self.ends: dict[tuple[int, int, int], float] = {}  # (kind, device, micro-batch) of layers
        self.joined: dict[tuple[int, int], list[float]] = {}  # (0 for S, 1 for T; micro-batch): ends so far
        self.done: list[list[tuple[int, int, int]]] = [[] for _ in range(self.p)]

    def _layers(self, d: int) -> list[tuple[int, int]]:
        ahead = self.p - d - 1 + self.barriers
        order = [(3 * (j - ahead), F, j) for j in range(self.m)] + [(3 * j + 1, B, j) for j in range(self.m)]
        return [(kind, j) for _, kind, j in sorted(order)]

    def rows(self) -> list[tuple[Ints, Ints, Ints]]:
        """Per device: kinds, lanes (0 layers, 1 vocabulary) and micro-batches in the order they run."""
        wake, free = [(0.0, d) for d in range(self.p)], [0.0] * self.p
        idle: set[int] = set()
        while wake:
            now, d = heapq.heappop(wake)
            if now < free[d]:
                continue
            chosen, ready = self._next(d, now)
            if chosen is None:
                idle.add(d)
                if ready < np.inf:
                    heapq.heappush(wake, (ready, d))
                continue
            idle.discard(d)
            free[d] = now + self._run(d, *chosen, now)
            for device, time in ((d, free[d]), *((other, now) for other in sorted(idle))):
                heapq.heappush(wake, (time, device))
        return [_columns(row) for row in self.done]

    def _next(self, d: int, now: float) -> tuple[tuple[int, int, int] | None, float]:
        """The pass that device d runs now (kind, lane, micro-batch), or the time at which it next can."""
        s, t = self.passes[d]
        at_s = self.ends.get((F, self.p - 1, s), np.inf) + self.seconds.messages[0]
        at_t = self._barrier(0, t)
        layers = self.layers[d][self.at[d]] if self.at[d] < 2 * self.m else None
        at_layers = self._input(d, *layers) if layers else np.inf
        if at_t <= now and (self.barriers > 1 or at_s <= now or min(at_s, at_layers) > now):
            return (B, 1, t), now
        if at_s <= now:
            return (F, 1, s), now
        if layers and at_layers <= now:
            return (layers[0], 0, layers[1]), now
        return None, min(at_s, at_layers, at_t)

    def _barrier(self, which: int, j: int) -> float:
        """When all of a pass of micro-batch j are done and joined."""
        ends = self.joined.get((which, j), [])
        return max(ends) + self.seconds.messages[1 + which] if len(ends) == self.p else np.inf

    def _input(self, d: int, kind: int, j: int) -> float:
        """When the input of an operation of the layers is there."""
        if kind == F:
            return self.ends.get((F, d - 1, j), np.inf) + self.seconds.hop if d else 0.0
        if d == self.p - 1:
            return self._barrier(self.barriers - 1, j)
        return self.ends.get((B, d + 1, j), np.inf) + self.seconds.hop

    def _run(self, d: int, kind: int, lane: int, j: int, now: float) -> float:
        """Seconds of an operation, which is noted down."""
        self.done[d].append((kind, lane, j))
        if lane:
            took = (self.seconds.s, self.seconds.t)[kind]
            self.passes[d][kind] += 1
            self.joined.setdefault((kind, j), []).append(now + took)
        else:
            took = (self.seconds.forward, self.seconds.backward)[kind][d]
            self.at[d] += 1
            self.ends[kind, d, j] = now + took
        return took


def _columns(row: list[tuple[int, int, int]]) -> tuple[Ints, Ints, Ints]:
    kinds, lanes, batches = np.array(row, dtype=np.int64).T
    return kinds, lanes, batches
