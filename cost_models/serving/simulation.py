"""An instance of an engine, iteration by iteration: requests arrive, wait, are prefilled in chunks, and decode.

Between two events (an arrival, an answer that ends) all iterations decode the same sequences, and are one event.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from itertools import islice

import numpy as np

from ..arrays import Array
from .iteration import Batch, ServingConstants, iteration_seconds
from .pool import Pool

_WARM_UP = 0.2  # share of the requests, the first, that are not counted


@dataclass(frozen=True, slots=True)
class Requests:
    """Equal requests to one instance."""

    prompt: float  # tokens
    output: float  # tokens
    rate: float  # per second, as a Poisson process; 0: a closed loop
    concurrency: int  # requests at any time of a closed loop
    number: int  # simulated
    front_s: float  # from arrival to the scheduler


@dataclass(frozen=True, slots=True)
class Simulated:
    """Latencies of the counted requests, seconds, [request]."""

    ttft_s: Array
    tpot_s: Array


@dataclass(slots=True)
class _Request:
    arrival_s: float
    left_prompt: float  # tokens that are not prefilled
    left_output: float  # tokens that are not decoded
    first_s: float = 0.0


@dataclass(slots=True)
class _Lane:
    """A pipeline has as many lanes as stages, which share its requests; other instances have one."""

    pool: Pool  # one row
    constants: ServingConstants
    requests: Requests
    prefills: bool  # else prompts come with their caches
    decodes: bool  # else a request ends with its first token
    depth: float = 1.0  # prompts in a pipeline at once, each in a stage of its own
    now_s: float = 0.0
    waiting: deque[_Request] = field(default_factory=deque)
    running: list[_Request] = field(default_factory=list)
    ended: list[tuple[float, float]] = field(default_factory=list)  # TTFT, TPOT

    def iteration_s(self, decoding: list[_Request], prompt: float, groups: float, steps: float) -> float:
        """Mean seconds of so many equal iterations: these sequences decode, prompts of so many tokens beside them in so
        many groups of attention data parallelism."""
        made = float(np.mean([self.requests.output - it.left_output for it in decoding])) if decoding else 0.0
        batch = Batch(sequences=np.array([float(len(decoding))]), prompt_tokens=np.array([prompt]),
                      context=np.array([self.requests.prompt + made + steps / 2]),
                      prompt_context=np.array([self.requests.prompt / 2]),
                      prompt_groups=np.array([groups]))  # fmt: skip
        per_group = prompt / groups / float(self.pool.chunk_tokens[0])
        return float(iteration_seconds(self.pool, self.constants, batch)[0]) + float(self.pool.host_s[0]) * per_group

    def step(self, room: int, next_arrival_s: float) -> int:
        """One iteration, or several without prompts. Returns the number of answers that end."""
        mixes, groups = bool(self.pool.mixes_prompts[0]), float(self.pool.attention_dp[0])
        decoding = self.running if self.decodes else []
        prompts = self._taken(max(room - len(decoding), 0), len(decoding) / groups if mixes else 0.0)
        tokens = sum(taken for _, taken in prompts)
        if tokens and not mixes:
            decoding = []
        steps = 1.0
        if not prompts and decoding:
            once = self.iteration_s(decoding, 0.0, 1.0, 0.0)
            until = max((next_arrival_s - self.now_s) / once, 1.0)
            steps = float(min(min(it.left_output for it in decoding), np.ceil(until)))
        seconds = steps * self.iteration_s(decoding, tokens, min(max(len(prompts), 1), groups), steps)
        self.now_s += seconds / self.depth  # when the first stage is free
        done_s = self.now_s + seconds * (1.0 - 1.0 / self.depth)
        return self._decoded(decoding, steps) + self._prefilled(prompts, done_s)

    def _taken(self, room: int, beside: float) -> list[tuple[_Request, float]]:
        """Prompts of the next iteration and how many tokens of each, first come first; `room`: sequences that the cache
        still holds, `beside`: tokens that a group of tp ranks decodes."""
        each = max(float(self.pool.chunk_tokens[0]) - beside, 1.0)
        budget, prompts = each * float(self.pool.attention_dp[0]), list[tuple[_Request, float]]()
        for request in islice(self.waiting, room):
            if budget <= 0:
                break
            taken = min(request.left_prompt, budget, each) if self.prefills else 0.0
            prompts.append((request, taken))
            budget -= taken
        return prompts

    def _decoded(self, decoding: list[_Request], steps: float) -> int:
        for request in decoding:
            request.left_output -= steps
        over = [request for request in decoding if request.left_output <= 0.5]
        for request in over:
            self._end(request)
        if over:
            self.running = [request for request in self.running if request.left_output > 0.5]
        return len(over)

    def _prefilled(self, prompts: list[tuple[_Request, float]], done_s: float) -> int:
        over = 0
        for request, taken in prompts:
            request.left_prompt -= taken
            if request.left_prompt > 0.5 and self.prefills:
                continue
            self.waiting.remove(request)
            request.first_s = done_s if self.prefills else request.arrival_s
            request.left_output -= 1.0
            if self.decodes and request.left_output > 0.5:
                self.running.append(request)
            else:
                self._end(request)
                over += 1
        return over

    def _end(self, request: _Request) -> None:
        steps = max(self.requests.output - 1.0, 1.0)
        self.ended.append((request.first_s - request.arrival_s + self.requests.front_s,
                           (self.now_s - request.first_s) / steps))  # fmt: skip


def simulate(
    pool: Pool, constants: ServingConstants, requests: Requests, capacity: float, *, prefills: bool = True,
    decodes: bool = True, seed: int = 0,
) -> Simulated:  # fmt: skip
    """One lane of one instance. pool: one row. capacity: sequences that the caches of the instance hold."""
    # Instances that prefill alone have one queue before their first stage.
    stages, depth = (float(pool.pp[0]), 1.0) if decodes else (1.0, float(pool.pp[0]))
    lane = _Lane(pool, constants, requests, prefills, decodes, depth)
    room = max(int(capacity / stages), 1)
    closed = requests.rate <= 0
    gaps = np.random.default_rng(seed).exponential(size=requests.number)
    arrivals = deque([0.0] * requests.number if closed else np.cumsum(gaps / (requests.rate / stages)).tolist())
    free = max(round(requests.concurrency / stages), 1) if closed else requests.number
    while arrivals or lane.waiting or lane.running:
        while arrivals and free and (closed or arrivals[0] <= lane.now_s):
            at = arrivals.popleft()
            lane.waiting.append(_Request(lane.now_s if closed else at, requests.prompt, requests.output))
            free -= 1
        if not lane.waiting and not lane.running:
            lane.now_s = arrivals[0]
            continue
        ended = lane.step(room, arrivals[0] if arrivals and not closed else np.inf)
        free += ended if closed else 0
    counted = np.array(lane.ended[int(_WARM_UP * requests.number) :])
    return Simulated(counted[:, 0], counted[:, 1])
