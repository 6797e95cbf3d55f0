"""Lengths of requests: distributions of the tokens of prompts and answers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from ..arrays import Array

_POINTS = 1024  # that stand for a continuous distribution, or for two independent ones
_GOLDEN = (math.sqrt(5.0) - 1.0) / 2.0  # multiples of it, without their whole part, fill [0, 1] most evenly


@dataclass(frozen=True, slots=True, eq=False)
class Lengths:
    """A distribution of numbers of tokens. Compared by identity."""

    tokens: Array  # [k] ascending
    weights: Array  # [k] shares, which sum to 1

    @classmethod
    def constant(cls, tokens: float) -> Lengths:
        """All of one length."""
        return cls(np.array([float(tokens)]), np.ones(1))

    @classmethod
    def of(cls, histogram: Mapping[int, float]) -> Lengths:
        """tokens -> weight; the weights need not sum to 1."""
        tokens, weights = np.array(sorted(histogram.items()), dtype=float).T
        return cls(tokens, weights / weights.sum())

    @classmethod
    def lognormal(cls, mean: float, rms: float) -> Lengths:
        """The log-normal distribution of this mean and root mean square, rms >= mean >= 1. No length is below 1."""
        deviation = math.sqrt(2.0 * math.log(rms / mean))
        normal, levels = NormalDist(), (np.arange(_POINTS) + 0.5) / _POINTS
        tokens = np.exp(deviation * np.array([normal.inv_cdf(level) for level in levels]))
        return cls(np.maximum(tokens * mean / tokens.mean(), 1.0), np.full(_POINTS, 1.0 / _POINTS))

    @property
    def mean(self) -> float:
        return float(self.tokens @ self.weights)

    @property
    def mean_square(self) -> float:
        return float(self.tokens**2 @ self.weights)

    def at(self, shares: Array) -> Array:
        """The length that a share of all does not exceed, for each of `shares`."""
        places = np.searchsorted(np.cumsum(self.weights), shares - 1e-12)
        return np.asarray(self.tokens[np.minimum(places, len(self.tokens) - 1)])

    def draw(self, number: int, generator: np.random.Generator) -> Array:
        """[number] lengths drawn at random."""
        return self.at(generator.random(number))

    def strata(self, number: int) -> Array:
        """[number] means of equal shares of the distribution, ascending; one where all lengths are equal."""
        if len(self.tokens) == 1:
            return self.tokens
        edges = np.linspace(0.0, 1.0, number + 1)
        ends = np.concatenate([[0.0], np.cumsum(self.weights)])
        sums = np.concatenate([[0.0], np.cumsum(self.weights * self.tokens)])
        return np.asarray(np.diff(np.interp(edges, ends, sums)) * number)


@dataclass(frozen=True, slots=True, eq=False)
class RequestLengths:
    """Requests as pairs of a prompt and an answer, or a trace of them. Compared by identity."""

    prompts: Array  # [k] tokens
    answers: Array  # [k] tokens
    weights: Array  # [k] shares, which sum to 1
    arrivals_s: Array | None = None  # [k] ascending, of a trace; None: requests come as a Poisson process
    prefix_hit: float = 0.0  # share of the prompt tokens that are found in the cache
    prefixes: float = 0.0  # different ones, which an instance keeps in its cache

    @classmethod
    def equal(cls, prompt: float, answer: float) -> RequestLengths:
        """Requests of one length."""
        return cls(np.array([float(prompt)]), np.array([float(answer)]), np.ones(1))

    @classmethod
    def independent(cls, prompt: Lengths, answer: Lengths) -> RequestLengths:
        """Prompts and answers whose lengths do not depend on each other."""
        if len(prompt.tokens) == len(answer.tokens) == 1:
            return cls.equal(prompt.mean, answer.mean)
        places = np.arange(_POINTS)
        shuffled = np.argsort(np.argsort(places * _GOLDEN % 1.0))  # each level once, next to each other none
        prompts, answers = (of.at((order + 0.5) / _POINTS) for of, order in ((prompt, places), (answer, shuffled)))
        return cls(prompts, answers, np.full(_POINTS, 1.0 / _POINTS))

    @property
    def prompt(self) -> float:
        """Mean tokens of a prompt."""
        return float(self.prompts @ self.weights)

    @property
    def output(self) -> float:
        """Mean tokens of an answer."""
        return float(self.answers @ self.weights)

    @property
    def longest(self) -> float:
        """Tokens of the longest prompt with the longest answer."""
        return float(self.prompts.max() + self.answers.max())

    @property
    def prompt_square(self) -> float:
        """Mean square of the tokens of a prompt."""
        return float(self.prompts**2 @ self.weights)

    @property
    def running_prompt(self) -> float:
        """Mean prompt of the requests that decode at a time: those with long answers decode longer."""
        return float(self.prompts * self.answers @ self.weights) / self.output

    @property
    def running_output(self) -> float:
        """Mean answer, when it is whole, of the requests that decode at a time."""
        return float(self.answers**2 @ self.weights) / self.output

    @property
    def arrival_scv(self) -> float:
        """Squared coefficient of variation of the times between arrivals: 1 of a Poisson process."""
        if self.arrivals_s is None or len(self.arrivals_s) < 3:
            return 1.0
        gaps = np.diff(self.arrivals_s)
        return float(gaps.var() / gaps.mean() ** 2)

    @property
    def trace_rate(self) -> float:
        """Requests per second of the trace; 0 where there is none."""
        if self.arrivals_s is None or len(self.arrivals_s) < 2:
            return 0.0
        return (len(self.arrivals_s) - 1) / float(self.arrivals_s[-1] - self.arrivals_s[0])

    @property
    def prompt_lengths(self) -> Lengths:
        """The prompts by themselves."""
        return _marginal(self.prompts, self.weights)

    @property
    def output_lengths(self) -> Lengths:
        """The answers by themselves."""
        return _marginal(self.answers, self.weights)

    @property
    def whole_lengths(self) -> Lengths:
        """Prompts with their answers."""
        return _marginal(self.prompts + self.answers, self.weights)

    def draw(self, number: int, generator: np.random.Generator) -> tuple[Array, Array]:
        """[number] prompts and answers drawn at random, in pairs."""
        places = generator.choice(len(self.weights), size=number, p=self.weights)
        return self.prompts[places], self.answers[places]


def _marginal(tokens: Array, weights: Array) -> Lengths:
    order = np.argsort(tokens, kind="stable")
    return Lengths(tokens[order], weights[order])
