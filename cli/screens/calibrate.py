"""The screen of `meshwright calibrate`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from .. import text
from ..console import table

if TYPE_CHECKING:
    from rich.console import RenderableType

    from ...planner.accuracy.calibrate_report import CalibrationReport, JudgedConstant, StageErrors
    from ...planner.accuracy.outcome import ErrorStatistics

_STAGES = ("before", "after", "left out", "other source")
_LEFT_OUT = {
    "groups": "predicted by fits that saw no run of the same model and cluster",
    "runs": "predicted by a fit to the others (all are of one model and cluster)",
}


def screen(report: CalibrationReport, *, saved_as: str | None) -> Iterator[RenderableType]:
    """Errors before and after, then every number with how sure it is."""
    runs = report.runs
    parts = [f"{runs.used:,} runs of {', '.join(report.families)}"]
    for number, words in ((runs.without_step_time, "without a step time"), (runs.quality_c, "of quality C")):
        if number:
            parts.append(f"{number:,} {words} not used")
    parts.append(f"{report.constants['total']} numbers fitted")
    yield ", ".join(parts)
    for name, reason in runs.refused.items():
        yield f"not used: {name}: {reason}"
    yield ""
    yield "error of step time in %, mean (median)"
    yield _errors_table(report.errors)
    yield text.wrapped(
        f"left out: {_LEFT_OUT[runs.left_out_by]}; other source: by fits that saw no run of the same source"
    )
    yield ""
    yield _values_table(report.values)
    yield text.wrapped(
        "spread: what the runs leave of the doubt that there was before them; no: near 1, they do not tell it apart "
        "from other causes. error without: mean over the runs if this number stays where it was"
    )
    yield ""
    yield f"Next: meshwright plan REQUEST --stack {saved_as}" if saved_as else "Next: add `-o stack.yaml` to keep this"


def _errors_table(errors: Mapping[str, StageErrors]) -> RenderableType:
    rows = []
    for name, stages in errors.items():
        statistics = (stages.before, stages.after, stages.across_groups, stages.across_sources)
        rows.append([name, f"{stages.after.count:,}", *map(_mean_and_median, statistics)])
    columns = ("runs", *_STAGES)
    return table("rows", *columns, rows=rows, right=columns)


def _mean_and_median(errors: ErrorStatistics) -> str:
    return f"{text.percent(errors.mean)} ({text.percent(errors.median)})"


def _values_table(values: Sequence[JudgedConstant]) -> RenderableType:
    rows = [
        [value.name, f"{value.prior:.3g}", f"{value.value:.3g}" + (" (bound)" if value.at_bound else ""),
         f"{value.spread_over_prior:.2f}", "yes" if value.identified else "no", text.percent(value.error_without)]
        for value in values
    ]  # fmt: skip
    right = ("before", "fitted", "spread", "error without, %")
    return table("number", "before", "fitted", "spread", "identified", "error without, %", rows=rows, right=right)
