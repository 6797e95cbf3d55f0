"""The screen and the picture of `meshwright validate`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from ...errors import MissingExtraError
from .. import text
from ..console import table

if TYPE_CHECKING:
    from rich.console import RenderableType

    from ...planner.accuracy.outcome import ErrorStatistics, RunOutcome
    from ...planner.accuracy.summary import RowsNotPriced, StepTimeErrors, Summary, Validation
    from ...planner.accuracy.sweeps import ChoiceStatistics, Sweep

_MOST_ASSUMPTIONS = 12
# (word of the regime, colour, label): a run takes the first class whose word its regime holds. The colours are those of
# Okabe and Ito, which colour-blind readers tell apart.
_CLASSES = (("moe", "#d55e00", "mixture of experts"), ("fsdp", "#009e73", "dense, FSDP"), ("", "#0072b2", "dense"))


def screen(validation: Validation, *, rows: bool) -> Iterator[RenderableType]:
    """Every run, then the errors in groups, memory, sweeps and what was assumed."""
    summary = validation.summary
    if validation.not_priced:
        yield from _not_priced(validation.not_priced)
        if not validation.rows:
            return
        yield ""
    if rows:
        yield _rows_table(validation.rows)
        yield ""
    yield from _headline(summary)
    yield from _refusals(summary)
    for title, groups in _titled(summary.step_time):
        if groups:
            yield ""
            yield _statistics_table(title, groups)
    if summary.memory:
        yield ""
        yield "peak memory, error in %"
        yield _statistics_table("kind", summary.memory)
    if validation.groups and summary.choice is not None:
        yield ""
        yield from _sweeps(validation.groups, summary.choice)
    yield from _assumptions(summary)


def _not_priced(files: Sequence[RowsNotPriced]) -> Iterator[RenderableType]:
    """Rows of each file that are read and checked, and that nothing predicts."""
    lines = [[form.file, f"{form.rows:,}", form.kind, f"not priced: {form.reason}"] for form in files]
    yield table("file", "rows", "kind", "prediction", rows=lines, right=("rows",))


def folds_screen(folds: Mapping[str, ErrorStatistics]) -> Iterator[RenderableType]:
    """Errors of fits without all runs of a run's source, family of models and generation of devices."""
    yield ""
    yield "step time by fits without the run's source, family of models and generation of devices, error in %"
    yield _statistics_table("runs", folds)


def _titled(errors: StepTimeErrors) -> tuple[tuple[str, Mapping[str, ErrorStatistics]], ...]:
    """Title and errors of each grouping, in the order of the screen."""
    return (("source", errors.by_source), ("GPU", errors.by_hardware), ("regime", errors.by_regime),
            ("stack", errors.by_stack), ("stack family", errors.by_family))  # fmt: skip


def _rows_table(runs: Sequence[RunOutcome]) -> RenderableType:
    return table(
        "run", "measured s", "predicted s", "error %", "memory", "measured GiB", "predicted GiB", "error %",
        rows=[_row(run) for run in runs],
        right=("measured s", "predicted s", "error %", "measured GiB", "predicted GiB"),
    )  # fmt: skip


def _row(run: RunOutcome) -> list[str]:
    if run.refused:
        return [run.id, text.significant(run.measured_step_s), "refused", "-", "", "", "", ""]
    has_memory = run.measured_peak_memory_bytes is not None
    memory = [run.memory_kind, text.gib(run.measured_peak_memory_bytes), text.gib(run.peak_memory_bytes)]
    return [
        run.id, text.significant(run.measured_step_s), text.significant(run.step_s), _signed(run.step_error),
        *(memory if has_memory else ["", "", ""]), _signed(run.memory_error) if has_memory else "",
    ]  # fmt: skip


def _refusals(summary: Summary) -> Iterator[RenderableType]:
    """Each reason once, with the runs that it is of."""
    runs: dict[str, list[str]] = {}
    for name, reason in summary.refused.items():
        runs.setdefault(reason, []).append(name)
    for reason, names in runs.items():
        yield f"refused, {reason}: {', '.join(names)}"


