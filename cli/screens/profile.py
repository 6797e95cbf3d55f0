"""What `meshwright profile` prints."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from .. import text
from ..console import table

if TYPE_CHECKING:
    from rich.console import RenderableType

    from ...profiles.profilers.kernels import Need


def kernels_screen(document: Mapping[str, Any], *, saved_as: str | None) -> Iterator[RenderableType]:
    """The kernels of the first layout, then its step by class of kernel."""
    first, others = document["layouts"][0], len(document["layouts"]) - 1
    rest = f" and {others} more" if others else ""
    environment = document["environment"]
    yield f"kernels of {document['model']} in {document['dtype']}, one rank of {first['layout_id']}{rest}"
    yield f"{environment['device']}, torch {environment['torch']}"
    yield ""
    yield _kernels(document["kernels"])
    yield ""
    yield f"A step of {first['layout_id']}: {first['micro_batches']:g} micro-batches, kernels alone"
    yield _step(first["terms"])
    if first["missing"]:
        yield text.wrapped(f"not timed: {text.listed(first['missing'])}")
    for each in document["skipped"]:
        yield text.wrapped(f"not timed: {each['kernel']}: {each['reason']}")
    if told := {name: value for name, value in document["efficiencies"].items() if value is not None}:
        yield ""
        yield text.wrapped("as the planner counts: " + ", ".join(f"{name} {value:.3f}" for name, value in told.items()))
    yield ""
    yield f"Samples and all layouts: {saved_as}" if saved_as else "Next: add `-o kernels.yaml` to keep this"


def needs_screen(needs: Sequence[Need]) -> Iterator[RenderableType]:
    """Every kernel that would be timed, and how often a micro-batch (or a step) of the first layout calls it."""
    rows = {(k.name, k.direction, _shape(dict(k.shape))): "" for need in needs for k in need.calls}
    first = needs[0]
    rows |= {(k.name, k.direction, _shape(dict(k.shape))): f"{calls:.4g}" for k, calls in first.calls.items()}
    yield f"{len(rows)} kernels; calls per micro-batch of {first.layout}, the optimizer's per step"
    lines = [(*key, calls) for key, calls in rows.items()]
    yield table("kernel", "pass", "shape", "calls", rows=lines, right=["calls"])
    if missing := list(dict.fromkeys(name for need in needs for name in need.missing)):
        yield text.wrapped(f"not timed: {text.listed(missing)}")


def _shape(shape: Mapping[str, int]) -> str:
    return " x ".join(f"{size}" for dim, size in shape.items() if dim not in ("bias", "gated"))


def _kernels(kernels: Sequence[Mapping[str, Any]]) -> RenderableType:
    """A row per kernel: both passes of it, each with the share that its quartiles spread over."""
    rows: dict[tuple[str, str], dict[str, list[Mapping[str, Any]]]] = {}
    for each in kernels:
        passes = rows.setdefault((each["name"], _shape(each["shape"])), {"forward": [], "backward": []})
        passes["backward" if each["direction"] in _BACKWARD else "forward"].append(each)
    lines = [
        (name, shape, *_pass(passes["forward"]), *_pass(passes["backward"]), _spread([*_all(passes)]))
        for (name, shape), passes in rows.items()
    ]
    columns = ("kernel", "shape", "forward ms", "priced", "backward ms", "priced ", "spread")
    unpriced = all(each["priced_s"] is None for each in kernels)  # on a machine that the catalogue does not know
    shown = [i for i, name in enumerate(columns) if not (unpriced and name.startswith("priced"))]
    names = [columns[i] for i in shown]
    return table(*names, rows=[[line[i] for i in shown] for line in lines], right=names[2:])


_BACKWARD = ("backward", "input gradient", "weight gradient")


def _all(passes: Mapping[str, list[Mapping[str, Any]]]) -> Iterator[Mapping[str, Any]]:
    for each in passes.values():
        yield from each


def _pass(kernels: Sequence[Mapping[str, Any]]) -> tuple[str, str]:
    """Milliseconds of all kernels of a pass, measured and priced."""
    if not kernels:
        return "", ""
    measured = sum(each["median_s"] for each in kernels)
    known = all(each["priced_s"] is not None for each in kernels)
    priced = text.significant(1e3 * sum(each["priced_s"] for each in kernels)) if known else "-"
    return text.significant(1e3 * measured), priced


def _spread(kernels: Sequence[Mapping[str, Any]]) -> str:
    """The widest distance of the quartiles, as a share of the median."""
    return text.share(max((each["high_s"] - each["low_s"]) / each["median_s"] for each in kernels))


def _step(terms: Mapping[str, Mapping[str, Any]]) -> RenderableType:
    known = all(term["priced_s"] is not None for term in terms.values())
    whole = {"measured_s": sum(term["measured_s"] for term in terms.values()),
             "priced_s": sum(term["priced_s"] for term in terms.values()) if known else None}  # fmt: skip
    rows = [
        (name, text.significant(term["measured_s"]), text.significant(term["priced_s"]), _ratio(term))
        for name, term in {**terms, "all": whole}.items()
    ]
    if not known:
        return table("", "seconds", rows=[row[:2] for row in rows], right=("seconds",))
    columns = ("measured s", "priced s", "difference")
    return table("", *columns, rows=rows, right=columns)


def _ratio(term: Mapping[str, Any]) -> str:
    priced = term["priced_s"]
    return text.more(priced / term["measured_s"] - 1.0) if priced is not None and term["measured_s"] else ""
