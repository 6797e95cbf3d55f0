"""The screen of `meshwright profile`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from .. import text
from ..console import table

if TYPE_CHECKING:
    from rich.console import RenderableType

    from ...profiles.profilers.kernel_results import KernelProfile, StepTerm, TimedKernel
    from ...profiles.profilers.kernels import Need

_BACKWARD = ("backward", "input gradient", "weight gradient")


def kernels_screen(profile: KernelProfile, *, saved_as: str | None) -> Iterator[RenderableType]:
    """The kernels of the first layout, then its step by class of kernel."""
    first, others = profile.layouts[0], len(profile.layouts) - 1
    rest = f" and {others} more" if others else ""
    yield f"kernels of {profile.model} in {profile.dtype}, one rank of {first.layout_id}{rest}"
    yield f"{profile.environment['device']}, torch {profile.environment['torch']}"
    yield ""
    yield _kernels_table(profile.kernels)
    yield ""
    yield f"A step of {first.layout_id}: {first.micro_batches:g} micro-batches, kernels alone"
    yield _step_table(first.terms)
    if first.missing:
        yield text.wrapped(f"not timed: {text.listed(first.missing)}")
    for kernel in profile.skipped:
        yield text.wrapped(f"not timed: {kernel.kernel}: {kernel.reason}")
    if known := {name: value for name, value in profile.efficiencies.items() if value is not None}:
        yield ""
        listed = ", ".join(f"{name} {value:.3f}" for name, value in known.items())
        yield text.wrapped(f"as the planner counts: {listed}")
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


@dataclass(frozen=True)
class _Passes:
    """Kernels of one name and shape."""

    forward: list[TimedKernel] = field(default_factory=list)
    backward: list[TimedKernel] = field(default_factory=list)


def _kernels_table(kernels: Sequence[TimedKernel]) -> RenderableType:
    """A row per kernel: both passes of it, each with the share that its quartiles spread over."""
    groups: dict[tuple[str, str], _Passes] = {}
    for kernel in kernels:
        passes = groups.setdefault((kernel.name, _shape(kernel.shape)), _Passes())
        (passes.backward if kernel.direction in _BACKWARD else passes.forward).append(kernel)
    rows = [
        (name, shape, *_pass(passes.forward), *_pass(passes.backward), _spread([*passes.forward, *passes.backward]))
        for (name, shape), passes in groups.items()
    ]
    columns = ("kernel", "shape", "forward ms", "priced", "backward ms", "priced ", "spread")
    unpriced = all(kernel.priced_s is None for kernel in kernels)  # on a machine that the catalogue does not know
    shown = [i for i, name in enumerate(columns) if not (unpriced and name.startswith("priced"))]
    names = [columns[i] for i in shown]
    return table(*names, rows=[[row[i] for i in shown] for row in rows], right=names[2:])


def _pass(kernels: Sequence[TimedKernel]) -> tuple[str, str]:
    """Milliseconds of all kernels of a pass, measured and priced."""
    if not kernels:
        return "", ""
    measured = sum(kernel.median_s for kernel in kernels)
    priced = _sum([kernel.priced_s for kernel in kernels])
    return text.significant(1e3 * measured), "-" if priced is None else text.significant(1e3 * priced)


def _sum(seconds: Sequence[float | None]) -> float | None:
    """None where one of them is not known."""
    known = [value for value in seconds if value is not None]
    return sum(known) if len(known) == len(seconds) else None


def _spread(kernels: Sequence[TimedKernel]) -> str:
    """The widest distance of the quartiles, as a share of the median."""
    return text.share(max((kernel.high_s - kernel.low_s) / kernel.median_s for kernel in kernels))


def _step_table(terms: Mapping[str, StepTerm]) -> RenderableType:
    seconds = {name: (term.measured_s, term.priced_s) for name, term in terms.items()}
    priced = _sum([term.priced_s for term in terms.values()])
    seconds["all"] = (sum(term.measured_s for term in terms.values()), priced)
    rows = [
        (name, text.significant(measured_s), text.significant(priced_s), _difference(measured_s, priced_s))
        for name, (measured_s, priced_s) in seconds.items()
    ]
    if priced is None:
        return table("", "seconds", rows=[row[:2] for row in rows], right=("seconds",))
    columns = ("measured s", "priced s", "difference")
    return table("", *columns, rows=rows, right=columns)


def _difference(measured_s: float, priced_s: float | None) -> str:
    return text.more(priced_s / measured_s - 1.0) if priced_s is not None and measured_s else ""
