"""A load of requests, and the steady state of pools under it, as columns."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from ..arrays import Array, Mask
from .lengths import RequestLengths
from .pool import Pool
from .shared_iterations import SharedIterations

ROUNDS = 24  # of a fixed point, each half way to the values that the one before gives
PROBE = 0.1  # share of the sequences, of the difference that gives a derivative
FULLEST = 0.999  # share of their room that is taken, assumed limit of a stable open loop as BUSIEST is


@dataclass(frozen=True, kw_only=True, eq=False)
class Load:
    """Requests, columns [n]."""

    prompt: Array  # tokens of a request, mean
    output: Array  # tokens of its answer, mean
    prompt_square: Array  # mean square of the tokens of a prompt
    running_prompt: Array  # mean prompt of the requests that decode at a time
    running_output: Array  # mean answer of those, when it is whole
    arrival_scv: Array  # squared coefficient of variation of the times between arrivals, all instances
    prefix_hit: Array  # share of the prompt tokens that are found in the cache
    prefixes: Array  # different ones, which an instance keeps in its cache
    concurrency: Array  # requests at any time, all instances; infinite: as many as there is room for
    rate: Array  # requests per second of an open loop; 0: a closed loop
    burst_share: Array  # of requests that come together, NaN: not known
    transfer_s: Array  # of a prompt's cache to another pool

    @classmethod
    def equal(
        cls, prompt: Array, output: Array, *, concurrency: Array, rate: Array, burst_share: Array, transfer_s: Array
    ) -> Load:  # fmt: skip
        """Requests whose lengths are all the same in a row."""
        return cls(prompt=prompt, output=output, prompt_square=prompt**2, running_prompt=prompt, running_output=output,
                   arrival_scv=np.ones_like(prompt), prefix_hit=np.zeros_like(prompt), prefixes=np.zeros_like(prompt),
                   concurrency=concurrency, rate=rate, burst_share=burst_share,
                   transfer_s=transfer_s)  # fmt: skip

    @classmethod
    def of(
        cls, requests: RequestLengths, *, concurrency: Array, rate: Array, burst_share: Array, transfer_s: Array
    ) -> Load:  # fmt: skip
        """The same requests in all rows."""
        same = {name: np.full(rate.shape, getattr(requests, name)) for name in (
            "prompt", "output", "prompt_square", "running_prompt", "running_output", "arrival_scv", "prefix_hit",
            "prefixes")}  # fmt: skip
        return cls(**same, concurrency=concurrency, rate=rate, burst_share=burst_share, transfer_s=transfer_s)

    def thinned(self, share: float) -> Load:
        """So large a share of the requests of an open loop, each taken at random."""
        scv = 1.0 + (self.arrival_scv - 1.0) * share
        return replace(self, rate=self.rate * share, arrival_scv=scv)

    @cached_property
    def context(self) -> Array:
        """[n] tokens in the cache of a sequence that decodes, mean."""
        return np.asarray(self.running_prompt + self.running_output / 2)

    @cached_property
    def prompt_context(self) -> Array:
        """[n] tokens that a prefilled token sees, mean: what is found in the cache and half of the rest, and more of
        them are in long prompts."""
        return np.asarray(self.prompt_square / self.prompt * (1.0 + self.prefix_hit) / 2)

    def sequences_on(self, pool: Pool) -> tuple[Array, Array, Array]:
        """[n] each, of an instance: sequences that it has room for, requests of a closed loop, and those of them that
        there is room for."""
        capacity = pool.capacity(self.running_prompt, self.running_output, self.prefix_hit, self.prefixes)
        capacity = np.where(capacity > 0, capacity, pool.max_sequences)
        number = np.minimum(self.concurrency / pool.instances, 1e6)
        return capacity, number, np.minimum(number, capacity)

    def waiting(self, number: Array, held: Array) -> Array:
        """[n] requests of a closed loop that an instance has no room for."""
        opened = (self.rate > 0) | ~np.isfinite(self.concurrency)
        return np.where(opened, 0.0, np.maximum(number - held, 0.0))

    @cached_property
    def prefilled(self) -> Array:
        """[n] tokens of a prompt that are not found in the cache, mean."""
        return np.asarray(self.prompt * (1.0 - self.prefix_hit))


@dataclass(frozen=True, slots=True)
class RoomWaits:
    """Waits for room, columns [n]: none with probability 1 - waiting, else exponential."""

    waiting: Array  # share of the requests that wait
    scale_s: Array  # mean wait of those

    @property
    def mean_s(self) -> Array:
        """[n] the mean of all waits."""
        return self.waiting * self.scale_s

    def at_most(self, share: float) -> Array:
        """[n] seconds that a share of the waits does not exceed."""
        return np.asarray(self.scale_s * np.log(np.maximum(self.waiting / (1.0 - share), 1.0)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """The steady state, columns [n]."""

    ttft_s: Array  # time to first token, mean; the queue included
    tpot_s: Array  # time per output token after the first, mean; of models that fill in of all tokens
    output_tokens_per_s: Array  # of all GPUs
    output_tokens_per_s_per_gpu: Array
    sequences: Array  # that decode, or are filled in, at once, of an instance
    deviation: Array  # standard deviation of `sequences`
    capacity: Array  # sequences that an instance has room for
    prompt_load: Array  # share of time that prompts take
    load_factor: Array  # rate over the one at which all room is always taken; 0: closed loops, and decoders
    queue_s: Array  # mean wait of a prompt for prompts before it, or of a request for room, of `ttft_s`
    pipeline_s: Array  # of `queue_s`, in further stages behind iterations with more prompt tokens
    room: RoomWaits  # of an open loop; of instances that decode alone not in `queue_s`
    first_token_s: Array  # wait for an iteration that decodes, of `ttft_s`
    decode_s: Array  # of an iteration without prompts, which gives `step_tokens` of the pool
    prompt_s: Array  # that a prompt adds to the iterations of its instance, mean
    longest_s: Array  # that those of an iteration add where no other prompt is in the stages of its pipeline
    most_s: Array  # that prompts add to a round of a pipeline at most; infinite where it has one stage
    prompts: SharedIterations  # iterations with prompts
    full_s: Array  # of an iteration that decodes where all room is taken, the prompts beside it included
    stable: Mask  # whether the queue of an open loop does not grow, and caches hold all requests of a closed one
