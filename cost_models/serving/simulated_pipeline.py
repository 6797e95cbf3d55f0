"""The iterations of an engine in the stages of its pipeline: prompts are taken in chunks, and sequences decode.

As many iterations are in flight as there are stages (vLLM 0.32, EngineCore.step_with_batch_queue). A lane is one of
them: its sequences decode together, and again when their iteration has left the last stage. Every stage takes one
iteration at a time, in the order in which they begin, so a chunk of a prompt holds up the sequences of all lanes.

Without prompts the lanes come round and round. No lane passes another, so a round takes as long as the longest
iteration alone, and all rounds between two events (an arrival, an answer that ends) are one step.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import chain, islice

import numpy as np

from ..arrays import Array
from .arrivals import Arrivals, Request
from .constants import ServingConstants
from .iteration import Batch, iteration_seconds
from .pool import Pool

_POINTS = 33  # tokens of a sequence at which an iteration without prompts is priced; its seconds lie on lines between


@dataclass(slots=True)
class _Decoding:
    """Seconds of an iteration without prompts."""

    pool: Pool  # its row for each point
    constants: ServingConstants
    tokens: Array  # [point] in the cache of a sequence
    by_number: dict[int, Array] = field(default_factory=dict)  # sequences -> [point] seconds

    @classmethod
    def of(cls, pool: Pool, constants: ServingConstants, fewest: float, most: float) -> _Decoding:
        points = np.geomspace(max(fewest, 1.0), max(most, 2.0), _POINTS)
        rows = pool.rows(np.zeros(_POINTS, dtype=np.int64), np.repeat(pool.instances, _POINTS))
        return cls(rows, constants, points)

    def seconds(self, number: int, context: float) -> float:
        """context: mean tokens in the cache of each of `number` sequences."""
        if number not in self.by_number:
            none = np.zeros(_POINTS)
            batch = Batch(sequences=none + number, prompt_tokens=none, context=self.tokens, prompt_context=none,
                          prompt_groups=none + 1.0)  # fmt: skip
            self.by_number[number] = iteration_seconds(self.pool, self.constants, batch)
        return float(np.interp(context, self.tokens, self.by_number[number]))


@dataclass(slots=True)
class _Lane:
    """Sequences that decode together. Each iteration gives all of them as many tokens, so that a sequence is known by
    the number of them at which it ends."""

    step_tokens: float  # of an iteration
    ready_s: float = 0.0  # when its last iteration leaves the last stage
    flying: bool = False  # an iteration is in the stages
    decodes: bool = False  # and its sequences are in it
    mixed: bool = False  # and prompts are
    joining: list[Request] = field(default_factory=list)  # with the last chunk of their prompts in it
    given: float = 0.0  # tokens, since the lane began
    before: float = 0.0  # tokens in the caches, less those given since the lane began
    ends: list[tuple[float, int, Request]] = field(default_factory=list)  # heap, by the tokens given until then

    @property
    def busy(self) -> bool:
        return self.flying or bool(self.ends)

    @property
    def context(self) -> float:
        """Mean tokens in the cache of a sequence."""
        return self.before / len(self.ends) + self.given if self.ends else 0.0

    @property
    def iterations(self) -> float:
        """Iterations that begin until an answer ends."""
        left = (self.ends[0][0] - self.given - 0.5) / self.step_tokens
        return float(np.ceil(left)) - (self.flying and self.decodes)

    def join(self, request: Request, place: int) -> None:
        heappush(self.ends, (self.given + request.left_output, place, request))
        self.before += request.prompt + request.output - request.left_output - self.given

    def leave(self) -> Request | None:
        """A request whose answer is whole."""
        if not self.ends or self.ends[0][0] - self.given > 0.5:
            return None
        end, _, request = heappop(self.ends)
        self.before -= request.prompt + request.output - end
        return request


@dataclass(slots=True)
class Pipeline:
    """One instance. prefills: else prompts come with their caches. decodes: else a request ends with its first token.

    Answers end after whole iterations."""

    pool: Pool  # one row
    constants: ServingConstants
    arrivals: Arrivals
    room: int  # sequences
    prefills: bool
    decodes: bool
    lanes: list[_Lane] = field(init=False)
    decoding: _Decoding = field(init=False)
    left_s: list[float] = field(init=False)  # by stage: when the last iteration leaves it
    begun: list[Request] = field(default_factory=list)  # with some chunks of their prompts in iterations
    waiting: deque[Request] = field(default_factory=deque)
    held: int = 0  # requests that have room
    joined: int = 0  # requests that have decoded: the order of those that end together
    ended: list[tuple[float, ...]] = field(default_factory=list)  # arrival, TTFT, TPOT, tokens of the prompt
    mixed_s: dict[tuple[float, ...], float] = field(default_factory=dict)  # of iterations with prompts, by their work

    def __post_init__(self) -> None:
        stages, lengths = int(self.pool.pp[0]), self.arrivals.requests.lengths
        self.lanes, self.left_s = [_Lane(float(self.pool.step_tokens[0])) for _ in range(stages)], [0.0] * stages
        self.decoding = _Decoding.of(self.pool, self.constants, float(lengths.prompts.min()), lengths.longest)

    def run(self) -> list[tuple[float, ...]]:
        """`ended`, when all requests have."""
        while True:
            lane, start_s = self._next()
            if start_s == np.inf:
                return self.ended
            for other in self.lanes:
                if other.flying and other.ready_s <= start_s:
                    self._land(other)
            self.waiting.extend(self.arrivals.until(start_s))
            self._begin(lane, self._gone_round(start_s))

    def _next(self) -> tuple[_Lane, float]:
        """The lane that begins an iteration next, and when; one without sequences begins with a prompt."""
        prompt_s = 0.0 if self.waiting or self.begun else self.arrivals.next_s
        free_s = self.left_s[0]
        start_s, _, place = min((max(lane.ready_s, free_s, 0.0 if lane.busy else prompt_s), not lane.busy, place)
                                for place, lane in enumerate(self.lanes))  # fmt: skip
        return self.lanes[place], start_s

    def _gone_round(self, start_s: float) -> float:
        """Lets the lanes go round while nothing comes and no answer ends. Returns when the next iteration begins."""
        takes = bool(self.begun) or (bool(self.waiting) and self.held < self.room)
        busy = [lane for lane in self.lanes if lane.busy]
        if takes or not busy or any(lane.mixed and lane.flying for lane in busy):
            return start_s
        rounds = min(lane.iterations for lane in busy) - 1.0  # answers end one by one
        left_s = np.inf if self.waiting else self.arrivals.next_s - start_s
        each_s = 0.0
        for _ in range(2):  # contexts grow, and fewer rounds fit than those of the first length
            each_s = self._round_s(busy, each_s and rounds)
            rounds = min(rounds, left_s // each_s)
            if rounds < 1:
                return start_s
        self.left_s = [it + rounds * each_s for it in self.left_s]
        for lane in busy:
            lane.ready_s += rounds * each_s
            lane.given += rounds * lane.step_tokens
        return start_s + rounds * each_s

    def _round_s(self, busy: list[_Lane], rounds: float) -> float:
        """The mean of so many rounds, in which the contexts grow."""
        return max(self.decoding.seconds(len(lane.ends), lane.context + max(rounds - 1.0, 0.0) / 2 * lane.step_tokens)
                   for lane in busy)  # fmt: skip

    def _begin(self, lane: _Lane, start_s: float) -> None:
        """An iteration of the lane; none where it has no sequences and there is no room for a prompt."""
        mixes = bool(self.pool.mixes_prompts[0])
        prompts = self._taken(len(lane.ends) / float(self.pool.attention_dp[0]) if mixes else 0.0)
        tokens = sum(taken for _, taken in prompts)
        lane.decodes = bool(lane.ends) and (mixes or not tokens)
        if not prompts and not lane.decodes:
            lane.ready_s = min((max(it.ready_s, self.left_s[0]) for it in self.lanes if it.busy), default=lane.ready_s)
            return
        number = len(lane.ends) if lane.decodes else 0
        seconds = (self._mixed_s(number, lane.context, prompts) if prompts
                   else self.decoding.seconds(number, lane.context))  # fmt: skip
        lane.joining = [request for request, _ in prompts if request.left_prompt <= 0.5 or not self.prefills]
        lane.flying, lane.mixed, lane.ready_s = True, bool(prompts), start_s
        for stage, left_s in enumerate(self.left_s):
            lane.ready_s = self.left_s[stage] = max(lane.ready_s, left_s) + seconds / len(self.left_s)
        if not self.decodes:  # prompts alone begin where the first stage is free
            self._land(lane)
            lane.ready_s = start_s

    def _mixed_s(self, number: int, context: float, prompts: list[tuple[Request, float]]) -> float:
        """Seconds of an iteration in which so many sequences decode, and so many tokens of each prompt are prefilled
        beside them; remembered, since prompts of equal lengths have equal chunks."""
        tokens = sum(taken for _, taken in prompts)
        seen = sum(taken * (it.prompt - it.left_prompt - taken / 2) for it, taken in prompts) / max(tokens, 1.0)
        groups = min(len(prompts), float(self.pool.attention_dp[0]))
        work = float(number), context, tokens, seen, groups
        if work not in self.mixed_s:
            sequences, cached, taken, before, lying = (np.array([value]) for value in work)
            batch = Batch(sequences=sequences, prompt_tokens=taken, context=cached, prompt_context=before,
                          prompt_groups=lying)  # fmt: skip
            self.mixed_s[work] = float(iteration_seconds(self.pool, self.constants, batch)[0])
        return self.mixed_s[work]

    def _taken(self, beside: float) -> list[tuple[Request, float]]:
        """Prompts of the next iteration and how many tokens of each, first come first; the next chunk may follow while
        this one is in flight (vLLM 0.32, Scheduler._update_after_schedule). beside: tokens that a group of tp ranks
        decodes."""
        each = max(float(self.pool.chunk_tokens[0]) - beside, 1.0)
        budget, prompts = each * float(self.pool.attention_dp[0]), list[tuple[Request, float]]()
        free = max(self.room - self.held, 0)
        for request in chain(tuple(self.begun), islice(tuple(self.waiting), free)):
            if budget <= 0:
                break
            taken = min(request.left_prompt, budget, each) if self.prefills else 0.0
            request.left_prompt -= taken
            prompts.append((request, taken))
            budget -= taken
        new = max(len(prompts) - len(self.begun), 0)
        self.held += new
        for _ in range(new):
            self.begun.append(self.waiting.popleft())
        self.begun = [it for it in self.begun if it.left_prompt > 0.5 and self.prefills]
        return prompts

    def _land(self, lane: _Lane) -> None:
        """The iteration of the lane leaves the last stage."""
        before, lane.flying = len(self.ended), False
        if lane.decodes:
            lane.given += lane.step_tokens
            while request := lane.leave():
                self._end(request, lane.ready_s)
        for request in lane.joining:
            request.first_s = lane.ready_s if self.prefills or self.pool.decodes_first[0] else request.arrival_s
            request.left_output -= 1.0
            if self.decodes and request.left_output > 0.5:
                lane.join(request, self.joined)
                self.joined += 1
            else:
                self._end(request, lane.ready_s)
        lane.joining = []
        self.arrivals.ended(len(self.ended) - before, lane.ready_s)

    def _end(self, request: Request, now_s: float) -> None:
        self.held -= 1
        front_s, swap_s = self.arrivals.front_s(request) if self.prefills else 0.0, 0.0
        if self.pool.methods.swaps and self.decodes:
            swap_s = float(self.pool.swap_s(np.array([request.prompt + request.output / 2]))[0])
        tpot_s = (now_s - request.first_s + swap_s) / max(request.output - 1.0, 1.0)
        self.ended.append((request.arrival_s, request.first_s - request.arrival_s + front_s, tpot_s, request.prompt))
