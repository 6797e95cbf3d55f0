"""The screen of `meshwright validate` for runs of inference engines."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from .. import text
from ..console import table

if TYPE_CHECKING:
    from rich.console import RenderableType

    from ...planner.serving.row import LeftOut
    from ...planner.serving.validate import Prediction, ServingValidation, Table

_TITLES = {
    "shipped": "by the constants that ship, error in %",
    "unseen group": "by fits without the run's group (model, GPU, engine, layout, format), error in %",
    "unseen gpu": "by fits without its GPU, error in %",
    "unseen family": "by fits without its family of models, error in %",
}


def screen(validation: ServingValidation, *, rows: bool) -> Iterator[RenderableType]:
    """Every run if asked for, the errors, the constants and the runs that are left out."""
    if rows:
        yield _rows(validation.rows)
        yield ""
    for name, item in validation.tables.items():
        yield from _errors(_TITLES[name], item)
    yield from _constants(validation.constants, validation.hosts)
    yield from _left_out(validation.left_out)


def _rows(rows: tuple[Prediction, ...]) -> RenderableType:
    names = ("TTFT ms", "predicted", "TPOT ms", "predicted", "tok/s/GPU", "predicted")
    lines = [[
        row.id, _number(row.measured_ttft_ms), _number(row.ttft_ms), _number(row.measured_tpot_ms),
        _number(row.tpot_ms), _number(row.measured_output_tok_s_per_gpu), _number(row.output_tok_s_per_gpu),
    ] for row in rows]  # fmt: skip
    return table("run", *names, rows=lines, right=names)


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:,.1f}"


def _errors(title: str, item: Table) -> Iterator[RenderableType]:
    yield title
    columns = ("runs", "median", "p90", "bias")
    lines = [[name, f"{errors.runs:,}", *map(text.percent, (errors.median, errors.p90, errors.bias))]
             for name, errors in item.errors.items()]  # fmt: skip
    yield table("quantity", *columns, rows=lines, right=columns)
    if item.pairs:
        yield f"pairs of layouts ordered as measured: {item.ordered} of {item.pairs}"
    yield ""


def _constants(constants: Mapping[str, float], hosts: Mapping[str, Mapping[str, float]]) -> Iterator[RenderableType]:
    yield f"{len(constants)} fitted constants (docs/guides/serving.md)"
    yield text.wrapped(", ".join(f"{name} {value:.3g}" for name, value in constants.items()))
    yield "host ms of an iteration that takes prompts, by engine and release"
    for engine, releases in hosts.items():
        yield text.wrapped(f"{engine}: " + ", ".join(f"{name} {value * 1e3:.3g}" for name, value in releases.items()))


def _left_out(rows: tuple[LeftOut, ...]) -> Iterator[RenderableType]:
    by_reason: dict[str, list[str]] = defaultdict(list)
    for row in rows:
        by_reason[row.reason].append(row.id)
    for reason, ids in by_reason.items():
        yield ""
        yield text.wrapped(f"{len(ids)} left out: {reason}")
        yield text.wrapped(", ".join(ids))
