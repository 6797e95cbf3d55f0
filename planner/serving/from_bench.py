"""`meshwright calibrate --from-run` with a serving plan: numbers of an engine from runs of its benchmark.

A run measures two latencies, and each has two numbers that no such run tells apart: an iteration reads the weights and
waits for the host whatever the load. So each latency moves one number, the one that it depends on more; the others stay
at those of the plan.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from ...cost_models.arrays import Array, Mask
from ...cost_models.serving.constants import ServingConstants
from ...cost_models.serving.lengths import RequestLengths
from ...cost_models.serving.load import steady_state
from ...cost_models.serving.pool import Pool
from ...cost_models.serving.service import Load
from ...errors import InputError
from ...profiles.rates.constants import UNIDENTIFIED
from ...profiles.stack.engine_file import engine_text
from ..accuracy.calibrate import Calibrated
from ..accuracy.calibrate_report import FittedConstant
from ..document.serving_plan import ServingPlan
from .bench import BenchRun, read_benches
from .listed import deployment_of, engines_of
from .promises import Promises
from .search import Deployment, fleets_pool

# Scatter of the logarithm of a mean that no number explains, of runs on one machine (assumed: prompts of a benchmark
# come in bursts, which its TTFT depends on).
_SCATTER = np.array([0.15, 0.05])  # TTFT, TPOT
_MEANINGS = {
    "host_s": "host seconds of an iteration with prompts per 1,000 kernels",
    "step_s": "host seconds of every iteration",
    "bandwidth_share": "bandwidth that reading weights reaches",
    "compute_share": "rate of products over that of training",
}
# Widths of the logarithms around the numbers of the plan. Hosts of users differ more than those of published runs.
_WIDTHS = {"host_s": 0.7, "step_s": 1.0, "bandwidth_share": 0.2, "compute_share": 0.3}
# The numbers of TTFT and of TPOT that are not told apart.
_PAIRS = (("host_s", "compute_share"), ("step_s", "bandwidth_share"))
# Slope over scatter from which a prior width is narrowed to UNIDENTIFIED.
_LEAST_SLOPE = (UNIDENTIFIED**-2 - 1.0) ** 0.5
_STEP = 0.05  # of differences, in prior widths
_ROUNDS = 12  # of Gauss-Newton
_BOUND = 4.0  # prior widths


@dataclass(frozen=True, kw_only=True)
class ComparedRun:
    """A run, its latencies as measured, by the plan's numbers and by the fitted ones. Seconds, means."""

    file: str
    requests: int
    prompt: float
    output: float
    concurrency: float | None
    rate: float
    measured_ttft_s: float
    ttft_s: float
    fitted_ttft_s: float
    measured_tpot_s: float
    tpot_s: float
    fitted_tpot_s: float
    measured_output_tokens_per_s: float
    output_tokens_per_s: float
    fitted_output_tokens_per_s: float


@dataclass(frozen=True, kw_only=True)
class BenchCalibrationReport:
    """The result of a calibration on runs of an engine's benchmark."""

    engine: str
    deployment_id: str
    instances: int  # that the requests went to
    gpu: str
    runs: tuple[ComparedRun, ...]
    values: tuple[FittedConstant, ...]  # identified ones first
    problems: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """The JSON form."""
        return asdict(self)


