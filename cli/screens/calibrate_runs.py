"""The screen of `meshwright calibrate --from-run`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from .. import text
from ..console import table

if TYPE_CHECKING:
    from rich.console import RenderableType

    from ...planner.accuracy.calibrate_report import FittedConstant
    from ...planner.accuracy.from_run import LaunchedRun, RunCalibrationReport


def screen(report: RunCalibrationReport, *, saved_as: str | None) -> Iterator[RenderableType]:
    """The runs with their errors before and after, then the numbers that moved, and those that the runs do not tell."""
    launched = report.runs.reports
    runs = "1 run" if len(launched) == 1 else f"{len(launched)} runs"
    yield f"{report.stack} on {launched[0].gpu}: {_count(report.constants['total'])} fitted to {runs}"
    yield ""
    yield _runs_table(launched)
    yield ""
    yield _values_table([value for value in report.values if value.identified])
    if unknown := [value for value in report.values if not value.identified]:
        listed = ", ".join(f"{value.name.rpartition(' ')[2]} ({value.meaning})" for value in unknown)
        yield text.wrapped(f"stay as they ship, since {runs} cannot separate them from other causes: {listed}")
    if len(launched) == 1:
        yield text.wrapped("One run speaks for layouts like its own: a second one that differs shows how far it holds.")
    yield ""
    yield f"Next: meshwright plan REQUEST --stack {saved_as}" if saved_as else "Next: add `-o stack.yaml` to keep this"


def _count(number: int) -> str:
    return "1 number" if number == 1 else f"{number} numbers"


def _runs_table(launched: Sequence[LaunchedRun]) -> RenderableType:
    rows = [
        [run.file, run.layout_id, str(run.num_steps), f"{run.measured_step_s:.4g}",
         *(f"{seconds:.4g} ({_error(seconds, run.measured_step_s)})" for seconds in (run.before_s, run.after_s)),
         _memory_error(run)]
        for run in launched
    ]  # fmt: skip
    names = ("steps", "step s", "predicted before", "after", "memory error")
    return table("run", "layout", *names, rows=rows, right=names)


def _memory_error(run: LaunchedRun) -> str:
    if not run.measured_bytes or run.predicted_bytes is None:
        return "-"
    return _error(run.predicted_bytes, run.measured_bytes)


def _error(predicted: float, measured: float) -> str:
    return f"{predicted / measured - 1:+.1%}"


def _values_table(values: Sequence[FittedConstant]) -> RenderableType:
    rows = [
        [value.name, f"{value.prior:.3g}", f"{value.value:.3g}" + (" (bound)" if value.at_bound else ""),
         f"{value.spread_over_prior:.2f}", value.meaning]
        for value in values
    ]  # fmt: skip
    right = ("before", "fitted", "spread")
    return table("number", *right, "", rows=rows, right=right)
