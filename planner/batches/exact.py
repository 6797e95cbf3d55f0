"""The exact program of FlexSP for a small batch, over all its micro-batches.

Wang et al., arXiv:2412.01523, section 4.2, with the choice of the micro-batches, which the paper makes before, inside:

  A[k, p]  binary: sequence k is in group p;  m[p]  binary: group p has sequences;  C[i]  seconds of micro-batch i

  minimise sum C
  sum_p A[k, p] = 1
  sum_k s(k) A[k, p] <= d(p) room m[p]                       tokens of a group
  sum_k t(k, d(p)) A[k, p] <= C[i]                           groups p of micro-batch i
  sum_p d(p) m[p] <= ranks                                   the same
  A[k, p] <= m[p];  no A[k, p] where t(k, d(p)) is infinite
  C[i] >= C[i+1];  m[p] >= m[p+1] for equal groups           of plans that differ in names only, one

Groups p: ranks / d of every degree d, in every micro-batch, and no more than sequences.
"""

from __future__ import annotations

import math

import numpy as np
import pulp

from .area_bound import area_bound
from .batch_plan import Group
from .packing import Batch
from .solver import solve

MOST = 8  # sequences, and ranks, of a small batch
NODES = 200_000  # no small batch came near
GAP = 1e-7  # relative


def is_small(batch: Batch) -> bool:
    """Whether the program is solved in a moment."""
    return max(len(batch.lengths), batch.costs.num_ranks) <= MOST


def best_groups(batch: Batch) -> tuple[list[list[Group]], float]:
    """The micro-batches of the fastest plan, and a lower bound on the seconds of its step."""
    costs, (area, _) = batch.costs, area_bound(batch)
    best: tuple[float, list[list[Group]]] = (math.inf, [])
    bound_s = math.inf
    for num in range(costs.least_micro_batches(batch.lengths), len(batch.lengths) + 1):
        fixed_s = costs.once_s + num * costs.micro_batch_s
        if fixed_s + area >= best[0]:
            bound_s = min(bound_s, fixed_s + area)
            break
        program = _Program(batch, num)
        answer = solve(program.model, gap=GAP, nodes=NODES)
        bound_s = min(bound_s, fixed_s + answer.bound)
        if answer.status == "solved":
            best = min(best, (fixed_s + program.makespans_s, program.groups()), key=lambda pair: pair[0])
    return best[1], bound_s


class _Program:
    """The program of the docstring with `num` micro-batches."""

    def __init__(self, batch: Batch, num: int) -> None:
        self.batch = batch
        self.model = pulp.LpProblem("groups", pulp.LpMinimize)
        self.ends = [self.model.add_variable(f"C_{i}", 0) for i in range(num)]
        self.model += pulp.lpSum(self.ends)
        # (micro-batch, degree, in use, [(sequence, whether it is in the group)])
        self.parts: list[tuple[int, int, pulp.LpVariable, list[tuple[int, pulp.LpVariable]]]] = []
        for i in range(num):
            self._add_micro_batch(i)
            if i:
                self.model += self.ends[i - 1] >= self.ends[i]
        for k in range(len(batch.lengths)):
            self.model += pulp.lpSum(a for *_, inside in self.parts for q, a in inside if q == k) == 1

    def _add_micro_batch(self, i: int) -> None:
        ranks = []
        for column, degree in enumerate(self.batch.costs.degrees.tolist()):
            previous = None
            for n in range(min(self.batch.costs.num_ranks // degree, len(self.batch.lengths))):
                used = self._add_group(i, n, column, degree)
                ranks.append((used, degree))
                if previous is not None:
                    self.model += previous >= used
                previous = used
        self.model += pulp.LpAffineExpression(ranks) <= self.batch.costs.num_ranks

    def _add_group(self, i: int, n: int, column: int, degree: int) -> pulp.LpVariable:
        seconds, lengths = self.batch.seconds[:, column], self.batch.lengths
        add = self.model.add_variable
        used = add(f"m_{i}_{degree}_{n}", 0, 1, pulp.LpInteger)
        inside = [(k, add(f"A_{i}_{degree}_{n}_{k}", 0, 1, pulp.LpInteger))
                  for k in range(len(lengths)) if np.isfinite(seconds[k])]  # fmt: skip
        room = self.batch.costs.rank_tokens
        self.model += pulp.LpAffineExpression([(a, lengths[k] / room) for k, a in inside]) <= degree * used
        self.model += pulp.LpAffineExpression([(a, seconds[k]) for k, a in inside]) <= self.ends[i]
        for _, a in inside:
            self.model += a <= used
        self.parts.append((i, degree, used, inside))
        return used

    @property
    def makespans_s(self) -> float:
        """Seconds of the micro-batches of the answer together."""
        return sum(float(end.varValue) for end in self.ends)

    def groups(self) -> list[list[Group]]:
        """The groups of each micro-batch."""
        out: list[list[Group]] = [[] for _ in self.ends]
        for i, degree, _, inside in self.parts:
            if members := tuple(k for k, a in inside if a.varValue > 0.5):
                out[i].append(Group(degree, members))
        return out
