"""What `meshwright calibrate --from-run` prints."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from .. import text
from ..console import table

if TYPE_CHECKING:
    from rich.console import RenderableType


def screen(found: Mapping[str, Any], *, saved_as: str | None) -> Iterator[RenderableType]:
    """The runs with their errors before and after, then the numbers that moved, and those that the runs do not tell."""
    reports, values = found["runs"]["reports"], found["values"]
    runs = "1 run" if len(reports) == 1 else f"{len(reports)} runs"
    yield f"{found['stack']} on {reports[0]['gpu']}: {_count(found['constants']['total'])} fitted to {runs}"
    yield ""
    yield _runs(reports)
    yield ""
    yield _numbers([each for each in values if each["identified"]])
    if unknown := [each for each in values if not each["identified"]]:
        said = ", ".join(f"{each['name'].rpartition(' ')[2]} ({each['meaning']})" for each in unknown)
        yield text.wrapped(f"stay as they ship, since {runs} cannot tell them apart from other causes: {said}")
    if len(reports) == 1:
        yield text.wrapped("One run speaks for layouts like its own: a second one that differs shows how far it holds.")
    yield ""
    yield f"Next: meshwright plan REQUEST --stack {saved_as}" if saved_as else "Next: add `-o stack.yaml` to keep this"


def _count(number: int) -> str:
    return "1 number" if number == 1 else f"{number} numbers"


def _runs(reports: list[Mapping[str, Any]]) -> RenderableType:
    rows = [
        [each["file"], each["layout_id"], str(each["num_steps"]), f"{each['measured_step_s']:.4g}",
         *(f"{each[key]:.4g} ({_error(each[key], each['measured_step_s'])})" for key in ("before_s", "after_s")),
         _error(each["predicted_bytes"], each["measured_bytes"]) if each["measured_bytes"] else "-"]
        for each in reports
    ]  # fmt: skip
    names = ("steps", "step s", "predicted before", "after", "memory error")
    return table("run", "layout", *names, rows=rows, right=names)


def _error(predicted: float, measured: float) -> str:
    return f"{predicted / measured - 1:+.1%}"


def _numbers(values: list[Mapping[str, Any]]) -> RenderableType:
    rows = [
        [each["name"], f"{each['prior']:.3g}", f"{each['value']:.3g}" + (" (bound)" if each["at_bound"] else ""),
         f"{each['spread_over_prior']:.2f}", each["meaning"]]
        for each in values
    ]  # fmt: skip
    right = ("before", "fitted", "spread")
    return table("number", *right, "", rows=rows, right=right)
