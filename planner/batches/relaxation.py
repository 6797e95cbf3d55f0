"""A lower bound on the makespans of M micro-batches out of a small integer program, and makespans that come near it.

A makespan C is in one of the classes [E[j], E[j+1]]. The program counts micro-batches, groups and shares of sequences
by class j and degree d, and knows neither which group a sequence is in nor which micro-batch a group is in:

  l[j]       integer: micro-batches of the class;  G[j]  the sum of their makespans, E[j] l <= G <= E[j+1] l
  z[j, d]    groups, integer from degree WHOLE_GROUPS;  y[j, d]  the sum of their seconds, y <= E[j+1] z
  x[k, j, d] share of item k, where t(k, d) <= E[j+1]: a long sequence, or the short ones of a range of lengths

  minimise sum G
  sum l = M,   sum_jd x[k] >= 1
  sum_k t(k, d) x <= y,   sum_k (s(k) + idle(k)) x <= z room  seconds and tokens of the groups of a class and degree
  sum_d d z <= ranks l,   sum_d d y <= ranks G              ranks, and rank-seconds
  sum_{d>=e} d y <= E[j] sum_{d>=e} d z + ranks (G - E[j] l)  no group is longer than its micro-batch, for each e
  sum_d x[k, j, d] <= l[j],   sum_d t(k, d) x <= G[j]       a long sequence is in one micro-batch
  sum of x over long k with t(k, d) > E[j+1] / 2 <= z       no two of these share a group,
  sum of x over long k of more than half of its tokens <= z  nor of these

A range of short lengths counts with the least seconds per token of its sequences and may stand where its shortest may.
A group of class j holds room = min(d rank_tokens, E[j+1] / u) tokens, where u is the least seconds of a token on its
degree. With a long sequence in it, it holds s(k) + (E[j+1] - t(k, d)) / u, if that is less: idle(k) is the difference.
Several of them in one group leave no more than their differences together. Every plan of M micro-batches whose
makespans sum to at most E[-1] satisfies all this, so the optimum, and any dual bound of it, is a lower bound.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pulp

from ...cost_models.arrays import Array
from .packing import Batch, Shape
from .solver import Answer, solve

WHOLE_GROUPS = 4  # groups of so many ranks and more are counted in whole numbers
WHOLE_SEQUENCES = 3  # the longest so many are not shared out
NODES = 200  # of the branch-and-bound search
_NODES_OF_MORE = 1  # of programs of `num` or more micro-batches
_GAP = 0.01  # relative, that the solver may leave
_LONG = 1.4  # a sequence is long if it is longer than so many times the tokens of a rank, or one of the 3 longest
_RATIO = 1.2  # of the ends of a class
_NARROW = (1.01, 1.03)  # ends of classes above a makespan that is known
_SHORTEST = 0.4  # of the mean makespan: all below is one class
_RANGES = 12  # of short lengths, the last one down to the shortest
_RANGE = 1.25  # ratio of the ends of a range


@dataclass(frozen=True, eq=False)
class _Item:
    """A long sequence, or all short ones of a range of lengths."""

    tokens: float
    seconds: Array  # [D] of all of it on each degree
    least_s: Array  # [D] of its shortest sequence: which classes may hold it
    is_long: bool


@dataclass(frozen=True)
class Guide:
    """Micro-batches whose makespans come near a bound, the longest first."""

    limits: tuple[float, ...]  # seconds
    shape: Shape


def _items(batch: Batch) -> list[_Item]:
    lengths, seconds = batch.lengths, batch.seconds
    num_long = max(min(WHOLE_SEQUENCES, len(lengths)), int((lengths > _LONG * batch.costs.rank_tokens).sum()))
    out = [_Item(float(lengths[k]), seconds[k], seconds[k], is_long=True) for k in range(num_long)]
    short = np.arange(num_long, len(lengths))
    if len(short):
        which = np.minimum(np.log(lengths[short[0]] / lengths[short]) // math.log(_RANGE), _RANGES - 1)
        for at in range(_RANGES):
            if len(members := short[which == at]):
                tokens = float(lengths[members].sum())
                token_s = (seconds[members] / lengths[members, None]).min(axis=0)
                out.append(_Item(tokens, tokens * token_s, seconds[members[-1]], is_long=False))
    return out


def _ends(mean_s: float, most_s: float, near_s: Array) -> Array:
    """[j] ends of the classes, which are narrow above each of `near_s`."""
    first = _SHORTEST * mean_s
    num = max(1, math.ceil(math.log(most_s / first) / math.log(_RATIO)))
    ends = first * (most_s / first) ** (np.arange(num + 1) / num)
    narrow = np.outer(near_s, _NARROW).ravel()
    return np.unique(np.concatenate([[0.0], ends, narrow[(narrow > first) & (narrow < most_s)]]))


class _Program:
    """The program of the docstring."""

    def __init__(self, batch: Batch, num: int, most_s: float, near_s: Sequence[float], extra_s: float | None) -> None:
        self.batch, self.items, self.unit = batch, _items(batch), most_s / num
        self.ends = _ends(1.0, float(num), np.array(near_s) / self.unit)  # in units
        self.token_s = (batch.seconds / batch.lengths[:, None]).min(axis=0) / self.unit  # [D] the least of any sequence
        self.model = pulp.LpProblem("micro_batches", pulp.LpMinimize)
        classes = range(len(self.ends) - 1)
        add = self.model.add_variable
        most = num if extra_s is None else num + int(most_s / extra_s)
        self.number = [add(f"l_{j}", 0, most, pulp.LpInteger) for j in classes]
        self.makespans = [add(f"G_{j}", 0) for j in classes]
        extra = 0.0 if extra_s is None else extra_s / self.unit
        self.model += pulp.lpSum(self.makespans) + extra * pulp.lpSum(self.number)
        self.model += pulp.lpSum(self.number) == num if extra_s is None else pulp.lpSum(self.number) >= num
        self.shares: list[list[pulp.LpVariable]] = [[] for _ in self.items]
        self.groups: list[dict[int, pulp.LpVariable]] = [{} for _ in classes]  # [j][column]
        for j in classes:
            self._add_class(j)
        for shares in self.shares:
            self.model += pulp.lpSum(shares) >= 1

    def _add_class(self, j: int) -> None:
        low, high = self.ends[j], self.ends[j + 1]
        self.model += self.makespans[j] >= low * self.number[j]
        self.model += self.makespans[j] <= high * self.number[j]
        ranks, rank_s = [], []
        placed: list[list[tuple[pulp.LpVariable, float]]] = [[] for _ in self.items]
        for column, degree in enumerate(self.batch.costs.degrees.tolist()):
            inside = [k for k, item in enumerate(self.items) if item.least_s[column] <= high * self.unit]
            if inside:
                groups, seconds = self._add_degree(j, column, degree, inside, placed)
                ranks.append((groups, degree))
                rank_s.append((seconds, degree))
        self.model += pulp.LpAffineExpression(ranks) <= self.batch.costs.num_ranks * self.number[j]
        self.model += pulp.LpAffineExpression(rank_s) <= self.batch.costs.num_ranks * self.makespans[j]
        longer = self.makespans[j] - low * self.number[j]
        for at in range(1, len(ranks)):
            wide = pulp.LpAffineExpression(rank_s[at:]) - low * pulp.LpAffineExpression(ranks[at:])
            self.model += wide <= self.batch.costs.num_ranks * longer
        for item, shares in zip(self.items, placed, strict=True):
            if item.is_long and shares:
                self.model += pulp.lpSum(share for share, _ in shares) <= self.number[j]
                self.model += pulp.LpAffineExpression(shares) <= self.makespans[j]

    def _add_degree(
        self, j: int, column: int, degree: int, inside: Sequence[int],
        placed: list[list[tuple[pulp.LpVariable, float]]],
    ) -> tuple[pulp.LpVariable, pulp.LpVariable]:  # fmt: skip
        """The groups of a class and degree, and their seconds."""
        add, high = self.model.add_variable, self.ends[j + 1]
        groups = add(f"z_{j}_{degree}", 0, None, pulp.LpInteger if degree >= WHOLE_GROUPS else pulp.LpContinuous)
        seconds = add(f"y_{j}_{degree}", 0)
        used_s, used_tokens = [], []
        alone: tuple[list[pulp.LpVariable], list[pulp.LpVariable]] = [], []  # by their seconds, by their tokens
        token_s, held = self.token_s[column], degree * self.batch.costs.rank_tokens
        room = min(held, high / token_s)
        for k in inside:
            item = self.items[k]
            share = add(f"x_{k}_{j}_{degree}", 0, 1, pulp.LpInteger if k < WHOLE_SEQUENCES else pulp.LpContinuous)
            item_s = float(item.seconds[column]) / self.unit
            self.shares[k].append(share)
            placed[k].append((share, item_s))
            used_s.append((share, item_s))
            idle = max(0.0, room - item.tokens - (high - item_s) / token_s) if item.is_long else 0.0
            used_tokens.append((share, (item.tokens + idle) / room))
            for members, is_most in zip(alone, (item_s > high / 2, item.tokens > held / 2), strict=True):
                if item.is_long and is_most:
                    members.append(share)
        self.model += seconds <= high * groups
        self.model += pulp.LpAffineExpression(used_s) <= seconds
        self.model += pulp.LpAffineExpression(used_tokens) <= groups
        for members in filter(None, alone):
            self.model += pulp.lpSum(members) <= groups
        self.groups[j][column] = groups
        return groups, seconds

    def guide(self) -> Guide:
        """The micro-batches of the answer, the longest first, with whole groups on all ranks."""
        out = []
        for number, makespans, groups in zip(self.number, self.makespans, self.groups, strict=True):
            if count := round(number.varValue or 0.0):
                each = [(groups[column].varValue or 0.0) / count if column in groups else 0.0
                        for column in range(len(self.batch.costs.degrees))]  # fmt: skip
                out += [(self.unit * float(makespans.varValue) / count, self._whole(each))] * count
        out.sort(reverse=True)
        return Guide(tuple(makespan_s for makespan_s, _ in out), tuple(counts for _, counts in out))

    def _whole(self, groups: Sequence[float]) -> tuple[int, ...]:
        """Numbers of groups near `groups` [D] that fill the ranks; those of the least degree fill the rest."""
        left, out = self.batch.costs.num_ranks, []
        for degree, number in reversed(list(zip(self.batch.costs.degrees.tolist(), groups, strict=True))):
            is_least = degree == self.batch.costs.degrees[0]
            out.append(left // degree if is_least else min(round(number), left // degree))
            left -= out[-1] * degree
        return tuple(reversed(out))


def relaxed(
    batch: Batch, num: int, most_s: float, near_s: Sequence[float] = (), extra_s: float | None = None
) -> tuple[float, Guide | None]:  # fmt: skip
    """A lower bound on the sum of the makespans of `num` micro-batches, and micro-batches that come near it.

    extra_s: seconds above 0 that each micro-batch more adds to the sum; the bound is then that of `num` or more.
    most_s: sum of the makespans of a known plan; a bound of inf says that no plan of `num` micro-batches beats it.
    near_s: makespans about which classes are narrow, such as those of a first answer.
    """
    program = _Program(batch, num, most_s, near_s, extra_s)
    nodes = NODES if extra_s is None else _NODES_OF_MORE
    answer: Answer = solve(program.model, gap=_GAP, nodes=nodes, for_bound=True)
    if answer.status == "infeasible":
        return np.inf, None
    bound_s = answer.bound * program.unit - num * (extra_s or 0.0)
    return bound_s, program.guide() if answer.status == "solved" else None
