"""Seconds in which an engine generates the answers of a training step: all start at once, and each ends by itself."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import exp, inf, log
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
_PARTS = 64  # of the longest answer, in each of which the batch counts as constant
_BEYOND = 32.0  # times the answers, whose longest ends the parts: the rest of a long tail has few tokens
_NONE = 1e-12  # share of the slots


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
        return self.evenly(_QUANTILES)

    def evenly(self, number: int) -> Array:
        """[number] equally likely lengths, rising: quantiles at even steps."""
        return np.array([self.quantile((i + 0.5) / number) for i in range(number)])

    @property
    def mean(self) -> float:
        return self.moment(1, self.largest)

    @property
    def mean_square(self) -> float:
        return self.moment(2, self.largest)

    def longest(self, answers: float) -> float:
        """Tokens of the longest of so many answers, median."""
        return self.quantile(0.5 ** (1.0 / max(answers, 1.0)))

    def moment(self, power: int, cut: float) -> float:
        """Mean of this power of the lengths, each cut off at `cut` <= largest: the partial moment of a log-normal
        distribution, and the power of `cut` for the rest."""
        share = NormalDist().cdf
        z = (log(cut) - self.centre) / self.spread if cut > 0 else -inf
        shorter = exp(power * self.centre + (power * self.spread) ** 2 / 2.0) * share(z - power * self.spread)
        return shorter + (float(cut) ** power * share(-z) if z < inf else 0.0)

    def running(self, edges: Array) -> Array:
        """[k] share of the answers that run, mean between two of the edges [k + 1]: tokens, rising, the last at most
        `largest`."""
        within = np.array([self.moment(1, float(edge)) for edge in edges])
        return np.asarray(np.diff(within) / np.diff(edges))


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Phases:
    """Iterations of a rollout, in the order of parts in which the batch counts as constant."""

    iterations: Array  # [part, n]
    batch: Array  # [part, n] answers of an instance that decode
    age: Array  # [part, n] tokens that each of them has, mean


def phases(rollout: Rollout, held: Array, instances: Array) -> Phases:
    """The batch of an instance over time. held: [n] answers that the cache of an instance has room for, instances: [n].

    All slots start at once, and a slot whose answer ends takes the next until none waits: a renewal process, whose
    start times are those that keep all slots full. Iterations count by the chance that any slot of any instance still
    runs. The tokens of all parts are those of the answers; only where the mean batch is under one they are more: the
    other instances are done then.
    """
    lengths = rollout.lengths
    most = lengths.longest(_BEYOND * max(rollout.answers, _BEYOND))
    width = most / _PARTS
    running = lengths.running(np.linspace(0.0, most, _PARTS + 1))
    answers = rollout.answers / instances
    slots = np.minimum(answers, held)
    taken = _starts(running, answers / slots)
    later = np.arange(2 * _PARTS)[None, :] - np.arange(_PARTS)[:, None]  # parts since the start
    alive = np.where((later >= 0) & (later < _PARTS), running[np.clip(later, 0, _PARTS - 1)], 0.0)
    busy = np.clip(taken @ alive, 0.0, 1.0).T  # [part, n] share of the slots
    age = (taken @ (alive * (later + 0.5) * width)).T / np.maximum(busy, _NONE)
    some = -np.expm1(slots * instances * np.log1p(-np.minimum(busy, 1.0 - _NONE)))
    batch = slots * busy / np.maximum(some, _NONE)
    # Iterations for the answers that start after the longest of the first ended.
    full = np.maximum(answers / slots - taken.sum(axis=1), 0.0) * lengths.mean
    steady = lengths.mean_square / (2.0 * lengths.mean)  # age of an answer that is met at any time
    return Phases(iterations=np.vstack([full, width * some]), batch=np.maximum(np.vstack([slots, batch]), 1.0),
                  age=np.vstack([np.full_like(full, steady), age]))  # fmt: skip


def _starts(running: Array, owed: Array) -> Array:
    """[n, part] answers that a slot starts in each part, `owed` [n] at most: the share that keeps it full."""
    full = np.zeros(_PARTS)
    for part in range(_PARTS):
        full[part] = (1.0 - full[:part] @ running[part:0:-1]) / running[0]
    return np.clip(owed[:, None] - (np.cumsum(full) - full), 0.0, full)


def rollout_seconds(pool: Pool, constants: ServingConstants, rollout: Rollout) -> Array:
    """[n] seconds until the last answer ends, mean; infinite where the longest does not fit into the cache."""
    lengths, prompt = rollout.lengths, np.asarray(rollout.prompt)
    fits = pool.capacity(prompt + lengths.longest(rollout.answers), np.asarray(0.0)) >= 1
    parts = _phases(pool, rollout)
    seconds = _prompts_s(pool, constants, rollout)
    for iterations, batch, age in zip(parts.iterations, parts.batch, parts.age, strict=True):
        seconds = seconds + iterations * _iteration_s(pool, constants, batch, rollout.prompt + age)
    return np.where(fits, seconds, np.inf)


def decoding_iterations(pool: Pool, rollout: Rollout) -> Array:
    """[n] iterations of an instance until the last answer ends, mean, without those of prompts."""
    return np.asarray(_phases(pool, rollout).iterations.sum(axis=0))


def _phases(pool: Pool, rollout: Rollout) -> Phases:
    return phases(rollout, np.maximum(room(pool, rollout), 1.0), pool.instances)


def room(pool: Pool, rollout: Rollout) -> Array:
    """[n] answers that the caches of an instance hold: long ones are met more often among those that decode."""
    lengths = rollout.lengths
    return pool.capacity(np.asarray(rollout.prompt), np.asarray(lengths.mean_square / lengths.mean))


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
