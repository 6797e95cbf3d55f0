"""The screen of `meshwright validate --folds`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from .. import text
from ..console import table

if TYPE_CHECKING:
    from rich.console import RenderableType

    from ...planner.accuracy.fold_report import FoldReport

_OFFSETS = 6  # sources that are shown, those with the largest offset


def screen(report: FoldReport) -> Iterator[RenderableType]:
    """Errors of step time, their two parts, sweeps, intervals and memory."""
    yield text.wrapped(
        f"{report.runs:,} runs in {report.cells} cells, each predicted by a fit that saw no run of its source and none "
        "of its model family on its GPU generation"
    )
    yield ""
    yield "step time, error in %"
    rows = [[name, f"{item.count:,}", text.percent(item.median), text.percent(item.mean), text.percent(item.bias)]
            for name, item in report.step_time.items()]  # fmt: skip
    yield table("runs", "count", "median", "mean", "bias", rows=rows, right=("count", "median", "mean", "bias"))
    yield from _two_parts(report)
    yield from _sweeps(report)
    yield ""
    yield "90 % interval, in %"
    yield table(
        "runs", "count", "covers", "unseen cells", "median half-width",
        rows=[[name, f"{item.runs:,}", text.percent(item.covered), text.percent(item.covered_unseen),
               text.percent(item.half_width)] for name, item in report.coverage.items()],
        right=("count", "covers", "unseen cells", "median half-width"),
    )  # fmt: skip
    yield text.wrapped("unseen cells: by intervals fitted without the errors of the run's own cell")
    yield ""
    yield "peak memory, error in %"
    yield table(
        "kind", "count", "mean", "median", "over 5 % too low",
        rows=[[name, f"{item.count:,}", text.percent(item.mean), text.percent(item.median), f"{item.too_little:,}"]
              for name, item in report.memory.items()],
        right=("count", "mean", "median", "over 5 % too low"),
    )  # fmt: skip


def _two_parts(report: FoldReport) -> Iterator[RenderableType]:
    """The part of the core error that is one factor per source, and the rest."""
    if report.order is None:
        return
    yield ""
    yield "core error in two parts, in %"
    yield table(
        "part", "count", "median", "mean",
        rows=[["order within a source", f"{report.order.count:,}", text.percent(report.order.median),
               text.percent(report.order.mean)], _offset_row(report)],
        right=("count", "median", "mean"),
    )  # fmt: skip
    largest = sorted(report.offsets.items(), key=lambda item: -abs(item[1]))[:_OFFSETS]
    yield ""
    rows = [[source, f"{100 * offset:+.1f}"] for source, offset in largest]
    yield table("sources with the largest offset", "%", rows=rows, right=("%",))


def _offset_row(report: FoldReport) -> list[str]:
    sizes = sorted(abs(offset) for offset in report.offsets.values())
    middle = (sizes[(len(sizes) - 1) // 2] + sizes[len(sizes) // 2]) / 2
    return ["offset of a source", f"{len(sizes):,}", text.percent(middle), text.percent(sum(sizes) / len(sizes))]


def _sweeps(report: FoldReport) -> Iterator[RenderableType]:
    if not report.sweeps:
        return
    yield ""
    yield "sweeps, in %"
    columns = ("sweeps", "runs", "mean regret", "greatest", "Kendall tau", "picked best", "error median", "mean")
    rows = [
        [kind, f"{item.choice.sweeps}", f"{item.step_time.count:,}", text.percent(item.choice.mean_regret),
         text.percent(item.choice.max_regret), text.fixed(item.choice.mean_kendall_tau, 2),
         f"{item.choice.picked_best}", text.percent(item.step_time.median), text.percent(item.step_time.mean)]
        for kind, item in report.sweeps.items()
    ]  # fmt: skip
    yield table("over", *columns, rows=rows, right=columns)
