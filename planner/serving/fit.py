"""Fits the constants of serving, and one host overhead per release of an engine, to measured runs.

Minimises, over z (prior widths from the prior means of the logarithms), with rho(r) = log(1 + r^2):
    sum_i rho(log(predicted_i / measured_i) / scatter_i) + sum_j z_j^2
by Gauss-Newton with derivatives by differences. A release moves the runs of that release alone, so one pricing gives
the derivatives by all releases.

Run as a module with files of rows, it writes the constants that ship:
    python -m meshwright.planner.serving.fit serving.yaml.gz
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from ...cost_models.arrays import Array, Ints
from ...cost_models.serving.constants import ServingConstants
from ...cost_models.serving.load import steady_state
from ...cost_models.serving.pool import Pool
from ...cost_models.serving.service import Load, Service
from ...profiles.stack.engines import FITTED_FILE, Engines, release_of, shipped_engines
from ..accuracy.runs import Problems, read_rows
from .pools import pools_of
from .row import ServingCase, read_serving_row

# Scatter of the logarithm of a measurement that no constant explains: of two clusters with equal configuration, TTFT
# differed by a factor of 2 (llm-d, guides/pd-disaggregation); replicates of MLPerf and two pages of TensorRT-LLM's
# overview differ by a few per cent.
SCATTER = {"ttft": 0.3, "tpot": 0.15, "throughput": 0.15}
# Constant -> (prior mean, width of its logarithm).
PRIORS: Mapping[str, tuple[float, float]] = {
    "compute_share": (0.8, 0.1), "bandwidth_share": (0.9, 0.2), "narrow_share": (0.8, 0.2), "expert_share": (0.7, 0.4),
    "cache_share": (0.8, 0.3),
    "short_s": (2.5e-6, 0.3), "latency_share": (0.5, 0.5), "traffic_share": (0.8, 0.5), "sequence_s": (10e-6, 1.0),
    "burst": (1.0, 0.5), "prompt_token_s": (5e-6, 0.7), "step_s": (1.2e-3, 0.4),
}  # fmt: skip
HOST_PRIOR = (40e-3, 0.5)  # the same of `Engines.hosts`
_STEP = 0.005  # of differences, in prior widths
_ROUNDS, _THIRDS = 100, 8  # at most: steps, and cuts of one
_CONVERGED = 1e-5  # relative gain of a step below which the next one is the last


@dataclass(frozen=True)
class Runs:
    """Runs as columns, priced together."""

    cases: tuple[ServingCase, ...]
    prefill: Pool
    decode: Pool
    load: Load
    releases: tuple[str, ...]  # engine and release
    release: Ints  # [run] index into `releases`

    @classmethod
    def of(cls, cases: Sequence[ServingCase], engines: Engines) -> Runs:
        prefill, decode, load = pools_of(cases, engines)
        names = [f"{engines.of(case.engine).name} {release_of(case.version)}" for case in cases]
        releases = tuple(sorted(set(names)))
        return cls(tuple(cases), prefill, decode, load, releases, np.array([releases.index(name) for name in names]))

    def service(self, constants: ServingConstants, host_s: Array) -> Service:
        """host_s: [run] of the release, per 1,000 kernels."""
        disaggregated = np.array([case.disaggregated for case in self.cases])
        prefill, decode = self.prefill.hosted(host_s), self.decode.hosted(host_s)
        return steady_state(prefill, decode, disaggregated, self.load, constants)

    def measured(self) -> Array:
        """[3, run] TTFT, TPOT, throughput; NaN: not measured."""
        rows = [(case.ttft_s, case.tpot_s, case.output_tokens_per_s_per_gpu) for case in self.cases]
        return np.array([[np.nan if value is None else value for value in row] for row in rows]).T


def predicted(service: Service) -> Array:
    """[3, run] as `Runs.measured`."""
    return np.array([service.ttft_s, service.tpot_s, service.output_tokens_per_s_per_gpu])


@dataclass(frozen=True)
class Fit:
    """Fitted constants."""

    constants: ServingConstants
    hosts: Mapping[str, float]  # engine and release -> host seconds of an iteration with prompts per 1,000 kernels
    loss: float

    def host_s(self, runs: Runs) -> Array:
        """[run]; the median of an engine's releases for one that was not fitted, that of all where there is none."""
        every = list(self.hosts.values())
        by_engine: dict[str, list[float]] = {}
        for name, value in self.hosts.items():
            by_engine.setdefault(name.split()[0], []).append(value)
        usual = [float(np.median(by_engine.get(name.split()[0], every))) for name in runs.releases]
        values = [self.hosts.get(name, value) for name, value in zip(runs.releases, usual, strict=True)]
        return np.array(values)[runs.release]

    def service(self, runs: Runs) -> Service:
        return runs.service(self.constants, self.host_s(runs))


