"""Seconds in which an engine generates the answers of a training step: all start at once, and each ends by itself."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from math import exp
from statistics import NormalDist

import numpy as np

from ..arrays import Array
from .iteration import Batch, ServingConstants, iteration_seconds
from .pool import Pool

_QUANTILES = 256  # of a distribution of lengths
_ROUNDS = 60  # of bisections, which halve their interval
# Spread of log-lengths where no percentile is given: the 90th percentile is then about twice the mean (assumed).
USUAL_SPREAD = 0.7
# The mean around a given 90th percentile is least at a spread of z(0.9) = 1.28: exp(z^2 / 2) = 2.27 times less.
_WIDEST_SPREAD = NormalDist().inv_cdf(0.9)
MOST_P90 = exp(_WIDEST_SPREAD**2 / 2.0)  # times the mean
_PARTS = 24  # of a rollout, in each of which the batch counts as constant


@dataclass(frozen=True, kw_only=True)
class AnswerLengths:
    """Tokens of answers: log-normal, cut off at `largest`, where an engine stops."""

    centre: float  # mean of the logarithm, before the cut
    spread: float  # standard deviation of the logarithm
    largest: float  # infinite: answers end by themselves

    @classmethod
    def of(cls, mean: float, p90: float | None = None, largest: float | None = None) -> AnswerLengths:
        """The distribution with this mean and, where given, 90th percentile. mean < largest; p90 <= largest and at most
        MOST_P90 times the mean."""
        top, tenth = float("inf") if largest is None else float(largest), NormalDist().inv_cdf(0.9)
        low, high = (0.0, _WIDEST_SPREAD) if p90 else (float(np.log(mean)) - 3.0, float(np.log(mean)) + 12.0)

        def at(value: float) -> AnswerLengths:
            if p90:  # a wider spread around the same percentile has a lower mean
                return cls(centre=float(np.log(p90)) - tenth * value, spread=value, largest=top)
            return cls(centre=value, spread=USUAL_SPREAD, largest=top)

        for _ in range(_ROUNDS):
            middle = (low + high) / 2
            low, high = (middle, high) if (at(middle).mean > mean) == bool(p90) else (low, middle)
        return at((low + high) / 2)

    def quantile(self, share: float) -> float:
        """Tokens that this share of the answers does not exceed."""
        return float(min(np.exp(self.centre + self.spread * NormalDist().inv_cdf(share)), self.largest))

    @cached_property
    def tokens(self) -> Array:
        """[k] equally likely lengths, rising."""
        return np.array([self.quantile((i + 0.5) / _QUANTILES) for i in range(_QUANTILES)])

    @property
    def mean(self) -> float:
        return float(self.tokens.mean())

    @property
    def mean_square(self) -> float:
        return float((self.tokens**2).mean())

    def longest(self, answers: float) -> float:
        """Tokens of the longest of so many answers, median."""
        return self.quantile(0.5 ** (1.0 / max(answers, 1.0)))

    def running(self, tokens: float) -> float:
        """Share of the answers that are longer."""
        return float((self.tokens > tokens).mean())

    def running_later(self, tokens: float) -> float:
        """The same of the rest of answers that are met at any time: long ones are met more often."""
        return float(np.maximum(self.tokens - tokens, 0.0).sum() / self.tokens.sum())


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollout:
    """Answers of a step."""

    prompts: float
    samples: float  # answers to each prompt, whose cache they share
    prompt: float  # tokens, mean
    lengths: AnswerLengths

    @property
    def answers(self) -> float:
        return self.prompts * self.samples


def rollout_seconds(pool: Pool, constants: ServingConstants, rollout: Rollout) -> Array:
    """[n] seconds until the last answer ends; infinite where no sequence fits into the cache.

    Answers that find no room wait while the batch stays full. Then the batch shrinks as answers end, to the longest.
    """
    lengths = rollout.lengths
    room = pool.capacity(np.asarray(rollout.prompt), np.asarray(lengths.mean))
    answers = rollout.answers / pool.instances  # of an instance
    held = np.minimum(np.maximum(np.ceil(answers), 1.0), np.maximum(room, 1.0))
    waiting = np.maximum(answers - held, 0.0)
    age = lengths.mean_square / (2.0 * lengths.mean)  # of an answer that is met at any time
    full_s = _iteration_s(pool, constants, held, np.full_like(held, rollout.prompt + age))
    seconds = waiting / held * lengths.mean * full_s + _prompts_s(pool, constants, rollout)
    last = np.array([lengths.longest(rollout.answers)] * len(held))
    for part in range(_PARTS):
        tokens = (part + 0.5) / _PARTS * last
        fresh = np.array([lengths.running(float(at)) for at in tokens])
        met = np.array([lengths.running_later(float(at)) for at in tokens])
        batch = np.maximum(held * np.where(waiting > 0, met, fresh), 1.0)
        seconds = seconds + last / _PARTS * _iteration_s(pool, constants, batch, rollout.prompt + tokens)
    return np.where(room >= 1, seconds, np.inf)


def _iteration_s(pool: Pool, constants: ServingConstants, sequences: Array, context: Array) -> Array:
    """[n] seconds of a token of so many sequences of an instance."""
    none = np.zeros_like(sequences)
    return iteration_seconds(pool, constants, Batch(
        sequences=sequences / pool.pp, context=context, prompt_tokens=none, prompt_context=none,
        prompt_groups=np.ones_like(sequences)))  # fmt: skip


def _prompts_s(pool: Pool, constants: ServingConstants, rollout: Rollout) -> Array:
    """[n] seconds in which an instance prefills its prompts, each once for all its samples (prefix caching, on by
    default in vLLM 0.32)."""
    tokens = rollout.prompts / pool.instances * rollout.prompt
    each = pool.chunk_tokens * pool.attention_dp
    none = np.zeros_like(each)
    batch = Batch(sequences=none, context=none, prompt_tokens=each, prompt_groups=pool.attention_dp,
                  prompt_context=np.full_like(each, rollout.prompt / 2))  # fmt: skip
    return np.asarray(tokens / each / pool.pp * (iteration_seconds(pool, constants, batch) + pool.host_s))


def beside(pool: Pool, resident_bytes: float) -> Pool:
    """The pool on GPUs of which other models take so many bytes."""
    return replace(pool, memory_bytes=pool.memory_bytes - resident_bytes)