def calibrate_benches(reports: Sequence[Path], plan: ServingPlan, instances: int | None) -> Calibrated[
    BenchCalibrationReport]:  # fmt: skip
    """Fit the numbers of the plan's engine that the runs identify. instances: of the first deployment that the requests
    went to; None: all.

    Raises InputError with all problems of the reports, and where the runs identify no number.
    """
    benches = read_benches(reports)
    fitter = _Fitter.of(plan, benches, instances)
    nothing = np.zeros(len(_WIDTHS))
    chosen = _chosen(fitter.slopes(nothing, range(len(_WIDTHS))))
    if not chosen:
        raise InputError("the runs tell no number of the engine: links or the queue take their time",
                         hint="measure with fewer requests at once, or fewer GPUs")  # fmt: skip
    z = fitter.fitted(chosen)
    spread = np.ones(len(_WIDTHS))
    at = fitter.slopes(z, chosen)
    spread[chosen] = np.sqrt(np.diag(np.linalg.inv(at.T @ at + np.eye(len(chosen)))))
    values = tuple(fitter.value(name, z[i], spread[i], chosen=i in chosen) for i, name in enumerate(_WIDTHS))
    report = BenchCalibrationReport(
        engine=str(plan.resolved["engine"]), deployment_id=plan.best.deployment_id, instances=fitter.instances,
        gpu=plan.best.pools[-1].gpu, runs=fitter.compared(benches, z),
        values=tuple(sorted(values, key=lambda it: not it.identified)), problems=tuple(_doubts(benches, values)),
    )  # fmt: skip
    fitted = {value.name: value.value for value in values if value.identified}
    return Calibrated(report, engine_text(report.engine, fitted, len(benches)))


def _chosen(slopes: Array) -> list[int]:
    """The numbers that move. slopes: [run x 2, number] of residuals."""
    names, chosen = list(_WIDTHS), list[int]()
    for latency, pair in enumerate(_PAIRS):
        lengths = {names.index(name): float(np.linalg.norm(slopes[latency::2, names.index(name)])) for name in pair}
        place = max(lengths, key=lambda it: lengths[it])
        chosen += [place] if lengths[place] >= _LEAST_SLOPE else []
    return chosen


def _doubts(benches: Sequence[BenchRun], values: Sequence[FittedConstant]) -> list[str]:
    bound = [value.name for value in values if value.at_bound]
    far = [f"{', '.join(bound)}: {_BOUND:g} prior widths from the plan's, where the fit ends: the runs are of other "
           "GPUs or another model than the plan's"] if bound else []  # fmt: skip
    return [*(doubt for bench in benches for doubt in bench.doubts), *far]


