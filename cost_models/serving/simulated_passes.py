"""The passes of a model that fills in: a request is in all of them from the next one on.

A pipeline has as many lanes as stages. Passes over lanes of like loads do not hold up one another, so one lane stands
for all.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import numpy as np

from .arrivals import Arrivals, Request
from .constants import ServingConstants
from .iteration import Batch, iteration_seconds
from .pool import Pool


@dataclass(slots=True)
class Passes:
    """One lane of an instance. No pass gives more than the answer."""

    pool: Pool  # one row
    constants: ServingConstants
    arrivals: Arrivals
    room: int  # sequences
    now_s: float = 0.0
    waiting: deque[Request] = field(default_factory=deque)
    running: list[Request] = field(default_factory=list)
    ended: list[tuple[float, ...]] = field(default_factory=list)  # arrival, TTFT, TPOT, tokens of the prompt
    passes_s: dict[tuple[int, float, float], float] = field(default_factory=dict)  # by sequences and their mean tokens

    def run(self) -> list[tuple[float, ...]]:
        """`ended`, when all requests have."""
        while True:
            self.waiting.extend(self.arrivals.until(self.now_s))
            if self.waiting or self.running:
                before = len(self.ended)
                self._step()
                self.arrivals.ended(len(self.ended) - before, self.now_s)
            elif self.arrivals.next_s < np.inf:
                self.now_s = self.arrivals.next_s
            else:
                return self.ended

    def _step(self) -> None:
        """Passes until a request comes or an answer ends."""
        while self.waiting and len(self.running) < self.room:
            self.running.append(self.waiting.popleft())
            self.running[-1].begun_s = self.now_s
        once = self._pass_s()
        left = min(it.left_output / self._given(it) for it in self.running)
        passes = min(left, max(float(np.ceil((self.arrivals.next_s - self.now_s) / once)), 1.0))
        begun_s, self.now_s = self.now_s, self.now_s + passes * once
        for request in self.running:
            given, filled = self._given(request), request.output - request.left_output
            first = float(self.pool.first_tokens(np.array([request.output]))[0])
            if filled < first:
                between = self.pool.methods.frames - 1.0  # passes of other frames of its stream
                request.first_s = begun_s + (min((first - filled) / given, passes) + between * first / given) * once
            request.left_output -= passes * given
        for request in [it for it in self.running if it.left_output <= 0.5]:
            self._end(request)
        self.running = [it for it in self.running if it.left_output > 0.5]

    def _pass_s(self) -> float:
        """Seconds of a pass over those that run; remembered, since many passes are over as many and as long ones."""
        number = len(self.running)
        tokens = sum(it.prompt + it.output for it in self.running) / number
        seen = number, tokens, sum(it.output for it in self.running) / number
        if seen not in self.passes_s:
            none = np.zeros(1)
            batch = Batch(sequences=none + number, context=none + tokens, prompt_tokens=none, prompt_context=none,
                          prompt_groups=none + 1.0, answer=seen[-1])  # fmt: skip
            self.passes_s[seen] = float(iteration_seconds(self.pool, self.constants, batch)[0])
        return self.passes_s[seen]

    def _given(self, request: Request) -> float:
        """Tokens of a pass."""
        return min(float(self.pool.step_tokens[0]), request.output)

    def _end(self, request: Request) -> None:
        waited_s = request.first_s - request.arrival_s + self.arrivals.front_s(request)
        tpot_s = (self.now_s - request.begun_s) / request.output
        self.ended.append((request.arrival_s, waited_s, tpot_s, request.prompt))