def _headline(summary: Summary) -> Iterator[RenderableType]:
    counts = summary.counts
    parts = [f"{counts.rows:,} runs", f"{counts.step_time_scored:,} scored on time",
             f"{counts.memory_scored:,} on memory"]  # fmt: skip
    for number, words in ((counts.refused, "refused"), (counts.quality_c, "of quality C, not scored"),
                          (counts.without_step_time, "without a step time")):  # fmt: skip
        if number:
            parts.append(f"{number:,} {words}")
    yield ", ".join(parts)
    yield ""
    whole = {"core": summary.step_time.core}
    if summary.headline == "core":
        yield "tables over core rows only"
    else:
        whole["all"] = summary.step_time.all
    if scored := {name: errors for name, errors in whole.items() if errors is not None}:
        yield "step time, error in %"
        yield _statistics_table("rows", scored)
    if summary.coverage:
        covered = summary.coverage
        yield f"90 % interval: {text.percent(covered.covered)} % of {covered.count:,} times lie in it"


def _statistics_table(title: str, groups: Mapping[str, ErrorStatistics]) -> RenderableType:
    """A row per group, a column per statistic (`MemoryStatistics` has one more)."""
    names = [field.name for field in fields(next(iter(groups.values())))]
    rows = [[group, *(_statistic(getattr(errors, name)) for name in names)] for group, errors in groups.items()]
    columns = [name.replace("_", " ") for name in names]
    return table(title, *columns, rows=rows, right=columns)


def _statistic(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else text.percent(value)


def _sweeps(sweeps: Sequence[Sweep], choice: ChoiceStatistics) -> Iterator[RenderableType]:
    yield "sweeps: what choosing by the prediction costs over the best measured, in %"
    columns = ("sweep", "runs", "regret", "random", "rule of thumb", "Kendall tau", "picked best")
    rows = [
        [sweep.group, str(sweep.runs), text.percent(sweep.regret), text.percent(sweep.random_regret),
         text.percent(sweep.rule_regret), text.fixed(sweep.kendall_tau, 2), "yes" if sweep.picked_best else "no"]
        for sweep in sweeps
    ]  # fmt: skip
    rows.append(
        ["mean", str(sum(sweep.runs for sweep in sweeps)), text.percent(choice.mean_regret),
         text.percent(choice.mean_random_regret), text.percent(choice.mean_rule_regret),
         text.fixed(choice.mean_kendall_tau, 2), f"{choice.picked_best} of {choice.sweeps}"]
    )  # fmt: skip
    yield table(*columns, rows=rows, right=columns[1:])
    yield "rule of thumb: least tp x pp, of these the largest micro batch"


def _assumptions(summary: Summary) -> Iterator[RenderableType]:
    labels = summary.assumptions
    if not labels:
        return
    yield ""
    yield f"assumed where a run lacks it ({summary.counts.with_assumptions:,} runs)"
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


class _Timed(NamedTuple):
    """A point of the picture."""

    regime: str
    measured_s: float
    predicted_s: float


def draw(runs: Sequence[RunOutcome], path: Path) -> None:
    """Predicted against measured step seconds, log-log, with a band of 10 %."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    timed = [_Timed(run.regime, run.measured_step_s, run.step_s) for run in runs
             if run.step_error is not None and run.step_s is not None and run.measured_step_s is not None]  # fmt: skip
    figure = Figure(figsize=(7, 7), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    times = [seconds for run in timed for seconds in (run.measured_s, run.predicted_s)] or [0.1, 10.0]
    ends = [min(times) / 1.5, max(times) * 1.5]
    axes.fill_between(ends, [0.9 * x for x in ends], [1.1 * x for x in ends], color="#dddddd", label="within 10 %")
    axes.plot(ends, ends, color="black", linewidth=0.8)
    remaining = timed
    for word, color, label in _CLASSES:
        members = [run for run in remaining if word in run.regime]
        remaining = [run for run in remaining if word not in run.regime]
        if members:
            axes.scatter([run.measured_s for run in members], [run.predicted_s for run in members], s=14, alpha=0.6,
                         color=color, linewidths=0, label=f"{label} ({len(members)})")  # fmt: skip
    axes.set(xscale="log", yscale="log", xlim=ends, ylim=ends, aspect="equal",
             xlabel="measured step time, s", ylabel="predicted step time, s")  # fmt: skip
    axes.set_title(f"{len(timed)} published runs, predicted from their configuration alone")
    axes.grid(which="major", linewidth=0.3)
    axes.legend(loc="upper left")
    figure.savefig(path, dpi=150, format=path.suffix.removeprefix(".").lower() or "png")
