"""Requests on their way to a simulated instance: of an open loop by a rate or a trace, of a closed one by its
clients."""

from __future__ import annotations

from bisect import insort
from collections import deque
from dataclasses import dataclass

import numpy as np

from .constants import ServingConstants
from .lengths import RequestLengths


@dataclass(frozen=True, slots=True)
class Requests:
    """Requests to one instance: drawn at random, or those of a trace in their order."""

    lengths: RequestLengths
    rate: float  # per second; 0: a closed loop
    concurrency: int  # requests at any time of a closed loop
    number: int  # simulated
    front_s: float  # from arrival to the scheduler, beside the tokens of the prompt
    share: float = 1.0  # of the requests of a trace, dealt at random, that come to this instance


@dataclass(slots=True)
class Request:
    """One of them, on its way or in the instance."""

    arrival_s: float
    prompt: float  # tokens
    output: float  # tokens
    left_prompt: float  # tokens that are in no iteration yet
    left_output: float  # tokens that are not decoded when it begins to
    begun_s: float = 0.0  # of a model that fills in: its first pass
    first_s: float = 0.0

    @classmethod
    def of(cls, arrival_s: float, prompt: float, output: float, prefix_hit: float) -> Request:
        return cls(arrival_s, prompt, output, prompt * (1.0 - prefix_hit), output)


@dataclass(slots=True)
class Arrivals:
    """Requests that have not come to the scheduler."""

    constants: ServingConstants
    requests: Requests
    clients: int  # of a closed loop
    coming: deque[Request]  # that no client has sent
    on_way: deque[Request]  # by time

    @classmethod
    def of(
        cls, constants: ServingConstants, requests: Requests, given: float, generator: np.random.Generator,
        parts: float = 1.0,
    ) -> Arrivals:  # fmt: skip
        """Those of one of `parts` equal parts of an instance. given: tokens of an answer that an iteration gives."""
        coming = deque(_coming(requests, parts, generator))
        if requests.rate > 0:
            return cls(constants, requests, 0, deque(), coming)
        clients = min(max(round(requests.concurrency / parts), 1), len(coming))
        arrivals = cls(constants, requests, clients, coming, deque())
        for share in generator.random(clients):
            arrivals._begin(coming.popleft(), given, float(share))
        return arrivals

    @property
    def next_s(self) -> float:
        return self.on_way[0].arrival_s if self.on_way else np.inf

    def until(self, now_s: float) -> list[Request]:
        """Takes those that have come."""
        come = list[Request]()
        while self.on_way and self.on_way[0].arrival_s <= now_s:
            come.append(self.on_way.popleft())
        return come

    def ended(self, number: int, now_s: float) -> None:
        """The clients of so many answers that end each send a request now: it comes to the scheduler when its front
        end is done."""
        for _ in range(min(number, len(self.coming))):
            self._send(self.coming.popleft(), now_s, 1.0)

    def front_s(self, request: Request) -> float:
        """From the client to the scheduler."""
        return self.requests.front_s + self.constants.prompt_token_s * request.prompt

    def _begin(self, request: Request, given: float, share: float) -> None:
        """A closed loop begins with such a share of an answer, and of its way to the scheduler, left, so that answers
        of equal length do not all end together."""
        given = min(given, request.output)
        request.left_output = given * max(float(np.ceil(share * request.output / given)), 1.0)
        self._send(request, 0.0, share)

    def _send(self, request: Request, now_s: float, share: float) -> None:
        request.arrival_s = now_s + share * self.front_s(request)
        insort(self.on_way, request, key=lambda it: it.arrival_s)


def _coming(requests: Requests, parts: float, generator: np.random.Generator) -> list[Request]:
    """The requests, the first first. A trace that is too short comes again."""
    lengths, number, rate = requests.lengths, requests.number, requests.rate / parts
    if lengths.arrivals_s is None or rate <= 0:
        gaps = generator.exponential(size=number)
        at = np.cumsum(gaps / rate) if rate > 0 else np.zeros(number)
        prompts, answers = lengths.draw(number, generator)
    else:
        dealt = np.cumsum(generator.geometric(requests.share / parts, size=number)) - 1
        rounds, places = np.divmod(dealt, len(lengths.arrivals_s))
        period = lengths.arrivals_s[-1] * len(lengths.arrivals_s) / (len(lengths.arrivals_s) - 1)
        at = (rounds * period + lengths.arrivals_s[places]) * lengths.trace_rate * requests.share / requests.rate
        prompts, answers = lengths.prompts[places], lengths.answers[places]
    rows = zip(at.tolist(), prompts.tolist(), answers.tolist(), strict=True)
    return [Request.of(*row, lengths.prefix_hit) for row in rows]
