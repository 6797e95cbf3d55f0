"""Which layers sit on which chunk of a pipeline, and how many of them are recomputed: an integer program.

The layers are runs r of L[r] equal ones, so counts are tied instead of placing layers one by one. For every chunk c, in
the order of the model, on device d(c):

  n[c, r]  integer: layers of run r on chunk c                                    kept whole
  q[c, r]  integer, q <= n: how many of these are recomputed (0 where all or none are)
  z[c, r]  binary: run r ends on chunk c or before it
  U        seconds of the optimizer;  T  seconds of the step

  minimise T
  sum_c n[c, r] = L[r]                                       every layer is somewhere                 _place_all
  z[c, r] L[r] <= sum_{b<=c} n[b, r]                         a run starts where the one before it     _in_order
  sum_{b<=c} n[b, r+1] <= L[r+1] z[c, r]                       has ended
  sum_r n[c, r] >= 1                                         only the first and the last chunk,       _fill
                                                               with embedding and head, may be empty
  sum_r n[c, r] >= sum_r n[2p-1-c, r]                        in a V of p devices no more layers come  _fill
                                                               back to c than went there (num_folded)
  fixed[d] + sum_{c on d, r} (held[c, r] n - dropped[c, r] q) <= memory       every GPU, at every     _fit
                                                               moment at which it may be fullest
  fixed[d] + sum_{c on d, r} (held[c, r] - dropped[c, r]) n + redo <= memory  what a layer that is    _fit
                                                               recomputed needs for a while counts
                                                               where none holds more for longer
  U >= sum_{c on d, r} update[d, r] n + fixed_update[d]      the optimizer of every device            _update
  T >= U + hops(P) + sum_c F_P[c] f_c + I_P[c] i_c + W_P[c] w_c   every path P through the schedule   _add_path

f_c, i_c, w_c, linear in n and q, are the seconds of a micro-batch on chunk c: forward, backward for inputs (with
recomputation), backward for weights. F_P[c], I_P[c], W_P[c] count how often path P runs each of them. A schedule has a
fixed order, so a step is as long as its longest path, and all paths together are the simulated pipeline exactly; there
are too many to write down. They are added as they are needed (Kelley's cutting planes): solve, simulate the answer,
add its longest path, until the program proposes what has been simulated. What it says at any time is a lower bound of
every split that fits. Collectives of data parallelism are not in it; the simulated step of an answer has them, and the
gap between the two is stated.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pulp
from numpy.typing import NDArray

from ...cost_models.arrays import Array
from ...cost_models.schedules import simulator
from ...cost_models.schedules.critical_path import Path, longest_paths
from ...cost_models.schedules.simulator import Costs, Schedule


@dataclass(frozen=True, eq=False)
class Stages:
    """What the program knows of a layout. Seconds per micro-batch, bytes per GPU; `run`: of one layer of the run.

    runs: layers of each. devices: [chunk]. forward_s, input_s, weight_s, redo_s: [chunk, run]; edge_*: [chunk] of
    embedding, head and MTP modules. hop_s: [2, chunk] of the messages that bring its input and its gradient; link_s:
    how long they keep their link busy.
    held_bytes, dropped_bytes: [chunk, moment, run] kept by a layer, and how much less if recomputed, at each moment at
    which a device may be fullest: a schedule that splits the backward pass has several (resident.py). fixed_bytes:
    [device, moment]; memory_bytes, redo_bytes: [device], what recomputing a layer adds at the first moment. update_s:
    [device, run] and fixed_update_s: [device] of the optimizer. chooses_recompute: whether q is free. fixed_s: seconds
    of every step outside the pipeline; growth: factor on all (stragglers).
    """

    runs: tuple[int, ...]
    devices: tuple[int, ...]
    order: Schedule
    forward_s: Array
    input_s: Array
    weight_s: Array
    redo_s: Array
    edge_forward_s: Array
    edge_input_s: Array
    edge_weight_s: Array
    hop_s: Array
    link_s: Array
    held_bytes: Array
    dropped_bytes: Array
    fixed_bytes: Array
    redo_bytes: Array
    memory_bytes: Array
    update_s: Array
    fixed_update_s: Array
    chooses_recompute: bool
    fixed_s: float = 0.0
    growth: float = 1.0

    def seconds(self, n: Array, q: Array) -> tuple[Array, Array, Array]:
        """[chunk] forward, input and weight seconds of [chunk, run] layers, also of fractions."""
        inputs = self.edge_input_s + (n * self.input_s + q * self.redo_s).sum(axis=-1)
        forward, weights = ((n * each).sum(axis=-1) for each in (self.forward_s, self.weight_s))
        return self.edge_forward_s + forward, inputs, self.edge_weight_s + weights

    @property
    def num_folded(self) -> int:
        """Devices, from the first, to which no more layers may come back than went there: those of a V. Chunks that
        come back are held for less long, so without this no bound of memory would hold many splits off. Where zb-v
        turns, both are held alike."""
        pp = max(self.devices) + 1
        return pp - (self.order.name == "zb-v") if len(self.devices) > pp and self.devices[pp] == pp - 1 else 0

    def step_s(self, paths: Sequence[Path], n: Array, q: Array) -> Array:
        """[...] seconds of a step as long as the longest of `paths`, for splits of [..., chunk, run] layers; without
        what collectives of data parallelism add."""
        update = (self._on_devices(n) * self.update_s).sum(axis=-1) + self.fixed_update_s
        pipeline_s = self.lengths(paths, n, q).max(axis=-1)
        return np.asarray((pipeline_s + update.max(axis=-1) + self.fixed_s) * self.growth)

    def lengths(self, paths: Sequence[Path], n: Array, q: Array) -> Array:
        """[..., path] seconds of each path, for splits of [..., chunk, run] layers."""
        forward, inputs, weights = self.seconds(n, q)
        ways = [np.array([getattr(path, name) for path in paths]).T for name in ("forward", "inputs", "weights")]
        hops = np.array([path.messages_s(self.hop_s, self.link_s) for path in paths])
        return np.asarray(forward @ ways[0] + inputs @ ways[1] + weights @ ways[2] + hops)

    def fits(self, n: Array, q: Array) -> NDArray[np.bool_]:
        """[...] whether every device has the memory for a split."""
        held = self._at_moments(n, self.held_bytes) - self._at_moments(q, self.dropped_bytes) + self.fixed_bytes
        if self.chooses_recompute:
            least = (self._at_moments(n, self.held_bytes - self.dropped_bytes) + self.fixed_bytes)[..., 0]
            redone = np.where(self._on_devices(n).any(axis=-1), least + self.redo_bytes, 0.0)
            held[..., 0] = np.maximum(held[..., 0], redone)
        return np.asarray((held <= self.memory_bytes[:, None]).all(axis=(-2, -1)))

    def _at_moments(self, layers: Array, num_bytes: Array) -> Array:
        """[..., device, moment] bytes of [..., chunk, run] layers of [chunk, moment, run] bytes each."""
        return self._on_devices(np.einsum("...cr,cmr->...cm", layers, num_bytes))

    def _on_devices(self, values: Array) -> Array:
        """Sums over the chunks of each device: [..., chunk, n] -> [..., device, n]."""
        mine = np.equal.outer(np.arange(max(self.devices) + 1), np.array(self.devices)).astype(np.float64)
        return np.asarray(mine @ values)

    def paths(self, n: Array, q: Array, number: int) -> list[Path]:
        """The longest paths to the ends of the `number` devices that end last."""
        forward, inputs, weights = (tuple(x.tolist()) for x in self.seconds(n, q))
        (there, back), (busy, busy_back) = (map(tuple, each.tolist()) for each in (self.hop_s, self.link_s))
        costs = Costs(forward_s=forward, input_s=inputs, weight_s=weights, forward_hop_s=there, backward_hop_s=back,
                      forward_link_s=busy, backward_link_s=busy_back)  # fmt: skip
        timeline = simulator.simulate(self.order, costs)
        latest = np.argsort(-timeline.compute_end_s, kind="stable")[:number]
        return longest_paths(timeline, latest.tolist())


GAP = 1e-3  # relative: what the solver may leave
NODES = 200  # branch-and-bound nodes per program


def counts(stages: Stages, sizes: Array, redone: Array | None = None) -> tuple[Array, Array]:
    """[..., chunk, run] layers of splits of [..., chunk] layers, and those recomputed, the first of each chunk."""
    edges = np.cumsum([0, *stages.runs])
    ends = np.cumsum(sizes, axis=-1)
    starts = ends - sizes

    def overlap(until: Array) -> Array:
        low = np.maximum(starts[..., None], edges[:-1])
        return np.asarray(np.maximum(np.minimum(until[..., None], edges[1:]) - low, 0.0))

    return overlap(ends), overlap(starts + (0.0 if redone is None else redone))


class Program:
    """The program of the docstring, with the paths known so far. `whole`: integers, else their relaxation."""

    def __init__(self, stages: Stages, paths: list[Path], *, whole: bool) -> None:
        self.stages, self.whole = stages, whole
        self.chunks, self.runs = range(len(stages.devices)), range(len(stages.runs))
        kind = pulp.LpInteger if whole else pulp.LpContinuous
        self.problem = pulp.LpProblem("partition", pulp.LpMinimize)
        self.n = self._layers("n", kind)
        self.q = self._layers("q", kind) if stages.chooses_recompute else []
        self.update = self.problem.add_variable("update_s", 0)
        self.step = self.problem.add_variable("step_s", 0)
        self.problem += self.step
        self._place_all()
        self._in_order()
        self._fill()
        self._fit()
        self._update()
        for path in paths:
            self._add_path(path)

    def _layers(self, name: str, kind: str) -> list[list[pulp.LpVariable]]:
        """[chunk][run] counts."""
        most, add = self.stages.runs, self.problem.add_variable
        return [[add(f"{name}_{c}_{r}", 0, most[r], kind) for r in self.runs] for c in self.chunks]

    def _place_all(self) -> None:
        for r in self.runs:
            self.problem += pulp.lpSum(row[r] for row in self.n) == self.stages.runs[r]
        for c in self.chunks if self.q else ():
            for r in self.runs:
                self.problem += self.q[c][r] <= self.n[c][r]

    def _in_order(self) -> None:
        kind = pulp.LpBinary if self.whole else pulp.LpContinuous
        for r in self.runs[:-1]:
            until: list[pulp.LpAffineExpression] = [pulp.LpAffineExpression(), pulp.LpAffineExpression()]
            for c in self.chunks[:-1]:
                ended = self.problem.add_variable(f"z_{c}_{r}", 0, 1, kind)
                until = [so_far + self.n[c][r + i] for i, so_far in enumerate(until)]
                self.problem += self.stages.runs[r] * ended <= until[0]
                self.problem += until[1] <= self.stages.runs[r + 1] * ended

    def _fill(self) -> None:
        for c in self.chunks[1:-1]:
            self.problem += pulp.lpSum(self.n[c]) >= 1
        for c in range(self.stages.num_folded):
            self.problem += pulp.lpSum(self.n[c]) >= pulp.lpSum(self.n[-1 - c])

    def _fit(self) -> None:
        stages = self.stages
        for device, moments in enumerate(stages.fixed_bytes.tolist()):
            scale = 1.0 / float(stages.memory_bytes[device])  # near 1, as solvers compare with absolute tolerances
            mine = [c for c in self.chunks if stages.devices[c] == device]
            for moment, fixed in enumerate(moments):
                held, dropped = (each[:, moment] * scale for each in (stages.held_bytes, stages.dropped_bytes))
                total = pulp.lpSum(held[c, r] * self.n[c][r] for c in mine for r in self.runs)
                if self.q:
                    least = total - pulp.lpSum(dropped[c, r] * self.n[c][r] for c in mine for r in self.runs)
                    total -= pulp.lpSum(dropped[c, r] * self.q[c][r] for c in mine for r in self.runs)
                    with_redo = (fixed + float(stages.redo_bytes[device])) * scale
                    if moment == 0 and with_redo <= 1.0:  # else the stage may still be empty
                        self.problem += least <= 1.0 - with_redo
                self.problem += total <= 1.0 - fixed * scale

    def _update(self) -> None:
        for device, fixed in enumerate(self.stages.fixed_update_s.tolist()):
            mine = [c for c in self.chunks if self.stages.devices[c] == device]
            layers = pulp.lpSum(self.stages.update_s[device, r] * self.n[c][r] for c in mine for r in self.runs)
            self.problem += self.update >= (layers + fixed) / self._unit

    def _add_path(self, path: Path) -> None:
        s, unit = self.stages, self._unit
        forward, inputs, weights = (way[:, None] for way in (path.forward, path.inputs, path.weights))
        layer, again = forward * s.forward_s + inputs * s.input_s + weights * s.weight_s, inputs * s.redo_s
        fixed = path.seconds(s.edge_forward_s, s.edge_input_s, s.edge_weight_s, s.hop_s, s.link_s)
        terms = [(self.step, 1.0), (self.update, -1.0), *_products(layer / -unit, self.n)]
        terms += _products(again / -unit, self.q) if self.q else []
        self.problem += pulp.LpAffineExpression(terms) >= fixed / unit

    @property
    def value_s(self) -> float:
        """Seconds of a step that the program has found."""
        return float(self.step.varValue) * self._unit

    @property
    def _unit(self) -> float:
        """Seconds of all layers of a step on one device, over devices: what T is near 1 of."""
        s = self.stages
        per_micro_batch = np.array(s.runs) @ (s.forward_s + s.input_s + s.weight_s).mean(axis=0)
        return float(s.order.num_micro_batches * per_micro_batch / (max(s.devices) + 1))

    def solve(self, left_s: float, nodes: int) -> tuple[str, float, str, str]:
        """(status, bound in seconds, solver, note). status: solved, infeasible, or failed. left_s: its time at most;
        nodes: of its search at most."""
        failures, limit_s = "", None if np.isinf(left_s) else max(left_s, 0.1)
        for name, make in _SOLVERS:
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore", DeprecationWarning)  # PuLP 4 renames its bundled CBC
                    self.problem.solve(make(self.whole, limit_s, nodes))
            except Exception as error:
                failures += f"{name} failed ({type(error).__name__}: {error}); "
                continue
            note = failures and f"{failures}{name} solved the stages instead"
            if self.problem.status == pulp.LpStatusInfeasible:
                return "infeasible", np.inf, name, note
            if self.step.varValue is None or self.problem.sol_status not in _FOUND:  # a limit came first
                return "failed", 0.0, name, note
            return "solved", self._bound(name) * self._unit, name, note
        return "failed", 0.0, "", f"{failures}stages are only improved layer by layer, without a bound"

    def _bound(self, name: str) -> float:
        """What the solver proves: its own dual bound, else its answer less the gap it may leave."""
        if name == "HiGHS" and self.whole:
            return float(self.problem.solverModel.getInfo().mip_dual_bound)
        if self.whole and self.problem.sol_status != pulp.LpSolutionOptimal:
            return 0.0
        return float(self.step.varValue) * (1.0 - GAP * self.whole)

    def values(self) -> tuple[Array, Array]:
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


_FOUND = (pulp.LpSolutionOptimal, pulp.LpSolutionIntegerFeasible)


class _HiGHS(pulp.HiGHS):  # type: ignore[misc]
    """HiGHS, of which PuLP 3.3 does not know the status of a search that its node limit ended."""

    def findSolutionValues(self, lp: pulp.LpProblem) -> tuple[int, int]:
        try:
            status: tuple[int, int] = super().findSolutionValues(lp)
        except KeyError:  # by then the values are assigned
            found = np.isfinite(lp.solverModel.getInfo().objective_function_value)
            if found:
                return pulp.LpStatusOptimal, pulp.LpSolutionIntegerFeasible
            return pulp.LpStatusNotSolved, pulp.LpSolutionNoSolutionFound
        return status


_SOLVERS: tuple[tuple[str, Callable[[bool, float | None, int], pulp.LpSolver]], ...] = (
    ("HiGHS", lambda whole, limit_s, nodes: _HiGHS(mip_max_nodes=nodes, **_options(whole, limit_s))),
    ("CBC", lambda whole, limit_s, nodes: pulp.PULP_CBC_CMD(maxNodes=nodes, **_options(whole, limit_s))),
)


def _options(whole: bool, limit_s: float | None) -> dict[str, Any]:
    return {"msg": False, "mip": whole, "gapRel": GAP, "threads": 1, "timeLimit": limit_s}