@dataclass(frozen=True)
class _Fitter:
    """Predictions of the runs as functions of z, prior widths from the plan's numbers."""

    prefill: Pool  # a row per run
    decode: Pool
    disaggregated: Mask
    load: Load
    constants: ServingConstants
    host_s: float
    measured: Array  # [run, 2] TTFT, TPOT
    instances: int

    @classmethod
    def of(cls, plan: ServingPlan, benches: Sequence[BenchRun], instances: int | None) -> _Fitter:
        engines, name = engines_of(plan), str(plan.resolved["engine"])
        requests = RequestLengths.equal(plan.lengths.prompt.mean, plan.lengths.output.mean)
        promises = Promises(requests=requests, ttft_s=np.inf, tpot_s=np.inf, share=0.9,
                            closed=plan.request["workload"]["concurrency"] is not None)  # fmt: skip
        deployment = _behind(deployment_of(plan, plan.best, promises), instances)
        count = len(benches)
        prefill, decode = (fleets_pool([fleet] * count) for fleet in (deployment.prefill, deployment.decode))
        return cls(
            prefill=prefill, decode=decode, disaggregated=np.full(count, deployment.disaggregated),
            load=_load(benches, deployment.transfer_s), constants=engines.constants, host_s=engines.host_s(name, ""),
            measured=np.array([(bench.ttft_s, bench.tpot_s) for bench in benches]),
            instances=deployment.decode.instances,
        )  # fmt: skip

    def at(self, z: Array) -> Array:
        """[3, run] TTFT, TPOT and tokens/s."""
        numbers = self.numbers(z)
        shares = {name: value for name, value in numbers.items() if name != "host_s"}
        host_s = np.full(len(self.measured), numbers["host_s"])
        prefill, decode = (pool.hosted(host_s) for pool in (self.prefill, self.decode))
        service = steady_state(prefill, decode, self.disaggregated, self.load, replace(self.constants, **shares))
        return np.array([service.ttft_s, service.tpot_s, service.output_tokens_per_s])

    def numbers(self, z: Array) -> dict[str, float]:
        """The constants at z."""
        return {name: self._prior(name) * float(np.exp(width * at))
                for (name, width), at in zip(_WIDTHS.items(), z, strict=True)}  # fmt: skip

    def _prior(self, name: str) -> float:
        return self.host_s if name == "host_s" else float(getattr(self.constants, name))

    def residuals(self, z: Array) -> Array:
        """[run x 2] over their scatter."""
        return np.asarray((np.log(self.at(z)[:2].T / self.measured) / _SCATTER).ravel())

    def slopes(self, z: Array, places: Sequence[int]) -> Array:
        """[run x 2, place] derivatives of the residuals."""
        here, columns = self.residuals(z), []
        for place in places:
            moved = z.copy()
            moved[place] += _STEP
            columns.append((self.residuals(moved) - here) / _STEP)
        return np.array(columns).T

    def fitted(self, chosen: Sequence[int]) -> Array:
        """z at the least of residuals^2 + z^2, by Gauss-Newton; the numbers that are not chosen stay."""
        z = np.zeros(len(_WIDTHS))
        for _ in range(_ROUNDS):
            slopes, here = self.slopes(z, chosen), self.residuals(z)
            step = -np.linalg.solve(slopes.T @ slopes + np.eye(len(chosen)), slopes.T @ here + z[chosen])
            z[chosen] = np.clip(z[chosen] + np.clip(step, -1.0, 1.0), -_BOUND, _BOUND)
        return z

    def value(self, name: str, z: float, spread: float, *, chosen: bool) -> FittedConstant:
        return FittedConstant(
            name=name, scope="engine", meaning=_MEANINGS[name], prior=self._prior(name),
            value=self._prior(name) * float(np.exp(_WIDTHS[name] * z)), moved_prior_widths=float(z),
            spread_over_prior=float(spread), identified=chosen and spread <= UNIDENTIFIED, at_bound=abs(z) >= _BOUND,
        )  # fmt: skip

    def compared(self, benches: Sequence[BenchRun], z: Array) -> tuple[ComparedRun, ...]:
        before, after = self.at(np.zeros(len(_WIDTHS))), self.at(z)
        return tuple(
            ComparedRun(
                file=bench.file, requests=bench.requests, prompt=bench.prompt, output=bench.output,
                concurrency=bench.concurrency, rate=bench.rate, measured_ttft_s=bench.ttft_s,
                ttft_s=float(before[0, i]), fitted_ttft_s=float(after[0, i]), measured_tpot_s=bench.tpot_s,
                tpot_s=float(before[1, i]), fitted_tpot_s=float(after[1, i]),
                measured_output_tokens_per_s=bench.output_tokens_per_s,
                output_tokens_per_s=float(before[2, i]), fitted_output_tokens_per_s=float(after[2, i]),
            ) for i, bench in enumerate(benches)
        )  # fmt: skip


def _behind(deployment: Deployment, instances: int | None) -> Deployment:
    """The part of a deployment that the requests went to."""
    if instances is None:
        return deployment
    if deployment.disaggregated:
        raise InputError("--instances: disaggregated pools are behind one router", hint="leave it out")
    if not 1 <= instances <= deployment.decode.instances:
        raise InputError(f"--instances {instances}: the plan's first deployment has {deployment.decode.instances}",
                         hint="1 where the benchmark asked one server")  # fmt: skip
    fleet = replace(deployment.decode, instances=instances)
    return replace(deployment, prefill=fleet, decode=fleet)


def _load(benches: Sequence[BenchRun], transfer_s: float) -> Load:
    count = len(benches)
    concurrency = [np.inf if bench.concurrency is None else bench.concurrency for bench in benches]
    return Load.equal(
        prompt=np.array([bench.prompt for bench in benches]), output=np.array([bench.output for bench in benches]),
        concurrency=np.array(concurrency), rate=np.array([bench.rate for bench in benches]),
        burst_share=np.full(count, np.nan), transfer_s=np.full(count, transfer_s),
    )  # fmt: skip
