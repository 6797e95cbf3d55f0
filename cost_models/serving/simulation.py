"""An instance of an engine, iteration by iteration: requests arrive, wait, are prefilled in chunks, and decode.

Between two events (an arrival, an answer that ends) all iterations decode the same sequences, and are one event.
"""

from __future__ import annotations

from bisect import insort
from collections import deque
from dataclasses import dataclass, field
from itertools import islice

import numpy as np

from ..arrays import Array
from .iteration import Batch, ServingConstants, iteration_seconds
from .lengths import RequestLengths
from .pool import Pool

_WARM_UP = 0.2  # share of the requests, the first, that are not counted; nor are those that a closed loop begins with


@dataclass(frozen=True, slots=True)
class Requests:
    """Requests to one instance: drawn at random, or those of a trace in their order."""

    lengths: RequestLengths
    rate: float  # per second; 0: a closed loop
    concurrency: int  # requests at any time of a closed loop
    number: int  # simulated
    front_s: float  # from arrival to the scheduler, beside the tokens of the prompt
    share: float = 1.0  # of the requests of a trace, dealt at random, that come to this instance


@dataclass(frozen=True, slots=True)
class Simulated:
    """Latencies of the counted requests, seconds, [request]. Where prompts come with their caches, the time to first
    token is from then on."""

    ttft_s: Array
    tpot_s: Array
    prompts: Array  # tokens


@dataclass(slots=True)
class _Request:
    arrival_s: float
    prompt: float  # tokens
    output: float  # tokens
    left_prompt: float  # tokens that are not prefilled
    left_output: float  # tokens that are not decoded
    begun_s: float = 0.0  # of a model that fills in: its first pass
    first_s: float = 0.0

    @classmethod
    def of(cls, arrival_s: float, prompt: float, output: float, prefix_hit: float) -> _Request:
        return cls(arrival_s, prompt, output, prompt * (1.0 - prefix_hit), output)

    @property
    def context(self) -> float:
        """Tokens in the cache, while it decodes."""
        return self.prompt + self.output - self.left_output