def fit(runs: Runs, start: Fit | None = None, weights: Array | None = None) -> Fit:
    """weights: [run] 0 leaves a run out."""
    problem = _Problem(runs, np.ones(len(runs.cases)) if weights is None else weights)
    z = problem.start(start)
    loss = problem.loss(problem.residuals(z), z)
    small = 0  # steps in a row that gain next to nothing: one alone may stand before a long one
    for _ in range(_ROUNDS):
        step = problem.step(z)
        for _ in range(_THIRDS):
            new = problem.loss(problem.residuals(z + step), z + step)
            if new < loss:
                break
            step = step / 3
        if new >= loss:
            break
        small = small + 1 if loss - new < _CONVERGED * loss else 0
        z, loss = z + step, new
        if small == 2:
            break
    constants, hosts = problem.unpacked(z)
    used = set(runs.release[problem.weights > 0])
    named = {name: float(value) for i, (name, value) in enumerate(zip(runs.releases, hosts, strict=True)) if i in used}
    return Fit(constants, named, loss)


@dataclass(frozen=True)
class _Problem:
    runs: Runs
    weights: Array

    def start(self, fitted: Fit | None) -> Array:
        z = np.zeros(len(PRIORS) + len(self.runs.releases))
        if fitted is None:
            return z
        for i, (name, (mean, width)) in enumerate(PRIORS.items()):
            z[i] = np.log(getattr(fitted.constants, name) / mean) / width
        for i, name in enumerate(self.runs.releases):
            z[len(PRIORS) + i] = np.log(fitted.hosts.get(name, HOST_PRIOR[0]) / HOST_PRIOR[0]) / HOST_PRIOR[1]
        return z

    def unpacked(self, z: Array) -> tuple[ServingConstants, Array]:
        values = {name: mean * float(np.exp(width * at))
                  for (name, (mean, width)), at in zip(PRIORS.items(), z, strict=False)}  # fmt: skip
        return ServingConstants(**values), HOST_PRIOR[0] * np.exp(HOST_PRIOR[1] * z[len(PRIORS) :])

    def residuals(self, z: Array) -> Array:
        """[3, run] over their scatter; 0 where nothing was measured."""
        constants, hosts = self.unpacked(z)
        log_ratio = np.log(predicted(self.runs.service(constants, hosts[self.runs.release])) / self.runs.measured())
        scatter = np.array([SCATTER[name] for name in ("ttft", "tpot", "throughput")])[:, None]
        fitted = ~np.isnan(log_ratio)
        fitted[0] &= [case.fits_ttft for case in self.runs.cases]
        return np.where(fitted, log_ratio / scatter, 0.0) * np.sqrt(self.weights)

    def loss(self, residuals: Array, z: Array) -> float:
        return float(np.sum(np.log1p(residuals**2)) + z @ z)

    def step(self, z: Array) -> Array:
        """The Gauss-Newton step, residuals weighted by the derivative of rho."""
        at = self.residuals(z)
        columns = [self._derivative(z, at, [i]) for i in range(len(PRIORS))]
        of_hosts = self._derivative(z, at, range(len(PRIORS), len(z)))
        columns += [of_hosts * (self.runs.release == i) for i in range(len(self.runs.releases))]
        slopes = np.array([column.ravel() for column in columns]).T
        robust = 1.0 / (1.0 + at.ravel() ** 2)
        normal = slopes.T @ (slopes * robust[:, None]) + np.eye(len(z))
        step = -np.linalg.solve(normal, slopes.T @ (robust * at.ravel()) + z)
        return np.asarray(np.clip(step, -1.0, 1.0))

    def _derivative(self, z: Array, at: Array, places: Sequence[int]) -> Array:
        moved = z.copy()
        moved[list(places)] += _STEP
        return (self.residuals(moved) - at) / _STEP


def text_of(fitted: Fit, num_runs: int) -> str:
    """profiles/catalogue/measured/serving.yaml."""
    lines = [
        f"# Constants of serving, fitted to {num_runs} published runs of engines by planner/serving/fit.py.",
        "# Their meaning: ServingConstants in cost_models/serving/constants.py. Seconds and shares.",
        "constants:",
        *(f"  {name}: {value:.4g}" for name, value in asdict(fitted.constants).items()),
        "# Host seconds of an iteration that takes prompts, per 1,000 kernels that it launches for them",
        "# (cost_models/serving/kernel_counts.py), by engine and release.",
        "host_s:",
    ]
    engine = ""
    for name, value in sorted(fitted.hosts.items()):
        if name.split()[0] != engine:
            engine = name.split()[0]
            lines.append(f"  {engine}:")
        lines.append(f'    "{name.split(maxsplit=1)[1]}": {value:.3g}')
    return "\n".join(lines) + "\n"


def main() -> None:
    """Fit the constants to the files that the command line names, and write them."""
    problems = Problems([])
    rows = list(read_rows([Path(name) for name in sys.argv[1:]], read_serving_row, problems))
    if problems.count:
        raise problems.error()
    cases = [row for row in rows if isinstance(row, ServingCase)]
    FITTED_FILE.write_text(text_of(fit(Runs.of(cases, shipped_engines())), len(cases)), encoding="utf-8")


if __name__ == "__main__":
    main()
