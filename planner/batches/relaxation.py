"""A lower bound on the makespans of M micro-batches out of a small integer program, and makespans that come near it.

A makespan C is in one of the classes [E[j], E[j+1]]. The program counts micro-batches, groups and shares of sequences
by class j and degree d, and knows neither which group a sequence is in nor which micro-batch a group is in:

  l[j]       integer: micro-batches of the class;  G[j]  the sum of their makespans, E[j] l <= G <= E[j+1] l
  z[j, d]    groups, integer from degree WHOLE_GROUPS;  y[j, d]  the sum of their seconds, y <= E[j+1] z
  x[k, j, d] share of item k, where t(k, d) <= E[j+1]: a long sequence, or the short ones of a range of lengths

  minimise sum G
  sum l = M,   sum_jd x[k] >= 1
  sum_k t(k, d) x <= y,   sum_k s(k) x <= d room z          seconds and tokens of the groups of a class and degree
  sum_d d z <= ranks l,   sum_d d y <= ranks G              ranks, and rank-seconds
  sum_d x[k, j, d] <= l[j],   sum_d t(k, d) x <= G[j]       a long sequence is in one micro-batch
  sum of x over long k with t(k, d) > E[j+1] / 2 <= z       no two of these share a group

A range of short lengths counts with the least seconds per token of its sequences and may stand where its shortest may.
Every plan of M micro-batches whose makespans sum to at most E[-1] satisfies all this, so the optimum, and any dual
bound of it, is a lower bound.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pulp

from ...cost_models.arrays import Array
from .packing import Batch
from .solver import Answer, solve

WHOLE_GROUPS = 8  # groups of so many ranks and more are counted in whole numbers
WHOLE_SEQUENCES = 4  # the longest so many are not shared out
NODES = 200  # of the branch-and-bound search
_GAP = 0.005  # relative, that the solver may leave
_LONG = 1.4  # a sequence is long if it is longer than so many times the tokens of a rank, or one of the 4 longest
_RATIO = 1.1  # of the ends of a class
_SHORTEST = 0.4  # of the mean makespan: all below is one class
_RANGES = 8  # of short lengths


@dataclass(frozen=True, eq=False)
class _Item:
    """A long sequence, or all short ones of a range of lengths."""

    tokens: float
    seconds: Array  # [D] of all of it on each degree
    least_s: Array  # [D] of its shortest sequence: which classes may hold it
    is_long: bool


def _items(batch: Batch) -> list[_Item]:
    lengths, seconds = batch.lengths, batch.seconds
    num_long = max(min(WHOLE_SEQUENCES, len(lengths)), int((lengths > _LONG * batch.costs.rank_tokens).sum()))
    out = [_Item(float(lengths[k]), seconds[k], seconds[k], is_long=True) for k in range(num_long)]
    short = np.arange(num_long, len(lengths))
    if len(short):
        ends = lengths[short[0]] * 0.5 ** np.arange(_RANGES)[::-1]
        which = np.searchsorted(ends, lengths[short])
        for at in range(_RANGES):
            if len(members := short[which == at]):
                tokens = float(lengths[members].sum())
                token_s = (seconds[members] / lengths[members, None]).min(axis=0)
                out.append(_Item(tokens, tokens * token_s, seconds[members[-1]], is_long=False))
    return out


def _ends(mean_s: float, most_s: float) -> Array:
    """[j] ends of the classes."""
    first = _SHORTEST * mean_s
    num = max(1, math.ceil(math.log(most_s / first) / math.log(_RATIO)))
    return np.concatenate([[0.0], first * (most_s / first) ** (np.arange(num + 1) / num)])


class _Program:
    """The program of the docstring."""

    def __init__(self, batch: Batch, num: int, most_s: float) -> None:
        self.batch, self.items, self.unit = batch, _items(batch), most_s / num
        self.ends = _ends(1.0, float(num))  # in units
        self.model = pulp.LpProblem("micro_batches", pulp.LpMinimize)
        classes = range(len(self.ends) - 1)
        add = self.model.add_variable
        self.number = [add(f"l_{j}", 0, num, pulp.LpInteger) for j in classes]
        self.makespans = [add(f"G_{j}", 0) for j in classes]
        self.model += pulp.lpSum(self.makespans)
        self.model += pulp.lpSum(self.number) == num
        self.shares: list[list[pulp.LpVariable]] = [[] for _ in self.items]
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
        used_s, used_tokens, alone = [], [], []
        for k in inside:
            item = self.items[k]
            share = add(f"x_{k}_{j}_{degree}", 0, 1, pulp.LpInteger if k < WHOLE_SEQUENCES else pulp.LpContinuous)
            item_s = float(item.seconds[column]) / self.unit
            self.shares[k].append(share)
            placed[k].append((share, item_s))
            used_s.append((share, item_s))
            used_tokens.append((share, item.tokens / self.batch.costs.rank_tokens))
            if item.is_long and item_s > high / 2:
                alone.append(share)
        self.model += seconds <= high * groups
        self.model += pulp.LpAffineExpression(used_s) <= seconds
        self.model += pulp.LpAffineExpression(used_tokens) <= degree * groups
        if alone:
            self.model += pulp.lpSum(alone) <= groups
        return groups, seconds

    def limits_s(self) -> list[float]:
        """The makespans of the answer, the longest first."""
        out = []
        for number, makespans in zip(self.number, self.makespans, strict=True):
            count = round(number.varValue or 0.0)
            out += [self.unit * float(makespans.varValue) / max(count, 1)] * count
        return sorted(out, reverse=True)


def relaxed(batch: Batch, num: int, most_s: float) -> tuple[float, list[float]]:
    """A lower bound on the sum of the makespans of `num` micro-batches, and makespans that come near it.

    most_s: sum of the makespans of a known plan; a bound of inf says that no plan of `num` micro-batches beats it.
    """
    program = _Program(batch, num, most_s)
    answer: Answer = solve(program.model, gap=_GAP, nodes=NODES)
    if answer.status == "infeasible":
        return np.inf, []
    limits = program.limits_s() if answer.status == "solved" else []
    return answer.bound * program.unit, limits