@dataclass(slots=True)
class _Lane:
    """A pipeline has as many lanes as stages, which share its requests; other instances have one."""

    pool: Pool  # one row
    constants: ServingConstants
    requests: Requests
    prefills: bool  # else prompts come with their caches
    decodes: bool  # else a request ends with its first token
    both: Pool = field(init=False)  # its row twice: pricing two iterations takes as long as one
    left_s: list[float] = field(default_factory=list)  # by stage, but for the first: when the last iteration left it
    now_s: float = 0.0
    waiting: deque[_Request] = field(default_factory=deque)
    running: list[_Request] = field(default_factory=list)
    ended: list[tuple[float, ...]] = field(default_factory=list)  # arrival, TTFT, TPOT, tokens of the prompt

    def __post_init__(self) -> None:
        self.both = self.pool.rows(np.array([0, 0]), np.repeat(self.pool.instances, 2))

    def iteration_s(self, decoding: list[_Request], prompts: list[tuple[_Request, float]]) -> float:
        """Seconds of an iteration: these sequences decode, and so many tokens of each prompt are prefilled beside
        them."""
        tokens = sum(taken for _, taken in prompts)
        seen = sum(taken * (it.prompt - it.left_prompt + taken / 2) for it, taken in prompts) / max(tokens, 1.0)
        groups = min(max(len(prompts), 1), float(self.pool.attention_dp[0]))
        batch = Batch(sequences=np.array([float(len(decoding))]), prompt_tokens=np.array([tokens]),
                      context=np.array([self._context(decoding)]), prompt_context=np.array([seen]),
                      prompt_groups=np.array([groups]), answer=self._answer(decoding))  # fmt: skip
        per_group = tokens / groups / float(self.pool.chunk_tokens[0])
        return float(iteration_seconds(self.pool, self.constants, batch)[0]) + float(self.pool.host_s[0]) * per_group

    def _decoding_s(self, decoding: list[_Request], most: float, until_s: float) -> tuple[float, float]:
        """How many iterations decode these sequences until `until_s`, `most` at most, and the mean seconds of one. The
        contexts grow, and seconds with them: between those of the first iteration and the mean of all on a line."""
        none, context = np.zeros(2), self._context(decoding)
        made = most * float(self.pool.step_tokens[0]) / 2
        batch = Batch(sequences=none + len(decoding), prompt_tokens=none, context=np.array([context, context + made]),
                      prompt_context=none, prompt_groups=none + 1.0)  # fmt: skip
        first_s, all_s = iteration_seconds(self.both, self.constants, batch).tolist()
        steps = max(min(most, float(np.ceil(max((until_s - self.now_s) / first_s, 1.0)))), 1e-9)
        return steps, first_s + (all_s - first_s) * min(steps / max(most, 1e-9), 1.0)

    def _context(self, decoding: list[_Request]) -> float:
        """Mean tokens in the cache of a sequence."""
        return sum(it.context for it in decoding) / max(len(decoding), 1)

    def _answer(self, decoding: list[_Request]) -> float:
        return np.inf

    def step(self, room: int, next_arrival_s: float) -> int:
        """One iteration, or several without prompts. Returns the number of answers that end."""
        mixes, groups = bool(self.pool.mixes_prompts[0]), float(self.pool.attention_dp[0])
        decoding = self.running if self.decodes else []
        prompts = self._taken(max(room - len(decoding), 0), len(decoding) / groups if mixes else 0.0)
        tokens = sum(taken for _, taken in prompts)
        if tokens and not mixes:
            decoding = []
        if not prompts and decoding:
            left = min(it.left_output for it in decoding) / float(self.pool.step_tokens[0])
            steps, each_s = self._decoding_s(decoding, left, next_arrival_s)
        else:
            steps, each_s = 1.0, self.iteration_s(decoding, prompts)
        seconds = steps * each_s
        stage_s = seconds / (len(self.left_s) + 1)
        self.now_s += stage_s  # when the first stage is free
        done_s = self.now_s
        for stage, left_s in enumerate(self.left_s):  # an iteration waits for a longer one before it in each stage
            done_s = self.left_s[stage] = max(done_s, left_s) + stage_s
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
            request.left_output -= steps * float(self.pool.step_tokens[0])
        return self._ended() if decoding else 0

    def _ended(self) -> int:
        """Takes away the requests whose answers are whole, and returns their number."""
        over = [request for request in self.running if request.left_output <= 0.5]
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
            request.first_s = done_s if self.prefills or self.pool.decodes_first[0] else request.arrival_s
            request.left_output -= 1.0
            if self.decodes and request.left_output > 0.5:
                self.running.append(request)
            else:
                self._end(request)
                over += 1
        return over

    def send(self, request: _Request, on_way: deque[_Request], share: float = 1.0) -> None:
        """A client of a closed loop sends a request now: it comes to the scheduler when its front end is done."""
        request.arrival_s = self.now_s + share * self._front_s(request)
        insort(on_way, request, key=lambda it: it.arrival_s)

    def begin(self, request: _Request, on_way: deque[_Request], share: float) -> None:
        """A closed loop begins with such a share of an answer, and of its way to the scheduler, left, so that answers
        of equal length do not all end together."""
        given = min(float(self.pool.step_tokens[0]), request.output)
        request.left_output = given * max(float(np.ceil(share * request.output / given)), 1.0)
        self.send(request, on_way, share)

    def _front_s(self, request: _Request) -> float:
        """From the client to the scheduler."""
        return self.requests.front_s + self.constants.prompt_token_s * request.prompt

    def _end(self, request: _Request) -> None:
        waited_s = request.first_s - request.arrival_s + (self._front_s(request) if self.prefills else 0.0)
        self.ended.append((request.arrival_s, waited_s, self._tpot_s(request), request.prompt))

    def _tpot_s(self, request: _Request) -> float:
        """Of a request that ends now."""
        swap_s = 0.0
        if self.pool.methods.swaps and self.decodes:
            swap_s = float(self.pool.swap_s(np.array([request.prompt + request.output / 2]))[0])
        return (self.now_s - request.first_s + swap_s) / max(request.output - 1.0, 1.0)


