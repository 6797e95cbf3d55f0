"""Prompts that share the iterations of an engine: how many do, and how long each waits for its first token.

An iteration takes the prompts that came during the one before it, as many as a chunk of each group holds, and all of
them have their first token at its end. So it is a queue with service of whole batches (N. T. J. Bailey, On queueing
processes with bulk service, 1954), here with seconds that grow with the batch. Engines do not gather prompts of several
groups of attention data parallelism for an iteration (vLLM 0.32, its page on data parallel deployment: each rank
schedules its own; TensorRT-LLM 1.2, AttentionDpConfig: `enable_balance` is off).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from statistics import NormalDist

import numpy as np

from ..arrays import Array

# Assumed limit of a stable open loop, whose waits grow without bound towards 1: the share of their time in which
# instances take prompts.
BUSIEST = 0.98
POINTS = 32  # of the distribution of the seconds of iterations
# Normal levels of two quantities at each point: with the place itself, that of a third, they are a lattice, which fills
# a cube evenly (N. M. Korobov).
_NORMAL = np.array([[NormalDist().inv_cdf((step * i % POINTS + 0.5) / POINTS) for i in range(POINTS)]
                    for step in (13, 5)])  # fmt: skip


@dataclass(frozen=True, kw_only=True, eq=False)
class SharedIterations:
    """Iterations with prompts of an instance, columns [n]. Seconds are those of the first stage, which takes one
    iteration at a time; of prompts longer than a chunk those of all their iterations."""

    number: Array  # prompts of one, mean
    places: Array  # prompts of one at most, at least one for each group
    rate: Array  # per second, of other prompts than the one that waits
    burst: Array  # prompts that come together, mean
    with_it: Array  # others that come together with a prompt, mean
    behind: Array  # share of the prompts that find no place in the iteration of the first of their burst
    idle_s: Array  # of an iteration without prompts; 0 where nothing decodes beside them
    seconds: Array  # with `number` of them
    more_s: Array  # that one more of them adds
    unlike_s: Array  # standard deviation of the seconds that a prompt adds
    unevenness: Array  # sum of the squared coefficients of variation of arrivals and of the seconds of prompts

    @classmethod
    def single(cls, none: Array) -> SharedIterations:
        """Of one prompt each, before anything is known of them. none: zeros [n]."""
        one = none + 1.0
        return cls(number=one, places=one, rate=none, burst=one, with_it=none, behind=none, idle_s=none, seconds=one,
                   more_s=none, unlike_s=none, unevenness=one)  # fmt: skip

    @cached_property
    def busy(self) -> Array:
        """[n] share of the time in iterations with prompts."""
        return np.minimum(self.rate * self.seconds / self.number, BUSIEST)

    @cached_property
    def taken(self) -> Array:
        """[n] prompts that come over those that iterations with all places taken have room for."""
        return np.minimum(self.rate * self._full_s / self.places, BUSIEST)

    @cached_property
    def _full_s(self) -> Array:
        return self.seconds + self.more_s * (self.places - self.number)

    @cached_property
    def _variance(self) -> Array:
        """[n] of the seconds of an iteration, by the number of its prompts and by their lengths. The number varies more
        as the iteration before does: by 1 / (1 - rho^2). It does not where all places are taken."""
        come, first, ends = self.rate * self.seconds, self._first, self._ends
        squares = first * (self.burst + self.rate * self.idle_s)  # mean square of the first number
        number = self.burst * come + ends * (squares - 2.0 * come * first - ends * first**2)
        grows = np.minimum(self.rate * self.more_s, BUSIEST)
        number = np.maximum(number, 0.0) * (1.0 - self.number / self.places) / (1.0 - grows**2)
        return np.asarray(number * self.more_s**2 + self.number * self.unlike_s**2)

    @cached_property
    def _first(self) -> Array:
        """[n] prompts of an iteration after one without prompts, mean: the bursts that came in that, one at least."""
        bursts = np.maximum(self.rate * self.idle_s / self.burst, 1e-9)
        return np.asarray(self.burst * bursts / -np.expm1(-bursts))

    @cached_property
    def _ends(self) -> Array:
        """[n] probability that no burst comes during an iteration with prompts."""
        return np.asarray(np.exp(-self.rate * self.seconds / self.burst))

    def next_number(self) -> Array:
        """[n] prompts of an iteration with any, mean, by the seconds of these.

        Each iteration after one with prompts has those that came during that: a Poisson number of bursts, none of
        which ends the row. So their number is k = rate (seconds + more_s (k - number)) + ends first.
        """
        fixed_s = self.seconds - self.more_s * self.number
        number = self.rate * fixed_s + self._ends * self._first
        return np.clip(number / np.maximum(1.0 - self.rate * self.more_s, 1e-9), 1.0, self.places)

    def _found_s(self, level: Array) -> Array:
        """[point, n] seconds of the iteration with prompts that a prompt comes in, at normal levels [point, 1].

        What iterations take beyond those with one prompt is taken to have a gamma distribution, as the sizes of
        generations that go on with new ones; more prompts come in long ones. The quantile is that of a gamma
        distribution of this mean and variance, whose root of third degree is normal (E. B. Wilson and M. M. Hilferty,
        The distribution of chi-square, 1931).
        """
        least_s = np.maximum(self.seconds - self.more_s * (self.number - 1.0), 1e-3 * self.seconds)
        beyond = np.maximum(self.seconds - least_s, 1e-6 * self.seconds)
        scale, variance = self._variance / beyond, np.maximum(self._variance, 1e-12 * self.seconds**2)
        mean = self.met_s - least_s
        square = beyond * (beyond + scale) * (least_s + beyond + 2.0 * scale) / self.seconds
        shape = np.maximum(mean, 1e-9) ** 2 / np.maximum(square - mean**2, variance)
        root = np.maximum(1.0 - 1.0 / (9.0 * shape) + level / (3.0 * np.sqrt(shape)), 0.0)
        return np.asarray(np.clip(least_s + mean * root**3, least_s, np.maximum(self._full_s, self.met_s)))

    @cached_property
    def next_share(self) -> Array:
        """[n] seconds that prompts add where more come, over those that they add in the mean: they lengthen iterations
        where these have room for more, instead of taking their own."""
        grows = np.minimum(self.more_s * self.number / self.seconds, 1.0)
        return 1.0 - self.busy * (1.0 - self.number / self.places) * (1.0 - grows)

    @cached_property
    def met_s(self) -> Array:
        """[n] mean of the iteration with prompts that a prompt comes in: the longer one is, the more come in it."""
        return self.seconds + self._variance / self.seconds

    @cached_property
    def rest_s(self) -> Array:
        """[n] mean wait for the end of an iteration."""
        return (self.idle_s + self.busy * (self.met_s - self.idle_s)) / 2.0

    @cached_property
    def others(self) -> Array:
        """[n] prompts in the iteration of another one, mean."""
        come = self.rate * (self.idle_s + self.busy * (self.met_s - self.idle_s)) + self.with_it
        return np.minimum(come, self.places - 1.0)

    @cached_property
    def longer_s(self) -> Array:
        """[n] mean seconds of the iteration of a prompt beyond `seconds`."""
        return self.more_s * (1.0 + self.others - self.number)

    @cached_property
    def left(self) -> Array:
        """[n] share of the prompts that come in an iteration with prompts and do not find a place in the next one.
        Where iterations take as long whatever is in them, it is that of a queue with as many servers (H. Sakasegawa, An
        approximation formula L = alpha rho^beta / (1 - rho), 1977); where they take as long as their prompts alone, of
        one server with so many waiting, whose number has the tail exp(-2 (1 - rho) n / unevenness)."""
        grows = self.more_s * self.places / self._full_s
        servers = (np.sqrt(2.0 * (self.places + 1.0)) - 2.0) * np.log(np.maximum(self.taken, 1e-12))
        waiting = -2.0 * (1.0 - self.taken) * (self.places - 1.0) / np.maximum(self.unevenness, 1e-12)
        return np.asarray(self.taken * np.exp((1.0 - grows) * servers + grows * np.minimum(waiting, servers)))

    @cached_property
    def left_s(self) -> Array:
        """[n] mean wait of those for further iterations."""
        return self.unevenness / 2.0 * self._full_s / (self.places * (1.0 - self.taken))

    @cached_property
    def behind_s(self) -> Array:
        """[n] mean wait of those `behind` for the iterations of the others of their burst: the numbers of prompts that
        come together have a geometric distribution, so that as many are left as there were."""
        return self.burst * self._full_s / self.places

    @cached_property
    def further_s(self) -> Array:
        """[n] mean wait of all prompts for further iterations."""
        return self.busy * self.left * self.left_s + self.behind * self.behind_s


@dataclass(frozen=True, slots=True)
class FirstTokenWaits:
    """Seconds from the arrival of a prompt to the end of its iteration, without those that it takes itself and that
    do not depend on other prompts, as points [point, n]. A wait for places of further iterations is exponential. The
    first of two is of prompts that come in an iteration without prompts, the second of those in one with some."""

    busy: Array  # share of the second
    found_s: tuple[Array, Array]  # [point, n] of the iteration that a prompt comes in
    beside_s: tuple[Array, Array]  # [point, n] of others in its own
    left: tuple[Array, Array]  # share that waits for further iterations
    left_s: tuple[Array, Array]  # mean of those that do
    mean_s: Array

    @classmethod
    def of(cls, shared: SharedIterations, stages: Array, later_s: Array) -> FirstTokenWaits:
        """stages: that each prompt passes. later_s: mean wait in those after the first, of prompts that wait."""
        spread, chance = _NORMAL[:, :, None]
        found_s = shared._found_s(spread)
        both_s = np.broadcast_to(shared.idle_s, found_s.shape), found_s
        unlike = (shared.unlike_s / np.maximum(shared.more_s, 1e-12)) ** 2
        beside_s = list[Array]()
        for seconds in both_s:
            come = shared.rate * seconds + shared.with_it
            come = come + chance * np.sqrt(np.maximum(come, 0.0) * (shared.burst + unlike))
            beside_s.append(shared.more_s * stages * np.clip(come, 0.0, shared.places - 1.0))
        waits = shared.left + shared.behind * (1.0 - shared.left)
        left = np.where(later_s > 0, 1.0, waits)
        all_s = shared.left * shared.left_s + later_s / np.maximum(shared.busy, 1e-12) + shared.behind * shared.behind_s
        mean_s = shared.rest_s + shared.further_s + later_s + shared.more_s * stages * shared.others
        return cls(shared.busy, both_s, (beside_s[0], beside_s[1]), (shared.behind, left),
                   (shared.behind_s, all_s / np.maximum(left, 1e-12)), mean_s)  # fmt: skip

    def at_most(self, share: float) -> Array:
        """[n] seconds that at least a share of the prompts does not exceed."""
        longest_s = sum(np.asarray(it.max(axis=0)) for it in (*self.found_s, *self.beside_s))
        idle_s, busy_s = (left_s * np.log(np.maximum(left / (1.0 - share), 1.0))
                          for left, left_s in zip(self.left, self.left_s, strict=True))  # fmt: skip
        return np.asarray(longest_s + np.maximum(idle_s, busy_s))

    def below(self, seconds: Array) -> Array:
        """[n] share of the prompts that take no longer than seconds [point, n] of their own."""
        idle, busy = (self._below(seconds, of) for of in (0, 1))
        return np.asarray((1.0 - self.busy) * idle + self.busy * busy)

    def _below(self, seconds: Array, of: int) -> Array:
        """[n] that share of those that come in an iteration without prompts, or with some."""
        left_s, found_s = np.maximum(self.left_s[of], 1e-9), np.maximum(self.found_s[of], 1e-9)
        after_s = np.maximum(seconds - self.beside_s[of], 0.0)
        rest_s = np.minimum(after_s, found_s)
        waited_s = self.left[of] * left_s * (np.exp((rest_s - after_s) / left_s) - np.exp(-after_s / left_s))
        return np.asarray(((rest_s - waited_s) / found_s).mean(axis=0))
