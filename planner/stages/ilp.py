"""An integer program for the layers of every chunk of a pipeline, and the number of them that are recomputed.

The layers are runs r of L[r] equal ones, so the program counts layers of a run instead of placing them one by one. For
every chunk c, in the order of the model, on device d(c):

  n[c, r]  integer: layers of run r on chunk c
  q[c, r]  integer, q <= n: how many of these are recomputed (0 where all or none are)
  z[c, r]  binary: run r ends on chunk c or before it
  U        seconds of the optimizer;  T  seconds of the step

  minimise T
  sum_c n[c, r] = L[r]                                       every layer is somewhere                 _place_all
  z[c, r] L[r] <= sum_{b<=c} n[b, r]                         a run starts where the one before it     _in_order
  sum_{b<=c} n[b, r+1] <= L[r+1] z[c, r]                       has ended
  sum_r n[c, r] >= least[c]                                  1, but 0 on the first and the last chunk,  _fill
                                                               with embedding and head; a vision tower
                                                               needs some on the first (least_layers)
  sum_r n[c, r] >= sum_r n[2p-1-c, r]                        in a V of p devices no more layers come  _fill
                                                               back to c than went there (num_folded)
  fixed[d] + sum_{c on d, r} (resident[c, r] n - dropped[c, r] q) <= memory   every GPU, at every     _fit
                                                               moment at which it may be fullest
  fixed[d] + sum_{c on d, r} (resident[c, r] - dropped[c, r]) n + recompute <= memory                 _fit
                                                               a recomputed layer needs its tensors
                                                               for a while, which counts where no
                                                               other layer is resident for longer
  U >= sum_{c on d, r} update[d, r] n + fixed_update[d]      the optimizer of every device            _update
  T >= U + hops(P) + sum_c F_P[c] f_c + I_P[c] i_c + W_P[c] w_c   every path P through the schedule   _add_path
         + sum_{c on d, r} unhidden[d, r] n + fixed_unhidden[d]   that ends on device d

f_c, i_c, w_c, linear in n and q, are the seconds of a micro-batch on chunk c: forward, backward for inputs (with
recomputation), backward for weights. F_P[c], I_P[c], W_P[c] count how often path P runs each of them. A schedule has a
fixed order, so a step is as long as its longest path, and all paths together are the simulated pipeline exactly. There
are too many to write down, so they are added as they are needed (Kelley's cutting planes): solve, simulate the answer,
add its longest path, until the program proposes a partition that was simulated before. With some of the paths, the
program is a relaxation: its value is a lower bound of every partition that fits. Collectives of data parallelism are
not in it. The simulated step of an answer has them, and the plan states the gap between the two.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pulp

from ...cost_models.arrays import Array
from ...cost_models.schedules.critical_path import Path
from ..search.highs import HiGHS
from .problem import GAP, PartitionProblem

NODES = 200  # branch-and-bound nodes per program


@dataclass(frozen=True)
class Solution:
    """The answer of the solvers to a program."""

    status: str  # solved, infeasible, or failed
    bound_s: float  # seconds of pipeline and optimizer that no partition beats; inf if infeasible, 0 if it failed
    solver: str  # the one that answered
    note: str  # what went wrong on the way


class Program:
    """The program of the docstring, with the paths known so far. `whole`: integers, else their relaxation."""

    def __init__(self, problem: PartitionProblem, paths: list[Path], *, whole: bool) -> None:
        self.problem, self.whole = problem, whole
        self.chunks, self.runs = range(len(problem.devices)), range(len(problem.runs))
        kind = pulp.LpInteger if whole else pulp.LpContinuous
        self.model = pulp.LpProblem("partition", pulp.LpMinimize)
        self.n = self._layers("n", kind)
        self.q = self._layers("q", kind) if problem.chooses_recompute else []
        self.update = self.model.add_variable("update_s", 0)
        self.step = self.model.add_variable("step_s", 0)
        self.model += self.step
        self._place_all()
        self._in_order()
        self._fill()
        self._fit()
        self._update()
        for path in paths:
            self._add_path(path)

    def _layers(self, name: str, kind: str) -> list[list[pulp.LpVariable]]:
        """[chunk][run] counts."""
        most, add = self.problem.runs, self.model.add_variable
        return [[add(f"{name}_{c}_{r}", 0, most[r], kind) for r in self.runs] for c in self.chunks]

    def _place_all(self) -> None:
        for r in self.runs:
            self.model += pulp.lpSum(row[r] for row in self.n) == self.problem.runs[r]
        for c in self.chunks if self.q else ():
            for r in self.runs:
                self.model += self.q[c][r] <= self.n[c][r]

    def _in_order(self) -> None:
        # In the relaxation, z is a share: half a run may be followed by half of the next. The order is kept loosely.
        kind = pulp.LpBinary if self.whole else pulp.LpContinuous
        for r in self.runs[:-1]:
            so_far, so_far_next = pulp.LpAffineExpression(), pulp.LpAffineExpression()
            for c in self.chunks[:-1]:
                ended = self.model.add_variable(f"z_{c}_{r}", 0, 1, kind)
                so_far, so_far_next = so_far + self.n[c][r], so_far_next + self.n[c][r + 1]
                self.model += self.problem.runs[r] * ended <= so_far
                self.model += so_far_next <= self.problem.runs[r + 1] * ended

    def _fill(self) -> None:
        for c, least in enumerate(self.problem.least_layers):
            if least:
                self.model += pulp.lpSum(self.n[c]) >= least
        for c in range(self.problem.num_folded):
            self.model += pulp.lpSum(self.n[c]) >= pulp.lpSum(self.n[-1 - c])

    def _fit(self) -> None:
        problem = self.problem
        for device, fixed_bytes in enumerate(problem.needs.fixed_bytes.tolist()):
            scale = 1.0 / float(problem.memory_bytes[device])  # near 1, as solvers compare with absolute tolerances
            cells = [(c, r) for c in self.chunks if problem.devices[c] == device for r in self.runs]
            for moment, fixed in enumerate(fixed_bytes):
                resident = problem.needs.resident_bytes[:, moment] * scale
                total = pulp.lpSum(resident[c, r] * self.n[c][r] for c, r in cells)
                if self.q:
                    dropped = problem.needs.dropped_bytes[:, moment] * scale
                    least = total - pulp.lpSum(dropped[c, r] * self.n[c][r] for c, r in cells)
                    total -= pulp.lpSum(dropped[c, r] * self.q[c][r] for c, r in cells)
                    recomputing = (fixed + float(problem.needs.recompute_bytes[device])) * scale
                    if moment == 0 and recomputing <= 1.0:  # else the stage may still be empty
                        self.model += least <= 1.0 - recomputing
                self.model += total <= 1.0 - fixed * scale

    def _update(self) -> None:
        for device, fixed in enumerate(self.problem.fixed_update_s.tolist()):
            chunks = [c for c in self.chunks if self.problem.devices[c] == device]
            layers = pulp.lpSum(self.problem.update_s[device, r] * self.n[c][r] for c in chunks for r in self.runs)
            self.model += self.update >= (layers + fixed) / self._unit

    def _add_path(self, path: Path) -> None:
        p, unit = self.problem, self._unit
        forward, inputs, weights = (passes[:, None] for passes in (path.forward, path.inputs, path.weights))
        layer_s = forward * p.forward_s + inputs * p.input_s + weights * p.weight_s
        layer_s = layer_s + np.equal(p.devices, path.device)[:, None] * p.unhidden_s[path.device]
        fixed_s = path.seconds(p.edge_forward_s, p.edge_input_s, p.edge_weight_s, p.hop_s, p.link_s)
        fixed_s += float(p.fixed_unhidden_s[path.device])
        terms = [(self.step, 1.0), (self.update, -1.0), *_products(layer_s / -unit, self.n)]
        terms += _products(inputs * p.recompute_s / -unit, self.q) if self.q else []
        self.model += pulp.LpAffineExpression(terms) >= fixed_s / unit

    @property
    def value_s(self) -> float:
        """Seconds of a step that the program has found."""
        return float(self.step.varValue) * self._unit

    @property
    def _unit(self) -> float:
        """Seconds of all layers of a step on one device, over devices. Solvers like it that T is near 1."""
        p = self.problem
        per_micro_batch = np.array(p.runs) @ (p.forward_s + p.input_s + p.weight_s).mean(axis=0)
        return float(p.schedule.num_micro_batches * per_micro_batch / p.num_devices)

    def solve(self, left_s: float, nodes: int) -> Solution:
        """left_s: seconds that it may take; nodes: of its branch-and-bound search at most. If a solver raises an error,
        the next one is tried."""
        failures, limit_s = "", None if np.isinf(left_s) else max(left_s, 0.1)
        for name, make in _SOLVERS:
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore", DeprecationWarning)  # PuLP 4 renames its bundled CBC
                    self.model.solve(make(self.whole, limit_s, nodes))
            except Exception as error:
                failures += f"{name} failed ({type(error).__name__}: {error}); "
                continue
            note = failures and f"{failures}{name} solved the stages instead"
            if self.model.status == pulp.LpStatusInfeasible:
                return Solution("infeasible", np.inf, name, note)
            if self.step.varValue is None or self.model.sol_status not in _HAS_VALUES:  # a limit came first
                return Solution("failed", 0.0, name, note)
            return Solution("solved", self._bound(name) * self._unit, name, note)
        return Solution("failed", 0.0, "", f"{failures}stages are only improved layer by layer, without a bound")

    def _bound(self, name: str) -> float:
        """The proven bound, in units: the dual bound of the solver, else its answer less the gap that it may leave."""
        if name == "HiGHS" and self.whole:
            return float(self.model.solverModel.getInfo().mip_dual_bound)
        if self.whole and self.model.sol_status != pulp.LpSolutionOptimal:
            return 0.0
        return float(self.step.varValue) * (1.0 - GAP * self.whole)

    def values(self) -> tuple[Array, Array]:
        """[chunk, run] n and q of the answer."""
        n = np.array([[x.varValue for x in row] for row in self.n], dtype=np.float64)
        return n, np.array([[x.varValue for x in row] for row in self.q]) if self.q else np.zeros_like(n)

    @property
    def pipeline_s(self) -> float:
        """Seconds of the pipeline as the program has them."""
        return float(self.step.varValue - self.update.varValue) * self._unit


def _products(factors: Array, variables: list[list[pulp.LpVariable]]) -> list[tuple[pulp.LpVariable, float]]:
    """The terms of the sum of factors[c, r] x variables[c][r], without those that are zero."""
    rows = zip(variables, factors.tolist(), strict=True)
    return [(x, by) for row, factor in rows for x, by in zip(row, factor, strict=True) if by]


_HAS_VALUES = (pulp.LpSolutionOptimal, pulp.LpSolutionIntegerFeasible)


_SOLVERS: tuple[tuple[str, Callable[[bool, float | None, int], pulp.LpSolver]], ...] = (
    ("HiGHS", lambda whole, limit_s, nodes: HiGHS(mip_max_nodes=nodes, **_options(whole, limit_s))),
    ("CBC", lambda whole, limit_s, nodes: pulp.PULP_CBC_CMD(maxNodes=nodes, **_options(whole, limit_s))),
)


def _options(whole: bool, limit_s: float | None) -> dict[str, Any]:
    return {"msg": False, "mip": whole, "gapRel": GAP, "threads": 1, "timeLimit": limit_s}
