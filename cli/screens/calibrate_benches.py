"""The screen of `meshwright calibrate --from-run` with a serving plan."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from .. import text
from ..console import table

if TYPE_CHECKING:
    from rich.console import RenderableType

    from ...planner.accuracy.calibrate_report import FittedConstant
    from ...planner.serving.from_bench import BenchCalibrationReport, ComparedRun


def screen(report: BenchCalibrationReport, *, saved_as: str | None) -> Iterator[RenderableType]:
    """Predicted beside measured for every run, the numbers that the runs determine, and those that they do not."""
    runs = "1 run" if len(report.runs) == 1 else f"{len(report.runs)} runs"
    many = "s" if report.instances > 1 else ""
    yield text.wrapped(f"{report.engine}: {runs} on {report.instances} instance{many} of {report.deployment_id}, "
                       f"{report.gpu}")  # fmt: skip
    for run in report.runs:
        yield ""
        yield text.wrapped(_title(run))
        yield _run_table(run)
    told = [value for value in report.values if value.identified]
    yield ""
    yield f"The {runs.split(' ', 1)[1]} determine{'s' if len(report.runs) == 1 else ''}"
    yield _values_table(told)
    if others := [value for value in report.values if not value.identified]:
        listed = text.listed([f"{value.name} ({value.meaning})" for value in others])
        yield text.wrapped(f"not determined, as in the plan: {listed}")
    yield text.wrapped("Runs of one load speak for loads like theirs: runs of few and of many requests at once show "
                       "how far it holds.")  # fmt: skip
    yield ""
    yield (f"Next: meshwright plan REQUEST --workload serve --stack {saved_as}" if saved_as
           else "Next: add `-o engine.yaml` to keep this")  # fmt: skip


def _title(run: ComparedRun) -> str:
    load = f"{text.significant(run.rate)}/s" if run.concurrency is None else f"{run.concurrency:g} at once"
    return (f"{run.file}: {run.requests:,} requests, {load}; prompts of {text.significant(run.prompt)} tokens, answers "
            f"of {text.significant(run.output)}")  # fmt: skip


def _run_table(run: ComparedRun) -> RenderableType:
    names = ("measured", "plan", "error %", "fitted", "error % ")
    rows = [
        [name, *(text.significant(scale * value) for value in (measured, before)), _error(before, measured),
         text.significant(scale * after), _error(after, measured)]
        for name, scale, measured, before, after in (
            ("TTFT ms, mean", 1e3, run.measured_ttft_s, run.ttft_s, run.fitted_ttft_s),
            ("TPOT ms, mean", 1e3, run.measured_tpot_s, run.tpot_s, run.fitted_tpot_s),
            ("tokens/s", 1.0, run.measured_output_tokens_per_s, run.output_tokens_per_s,
             run.fitted_output_tokens_per_s))
    ]  # fmt: skip
    return table("", *names, rows=rows, right=names)


def _error(predicted: float, measured: float) -> str:
    return f"{100 * (predicted / measured - 1):+.1f}"


def _values_table(values: list[FittedConstant]) -> RenderableType:
    rows = [[value.name, text.significant(value.prior), text.significant(value.value) + (" (bound)" if value.at_bound
             else ""), f"{value.spread_over_prior:.2f}", value.meaning] for value in values]  # fmt: skip
    right = ("plan", "fitted", "spread")
    return table("number", *right, "", rows=rows, right=right)
