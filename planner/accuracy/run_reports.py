"""Reports of `launch` as runs for calibration: the measurements, and the layout of the plan.

A report does not repeat the plan: it names it by digest, and is read beside it. Everything that would make a measured
step something else than what the plan prices (a rehearsal, another GPU, an order of one's own) is refused.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from ...cost_models.specs.stack import StackSpec
from ...errors import FieldProblem, InputError
from ...profiles.io import registry
from ...profiles.io.reader import read_document
from ...profiles.stack.load import is_stack, load_stack, stack_for
from ..document.candidate import Candidate
from ..document.plan import Plan
from ..document.reading import load_plan
from ..document.specs import stack_of, vars_of
from ..evaluation.intervals import regime_of
from ..evaluation.staged import Staged
from ..request.load import request_from_dict
from ..request.resolve import Resolved, resolve
from .row import Case, Measured, RowReader

STACK = "meshwright"  # what every run of `launch` runs on
REPORT_MAJOR = "1"
# Steps after a start that take longer: memory is allocated, kernels are chosen, and a CPU follows its storages.
WARM_UP = 2
LEAST_STEPS = 3  # whose median one odd step does not move


@dataclass(frozen=True)
class Run:
    """A run of a layout."""

    # The report.
    file: str
    resolved: Resolved
    # The layout of the plan that ran.
    candidate: Candidate
    # Median seconds of the steps after the warm-up.
    step_s: float
    # Number of these steps.
    num_steps: int
    # Measured and predicted bytes of the fullest stage, None where the run did not end.
    memory: tuple[float, float] | None

    def seconds(self, stack: StackSpec | None = None) -> float:
        """Step seconds that `plan` predicts for the layout with this software; None: the stack that ships."""
        software = replace(stack or load_stack(STACK), attention=self.resolved.stack.attention)
        simulate = self.candidate.closed_form_s is not None
        layout, partition = self.candidate.to_layout(), self.candidate.partition
        return Staged.of(replace(self.resolved, stack=software), layout, partition, simulate=simulate).step_s

    @cached_property
    def case(self) -> Case:
        """The run as the fit takes it."""
        resolved, layout = self.resolved, self.candidate.to_layout()
        partition = self.candidate.partition
        return Case(
            id=self.file, source=self.file, stack_name=STACK, regime=regime_of(resolved.model, layout), group=None,
            core=False, quality="A", model=resolved.model, cluster=resolved.cluster, workload=resolved.workload,
            stack=stack_for(STACK)[0], features={}, layout=layout, chunks=partition.sizes if partition else None,
            recompute_known=True, measured=Measured(step_s=self.step_s),
        )  # fmt: skip


def read_runs(reports: Sequence[Path], plans: Sequence[Path]) -> list[Run]:
    """The runs of all reports. Raises InputError with all their problems."""
    if not plans:
        raise InputError("--from-run: of which plan?", hint="add `--plan PLAN`, the file that was launched")
    known = [(path, load_plan(path)) for path in plans]
    problems: list[FieldProblem] = []
    runs = []
    for path in reports:
        try:
            runs.append(_run(path, known, problems))
        except InputError as error:
            problems += [FieldProblem(error.message, hint=error.hint)]
    if problems:
        raise InputError.of(problems)
    complete = [run for run in runs if run is not None]
    gpus = {run.resolved.cluster.gpu.name: run.file for run in complete}
    if len(gpus) > 1:
        listed = " and ".join(f"{file} on {gpu}" for gpu, file in gpus.items())
        raise InputError(f"reports of different GPUs: {listed}",
                         hint="the losses of one GPU are not those of another: calibrate a file for each")  # fmt: skip
    return complete


def _run(path: Path, plans: Sequence[tuple[Path, Plan]], problems: list[FieldProblem]) -> Run | None:
    """The run of one report; None with `problems` for a faulty report."""
    report = RowReader(read_document(path))
    data = report.document.data
    if not isinstance(data, Mapping) or data.get("kind") != "run":
        report.fail((), "is no report of a run", "`meshwright launch PLAN --report run.json` writes one")
    elif (version := str(data.get("format_version"))).partition(".")[0] != REPORT_MAJOR:
        report.fail(("format_version",), f"format {version}, this version reads {REPORT_MAJOR}",
                    "calibrate with the version of meshwright that wrote it")  # fmt: skip
    matched = None if report.problems else _planned(report, plans)
    seconds = [] if report.problems else _timed(report)
    if matched is not None:
        _as_planned(report, *matched)
    problems += report.problems
    if report.problems or matched is None:
        return None
    _, plan, candidate = matched
    resolved = resolve(request_from_dict({**plan.request, "stack": STACK}))
    return Run(str(path), resolved, candidate, statistics.median(seconds), len(seconds), _memory(report))


def _planned(report: RowReader, plans: Sequence[tuple[Path, Plan]]) -> tuple[Path, Plan, Candidate] | None:
    """The plan and the layout that ran."""
    digest = report.text("plan")
    choice, layout_id = report.whole("choice"), report.text("layout_id")
    mine = [(path, plan) for path, plan in plans if digest and plan.request_sha256.startswith(digest)]
    for path, plan in mine:
        # A report has the layout without its stages, which only the plan says.
        if choice <= len(plan.candidates) and str(plan.candidates[choice - 1].to_layout()) == layout_id:
            return path, plan, plan.candidates[choice - 1]
    if mine:
        report.fail(("layout_id",), f"layout {choice} is `{layout_id}`, in {mine[0][0]} it is not",
                    "the plan was made anew since: give the one that was launched")  # fmt: skip
    elif digest:
        given = ", ".join(f"{path} ({plan.request_sha256[:12]})" for path, plan in plans)
        report.fail(("plan",), f"is a run of another plan, {digest}, than {given}",
                    "`--plan` names the file that was launched; it may be given several times")  # fmt: skip
    return None


def _as_planned(report: RowReader, path: Path, plan: Plan, candidate: Candidate) -> None:
    """Records why the run differs from the plan."""
    if report.get("scaled_down"):
        report.fail(("scaled_down",), "a rehearsal on a small model: its seconds are not those of the plan",
                    "launch the plan itself, on its GPUs")  # fmt: skip
        return
    if report.get("predicted_step_s") is None:
        report.fail(("predicted_step_s",), "ran in an order of its own, which no plan prices",
                    "launch without `--order`")  # fmt: skip
    try:
        gpu = str(plan.resolved["cluster"]["groups"][0]["gpu"]["name"])
    except (LookupError, TypeError):
        raise InputError(f"{path}: resolved.cluster is damaged", hint="plan again") from None
    device = report.text("environment", "device")
    if not (registry.is_gpu(device) and registry.gpu_name(device) == gpu):
        report.fail(("environment", "device"), f"ran on {device or 'no GPU'}, {path} is for {gpu}",
                    "a run measures the rates of its own GPU only")  # fmt: skip
    if reason := next(_unpriced(path, plan, candidate), None):
        report.fail(("layout_id",), *reason)


def _unpriced(path: Path, plan: Plan, candidate: Candidate) -> Iterator[tuple[str, str]]:
    """Why a layout of the plan cannot be fitted to, and what helps."""
    if candidate.spread is not None or candidate.placement.order is not None:
        yield "uses nodes or links that are not alike, which the fit takes for alike", "another `--choice`"
    if candidate.partition is not None and candidate.partition.recomputed is not None:
        yield "its stages recompute different numbers of layers, which the fit does not price", "another `--choice`"
    name = str(path)
    planned, ships = stack_of(plan.resolved, name), load_stack(STACK)
    hint = "plan with `--target meshwright`, launch that plan, and calibrate on its report"
    if planned.name != STACK and is_stack(planned.name):
        yield f"{path} is planned for the software {planned.name}, and ran on {STACK}", hint
    fitted = ("name", "sources", "throughput", "host_s_per_kernel", "elementwise_traffic")
    has, wants = vars_of(planned), vars_of(ships)
    if plan.resolved["workload"].get("precision") == "fp32":
        wants["attention"] = has["attention"]  # no flash kernel has fp32 (resolve)
    other = [f"{key} {has[key]} (ships: {wants[key]})" for key in wants if key not in fitted and has[key] != wants[key]]
    if other:
        yield f"{path} is planned for other software than {STACK} as it ships: {', '.join(other)}", hint


def _timed(report: RowReader) -> list[float]:
    """Seconds of the steps that count."""
    steps = report.get("steps")
    if not isinstance(steps, list) or not steps:
        report.fail(("steps",), "no step was taken", "a run of some ten steps is enough: `launch --steps 10`")
        return []
    taken = []
    for index, step in enumerate(steps):
        number, seconds = (step.get(key) if isinstance(step, Mapping) else None for key in ("step", "step_s"))
        if not isinstance(number, int) or not isinstance(seconds, int | float) or not 0 < seconds < math.inf:
            report.fail(("steps", index), f"step {number} took {seconds!r}: must be seconds, more than 0")
            return []
        taken.append((number, float(seconds)))
    resumed = [entry.get("step", 0) for entry in report.get("resumed") or () if isinstance(entry, Mapping)]
    begun = [taken[0][0] - 1, *resumed]
    late = [seconds for number, seconds in taken if not any(b < number <= b + WARM_UP for b in begun)]
    if len(late) < LEAST_STEPS:
        report.fail(("steps",), f"{len(late)} steps after the {WARM_UP} that warm up: {LEAST_STEPS} are needed",
                    f"`launch --steps {LEAST_STEPS + WARM_UP}` or more")  # fmt: skip
    return late


def _memory(report: RowReader) -> tuple[float, float] | None:
    """Measured and predicted bytes of the fullest stage, None where the report has none."""
    rows = report.get("memory") or ()
    return max(((float(row["measured_bytes"]), float(row["predicted_bytes"])) for row in rows), default=None)
