"""Seconds in which an engine generates the answers of a training step: all start at once, and each ends by itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from math import exp, inf, log
from statistics import NormalDist

import numpy as np

from ..arrays import Array
from .constants import ServingConstants
from .iteration import Batch, iteration_seconds
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
_FINE = 4  # points of a part, between which the lengths lie on lines
_GROUPS = 16  # of the answers that run or wait
_WAVES = 2.0  # times the answers that run, beyond which the ages of those that run are those at any time
_NONE, _LEAST = 1e-12, 1e-300  # in place of 0


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

    @property
    def met(self) -> float:
        """Tokens of an answer, when it is whole, that is met at any time: long ones are met more often."""
        return self.mean_square / self.mean

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

    def within(self, edges: Array) -> Array:
        """[k] tokens of an answer, mean, up to each of the edges [k], at most `largest`."""
        return np.array([self.moment(1, edge) for edge in edges.tolist()])


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
class Cache:
    """Caches of an instance, and the answers that an engine decodes at once."""

    sequences: Array  # [n] at most, by the options of the engine
    share: Callable[[Array], Array]  # tokens of an answer so far [..., n] -> what it takes of the caches of an instance


@dataclass(frozen=True, slots=True, kw_only=True)
class Phases:
    """Iterations of a rollout, in the order of parts in which the batch counts as constant."""

    iterations: Array  # [part, n]
    batch: Array  # [part, n] answers of an instance that decode
    age: Array  # [part, n] tokens that each of them has, mean


def phases(rollout: Rollout, cache: Cache, instances: Array) -> Phases:
    """The batch of an instance over time. instances: [n].

    An engine admits by the tokens in its cache (vLLM 0.32, Scheduler.schedule): all answers start whose prompts have
    room, the cache fills as they grow, and where it is full the last that came stop, to go on with their tokens when
    others end. So the first in line run that fit together. The line is cut into equal groups, of which the last may run
    in part. Those that stopped are prefilled again, which is not counted.

    Iterations count by the chance that any answer of any instance still runs. The tokens of all parts are those of the
    answers; only where the mean batch is under one they are more: the other instances are done then.
    """
    lengths, answers = rollout.lengths, rollout.answers / instances
    most = lengths.longest(_BEYOND * max(rollout.answers, _BEYOND))
    width = most / _PARTS
    met = lengths.met / 2.0  # age of an answer
    steady = np.minimum(1.0 / cache.share(np.full_like(answers, met)), cache.sequences)
    later = np.maximum(answers - _WAVES * steady, 0.0)  # while the cache is full, and the ages are those at any time
    line = _Line.of(lengths, most, (answers - later) / _GROUPS)
    iterations, batch, age = [later / steady * lengths.mean], [steady], [np.full_like(answers, met)]
    while not line.done:
        none_left, ran, ages = line.run(cache, width)
        some = -np.expm1(instances * none_left)
        iterations.append(width * some)
        batch.append(ran / np.maximum(width * some, _NONE))
        age.append(ages)
    return Phases(iterations=np.array(iterations), batch=np.maximum(batch, 1.0), age=np.array(age))


@dataclass(slots=True)
class _Line:
    """Answers in the order in which they came, in equal groups."""

    size: Array  # [n] answers of a group
    edges: Array  # [k] tokens, rising
    within: Array  # [k] of an answer, mean, up to so many
    age: Array  # [group, n] tokens of the answers that have not ended

    @classmethod
    def of(cls, lengths: AnswerLengths, most: float, size: Array) -> _Line:
        edges = np.linspace(0.0, most, _FINE * _PARTS + 1)
        return cls(size, edges, lengths.within(edges), np.zeros((_GROUPS, len(size))))

    @property
    def done(self) -> bool:
        return bool((self.age >= self.edges[-1]).all())

    def _until(self, age: Array) -> Array:
        """[group, n] tokens of an answer, mean, up to this age."""
        return np.interp(age, self.edges, self.within)

    def run(self, cache: Cache, width: float) -> tuple[Array, Array, Array]:
        """Run for `width` iterations: [n] the logarithm of the chance that all answers have ended, the tokens that
        come, and the mean age of the answers that get them."""
        start, before = self.age, self._until(self.age)
        alive = (self._until(start + width) - before) / width  # share of the answers, mean
        number = self.size * alive
        share = number * cache.share(start + width / 2.0)
        part = np.minimum(_that_fits(share, np.ones_like(self.size)), _that_fits(number, cache.sequences))
        self.age = start + part * width
        tokens = self.size * (self._until(self.age) - before)
        ran = tokens.sum(axis=0)
        none_left = (self.size * np.log(np.maximum(1.0 - alive, _LEAST))).sum(axis=0)
        return none_left, ran, (tokens * (start + self.age)).sum(axis=0) / 2.0 / np.maximum(ran, _NONE)


def _that_fits(sizes: Array, room: Array) -> Array:
    """[group, n] of each group, the share that fits beside those before it. sizes: [group, n], room: [n]."""
    left = room - (np.cumsum(sizes, axis=0) - sizes)
    return np.clip(left / np.maximum(sizes, _NONE), 0.0, 1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutTime:
    """The rollout of a step; infinite where the longest answer does not fit into the cache."""

    seconds: Array  # [n] until the last answer ends, mean
    iterations: Array  # [n] of an instance until then, without those of prompts
    sequences: Array  # [n] that its caches hold while others wait, or, where they are more, that start together


def rollout_time(pool: Pool, constants: ServingConstants, rollout: Rollout) -> RolloutTime:
    """The time that an engine takes for all answers."""
    longest = rollout.prompt + rollout.lengths.longest(rollout.answers)
    fits = np.flatnonzero(pool.capacity(np.asarray(longest), np.asarray(0.0)) >= 1)
    (seconds, iterations), sequences = np.full((2, len(pool.tp)), np.inf), np.zeros(len(pool.tp))
    if len(fits):
        fitting = pool.rows(fits, pool.instances[fits])
        parts = phases(rollout, _cache(fitting, rollout), fitting.instances)
        decoded = sum(number * _iteration_s(fitting, constants, batch, rollout.prompt + age)
                      for number, batch, age in zip(parts.iterations, parts.batch, parts.age, strict=True))  # fmt: skip
        seconds[fits] = _prompts_s(fitting, constants, rollout) + decoded
        iterations[fits] = parts.iterations.sum(axis=0)
        sequences[fits] = parts.batch.max(axis=0)
    return RolloutTime(seconds=seconds, iterations=iterations, sequences=sequences)


def _cache(pool: Pool, rollout: Rollout) -> Cache:
    whole, grows = pool.room_bytes * pool.attention_dp, pool.reserved_output < 1.0

    def share(age: Array) -> Array:
        """An engine that does not take room as an answer grows reserves that of a whole one."""
        tokens = np.where(grows, age / pool.reserved_output, rollout.lengths.met)
        return np.asarray(pool.held_bytes(np.asarray(rollout.prompt), tokens) / whole)

    return Cache(sequences=pool.max_sequences * pool.attention_dp, share=share)


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
    return np.asarray(tokens / each / pool.pp * iteration_seconds(pool, constants, batch))