@dataclass(slots=True)
class _FillingLane(_Lane):
    """A model that fills in: a request is in all passes from the next one on, and none gives more than its answer."""

    passes_s: dict[tuple[int, float, float], float] = field(default_factory=dict)  # by sequences and their mean tokens

    def step(self, room: int, next_arrival_s: float) -> int:
        while self.waiting and len(self.running) < room:
            self.running.append(self.waiting.popleft())
            self.running[-1].begun_s = self.now_s
        once = self._pass_s()
        left = min(it.left_output / self._given(it) for it in self.running)
        passes = min(left, max(float(np.ceil((next_arrival_s - self.now_s) / once)), 1.0))
        begun_s, self.now_s = self.now_s, self.now_s + passes * once
        for request in self.running:
            given, filled = self._given(request), request.output - request.left_output
            first = float(self.pool.first_tokens(np.array([request.output]))[0])
            if filled < first:
                between = self.pool.methods.frames - 1.0  # passes of other frames of its stream
                request.first_s = begun_s + (min((first - filled) / given, passes) + between * first / given) * once
            request.left_output -= passes * given
        return self._ended()

    def _context(self, decoding: list[_Request]) -> float:
        return sum(it.prompt + it.output for it in decoding) / len(decoding)

    def _answer(self, decoding: list[_Request]) -> float:
        return sum(it.output for it in decoding) / len(decoding)

    def _pass_s(self) -> float:
        """Seconds of a pass over those that run; remembered, since many passes are over as many and as long ones."""
        seen = len(self.running), self._context(self.running), self._answer(self.running)
        if seen not in self.passes_s:
            self.passes_s[seen] = self.iteration_s(self.running, [])
        return self.passes_s[seen]

    def _given(self, request: _Request) -> float:
        """Tokens of a pass."""
        return min(float(self.pool.step_tokens[0]), request.output)

    def _tpot_s(self, request: _Request) -> float:
        return (self.now_s - request.begun_s) / request.output


def simulate(
    pool: Pool, constants: ServingConstants, requests: Requests, capacity: float, *, prefills: bool = True,
    decodes: bool = True, seed: int = 0,
) -> Simulated:  # fmt: skip
    """One lane of one instance. pool: one row. capacity: sequences that the caches of the instance hold."""
    # Instances that prefill alone have one queue before their first stage.
    stages, further = (float(pool.pp[0]), 0) if decodes else (1.0, int(pool.pp[0]) - 1)
    made = _FillingLane if pool.methods.fills else _Lane
    lane = made(pool, constants, requests, prefills, decodes, left_s=[0.0] * further)
    room, generator = max(int(capacity / stages), 1), np.random.default_rng(seed)
    coming = deque(_coming(requests, stages, generator))
    closed = requests.rate <= 0
    clients = min(max(round(requests.concurrency / stages), 1), len(coming)) if closed else 0
    on_way, free = (deque[_Request]() if closed else coming), 0
    for share in generator.random(clients):
        lane.begin(coming.popleft(), on_way, float(share))
    while True:
        for _ in range(min(free, len(coming)) if closed else 0):
            lane.send(coming.popleft(), on_way)
        free = 0
        while on_way and on_way[0].arrival_s <= lane.now_s:
            lane.waiting.append(on_way.popleft())
        if lane.waiting or lane.running:
            free = lane.step(room, on_way[0].arrival_s if on_way else np.inf)
        elif on_way:
            lane.now_s = on_way[0].arrival_s
        else:
            break
    warm_up = max(int(_WARM_UP * requests.number), min(clients, requests.number // 2))
    counted = np.array(sorted(lane.ended)[warm_up:])
    return Simulated(counted[:, 1], counted[:, 2], counted[:, 3])


def _coming(requests: Requests, stages: float, generator: np.random.Generator) -> list[_Request]:
    """The requests of a lane, the first first. A trace that is too short comes again."""
    lengths, number, rate = requests.lengths, requests.number, requests.rate / stages
    if lengths.arrivals_s is None or rate <= 0:
        gaps = generator.exponential(size=number)
        at = np.cumsum(gaps / rate) if rate > 0 else np.zeros(number)
        prompts, answers = lengths.draw(number, generator)
    else:
        dealt = np.cumsum(generator.geometric(requests.share / stages, size=number)) - 1
        rounds, places = np.divmod(dealt, len(lengths.arrivals_s))
        period = lengths.arrivals_s[-1] * len(lengths.arrivals_s) / (len(lengths.arrivals_s) - 1)
        at = (rounds * period + lengths.arrivals_s[places]) * lengths.trace_rate * requests.share / requests.rate
        prompts, answers = lengths.prompts[places], lengths.answers[places]
    rows = zip(at.tolist(), prompts.tolist(), answers.tolist(), strict=True)
    return [_Request.of(*row, lengths.prefix_hit) for row in rows]
