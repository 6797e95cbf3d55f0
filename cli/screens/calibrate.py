"""What `meshwright calibrate` prints."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from .. import text
from ..console import table

if TYPE_CHECKING:
    from rich.console import RenderableType

_STAGES = {"before": "before", "after": "after", "across_groups": "left out", "across_sources": "other source"}
_LEFT_OUT = {
    "groups": "predicted by fits that saw no run of the same model and cluster",
    "runs": "predicted by a fit to the others (all are of one model and cluster)",
}


def screen(found: Mapping[str, Any], *, saved_as: str | None) -> Iterator[RenderableType]:
    """Errors before and after, then every number with how sure it is."""
    runs = found["runs"]
    parts = [f"{runs['used']:,} runs of {', '.join(found['families'])}"]
    for key, words in (("without_step_time", "without a step time"), ("quality_c", "of quality C")):
        if runs[key]:
            parts.append(f"{runs[key]:,} {words} not used")
    parts.append(f"{found['constants']['total']} numbers fitted")
    yield ", ".join(parts)
    for name, reason in runs["refused"].items():
        yield f"not used: {name}: {reason}"
    yield ""
    yield "error of step time in %, mean (median)"
    yield _errors(found["errors"])
    yield text.wrapped(
        f"left out: {_LEFT_OUT[runs['left_out_by']]}; other source: by fits that saw no run of the same source"
    )
    yield ""
    yield _values(found["values"])
    yield text.wrapped(
        "spread: what the runs leave of the doubt that there was before them; no: near 1, they do not tell it apart "
        "from other causes. error without: mean over the runs if this number stays where it was"
    )
    yield ""
    yield f"Next: meshwright plan REQUEST --stack {saved_as}" if saved_as else "Next: add `-o stack.yaml` to keep this"


def _errors(errors: Mapping[str, Any]) -> RenderableType:
    rows = [
        [name, f"{stages['after']['count']:,}",
         *(f"{text.percent(stages[key]['mean'])} ({text.percent(stages[key]['median'])})" for key in _STAGES)]
        for name, stages in errors.items()
    ]  # fmt: skip
    columns = ("runs", *_STAGES.values())
    return table("rows", *columns, rows=rows, right=columns)


def _values(values: list[Mapping[str, Any]]) -> RenderableType:
    rows = [
        [each["name"], f"{each['prior']:.3g}", f"{each['value']:.3g}" + (" (bound)" if each["at_bound"] else ""),
         f"{each['spread_over_prior']:.2f}", "yes" if each["identified"] else "no",
         text.percent(each["error_without"])]
        for each in values
    ]  # fmt: skip
    right = ("before", "fitted", "spread", "error without, %")
    return table("number", "before", "fitted", "spread", "identified", "error without, %", rows=rows, right=right)
