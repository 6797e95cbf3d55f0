"""What `meshwright validate` prints and draws."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...errors import MissingExtraError
from .. import text
from ..console import table

if TYPE_CHECKING:
    from rich.console import RenderableType

_STATISTICS = ("count", "mean", "median", "p90", "max", "bias")
_TITLES = {"source": "source", "hardware": "GPU", "regime": "regime", "stack": "stack", "family": "stack family"}
_MOST_ASSUMPTIONS = 12
# Order and colours of the picture: the first word of the regime that matches; colours distinguishable to colour-blind.
_CLASSES = (("moe", "#d55e00", "mixture of experts"), ("fsdp", "#009e73", "dense, FSDP"), ("", "#0072b2", "dense"))


def screen(found: Mapping[str, Any], *, rows: bool) -> Iterator[RenderableType]:
    """Every run, then the errors in groups, memory, sweeps and what was assumed."""
    summary = found["summary"]
    if rows:
        yield _rows_table(found["rows"])
        yield ""
    yield from _headline(summary)
    for key, title in _TITLES.items():
        if groups := summary["step_time"][f"by_{key}"]:
            yield ""
            yield _statistics_table(title, groups)
    if summary["memory"]:
        yield ""
        yield "peak memory, error in %"
        yield _statistics_table("kind", summary["memory"], "too_little")
    if found["groups"]:
        yield ""
        yield from _sweeps(found["groups"], summary["choice"])
    yield from _assumptions(summary)


def _rows_table(rows: Sequence[Mapping[str, Any]]) -> RenderableType:
    return table(
        "run", "measured s", "predicted s", "error %", "memory", "measured GiB", "predicted GiB", "error %",
        rows=[_row(row) for row in rows],
        right=("measured s", "predicted s", "error %", "measured GiB", "predicted GiB"),
    )  # fmt: skip


def _row(row: Mapping[str, Any]) -> list[str]:
    if row["refused"]:
        return [row["id"], text.significant(row["measured_step_s"]), f"refused: {row['refused']}", "-", "", "", "", ""]
    has_memory = row["measured_peak_memory_bytes"] is not None
    memory = [row["memory_kind"], text.gib(row["measured_peak_memory_bytes"]), text.gib(row["peak_memory_bytes"])]
    return [
        row["id"], text.significant(row["measured_step_s"]), text.significant(row["step_s"]),
        _signed(row["step_error"]),
        *(memory if has_memory else ["", "", ""]), _signed(row["memory_error"]) if has_memory else "",
    ]  # fmt: skip


def _headline(summary: Mapping[str, Any]) -> Iterator[RenderableType]:
    counts = summary["counts"]
    parts = [f"{counts['rows']:,} runs", f"{counts['step_time_scored']:,} scored on time",
             f"{counts['memory_scored']:,} on memory"]  # fmt: skip
    for key, words in (("refused", "refused"), ("quality_c", "of quality C, not scored"),
                       ("without_step_time", "without a step time")):  # fmt: skip
        if counts[key]:
            parts.append(f"{counts[key]:,} {words}")
    yield ", ".join(parts)
    yield ""
    both = {name: summary["step_time"][name] for name in ("core", "all") if summary["step_time"][name]}
    if summary["headline"] == "core":
        both.pop("all", None)
        yield "tables over core rows only"
    if both:
        yield "step time, error in %"
        yield _statistics_table("rows", both)
    if summary["coverage"]:
        covered = summary["coverage"]
        yield f"90 % interval: {text.percent(covered['covered'])} % of {covered['count']:,} times lie in it"


def _statistics_table(title: str, groups: Mapping[str, Mapping[str, Any]], *more: str) -> RenderableType:
    names = (*_STATISTICS, *more)
    rows = [
        [name, *(f"{found[key]:,}" if isinstance(found[key], int) else text.percent(found[key]) for key in names)]
        for name, found in groups.items()
    ]
    return table(title, *(name.replace("_", " ") for name in names), rows=rows,
                 right=[name.replace("_", " ") for name in names])  # fmt: skip


def _sweeps(groups: Sequence[Mapping[str, Any]], choice: Mapping[str, Any]) -> Iterator[RenderableType]:
    yield "sweeps: what choosing by the prediction costs over the best measured, in %"
    columns = ("sweep", "runs", "regret", "random", "rule of thumb", "Kendall tau", "picked best")
    rows = [
        [each["group"], str(each["runs"]), text.percent(each["regret"]), text.percent(each["random_regret"]),
         text.percent(each["rule_regret"]), text.fixed(each["kendall_tau"], 2), "yes" if each["picked_best"] else "no"]
        for each in groups
    ]  # fmt: skip
    rows.append(
        ["mean", str(sum(each["runs"] for each in groups)), text.percent(choice["mean_regret"]),
         text.percent(choice["mean_random_regret"]), text.percent(choice["mean_rule_regret"]),
         text.fixed(choice["mean_kendall_tau"], 2), f"{choice['picked_best']} of {choice['sweeps']}"]
    )  # fmt: skip
    yield table(*columns, rows=rows, right=columns[1:])
    yield "rule of thumb: least tp x pp, of these the largest micro batch"


def _assumptions(summary: Mapping[str, Any]) -> Iterator[RenderableType]:
    labels = summary["assumptions"]
    if not labels:
        return
    yield ""
    yield f"assumed where a run does not say ({summary['counts']['with_assumptions']:,} runs)"
    shown = list(labels.items())[:_MOST_ASSUMPTIONS]
    yield table("runs", "assumption", rows=[[f"{count:,}", label] for label, count in shown], right=("runs",))
    if len(labels) > len(shown):
        yield f"and {len(labels) - len(shown)} more kinds; `--json` has all"


def _signed(share: float | None) -> str:
    return "-" if share is None else f"{share * 100:+.1f}"


def check_plot() -> None:
    """Raises MissingExtraError before the long part, not after it."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise MissingExtraError("plot", "`--plot`") from None


def draw(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Predicted against measured step seconds, log-log, with a band of 10 %."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    known = [row for row in rows if row["step_error"] is not None and row["step_s"] is not None]
    figure = Figure(figsize=(7, 7), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    times = [row[key] for row in known for key in ("measured_step_s", "step_s")] or [0.1, 10.0]
    ends = [min(times) / 1.5, max(times) * 1.5]
    axes.fill_between(ends, [0.9 * x for x in ends], [1.1 * x for x in ends], color="#dddddd", label="within 10 %")
    axes.plot(ends, ends, color="black", linewidth=0.8)
    left = known
    for word, color, label in _CLASSES:
        chosen = [row for row in left if word in row["regime"]]
        left = [row for row in left if word not in row["regime"]]
        if chosen:
            axes.scatter([row["measured_step_s"] for row in chosen], [row["step_s"] for row in chosen], s=14, alpha=0.6,
                         color=color, linewidths=0, label=f"{label} ({len(chosen)})")  # fmt: skip
    axes.set(xscale="log", yscale="log", xlim=ends, ylim=ends, aspect="equal",
             xlabel="measured step time, s", ylabel="predicted step time, s")  # fmt: skip
    axes.set_title(f"{len(known)} published runs, predicted from their configuration alone")
    axes.grid(which="major", linewidth=0.3)
    axes.legend(loc="upper left")
    figure.savefig(path, dpi=150, format=path.suffix.removeprefix(".").lower() or "png")
