"""`plan` over several numbers of GPUs, or for a frontier: asks the planner, shows the answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from ..errors import InputError
from . import requests
from .console import Terminal
from .files import write_file
from .screens import tradeoffs as tradeoffs_screen

if TYPE_CHECKING:
    from ..planner.request.gpu_counts import GpuRange
    from ..planner.request.load import Request
    from ..planner.request.resolve import Resolved
    from ..planner.studies.gpu_curve import Curve
    from ..planner.studies.tradeoffs import Frontier
    from .screens.parts import Part


def asks(gpus: GpuRange | None, pareto: str | None, deadline: str | None) -> bool:
    """Whether this is more than a plan. Raises InputError for options that belong to it alone."""
    if deadline is not None and gpus is None:
        raise InputError("--deadline chooses among numbers of GPUs", hint="name them: `--gpus 64..1024`")
    if deadline is not None and pareto is not None:
        raise InputError("--deadline and --pareto: one asks for the cheapest, the other for all that is not beaten",
                         hint="leave one of them out")  # fmt: skip
    return gpus is not None or pareto is not None


def refuse(options: Mapping[str, object], output: Path | None, deadline: str | None) -> None:
    """Refuses what goes with a single plan, by name."""
    if output is not None and deadline is None:
        raise InputError("-o keeps a plan, and this shows many layouts", hint="`--json` has all of them")
    if given := [name for name, value in options.items() if value]:
        raise InputError(f"{given[0]} goes with one plan", hint="choose a number of GPUs first, then plan it")


def run(
    terminal: Terminal, request: Request, gpus: GpuRange | None, pareto: str | None, deadline_s: float | None, *,
    top: int | None, output: Path | None, force: bool, jobs: int, executor: str | None, time_limit_s: float | None,
) -> None:  # fmt: skip
    """Shows the frontier of the axes in `pareto`, or the curve over the numbers of GPUs. output: of the plan on the
    number of GPUs that is chosen."""
    from ..planner.request.gpu_counts import counts
    from ..planner.studies.gpu_curve import gpu_curve
    from ..planner.studies.tradeoffs import frontier, parse_axes

    axes = parse_axes(pareto) if pareto is not None else ()
    most = top or tradeoffs_screen.MOST_ROWS
    if axes:
        with terminal.progress("searching") as progress:
            unbeaten = frontier(request, axes, gpus, jobs=jobs, executor=executor, progress=progress,
                                time_limit_s=time_limit_s)  # fmt: skip
        unbeaten = requests.rounded(unbeaten)
        _show(terminal, unbeaten, tradeoffs_screen.frontier_screen(unbeaten, most))
    elif gpus is not None:
        with terminal.progress("searching") as progress:
            curve = gpu_curve(request, gpus, deadline_s, jobs=jobs, executor=executor, progress=progress,
                              time_limit_s=time_limit_s)  # fmt: skip
        curve = requests.rounded(curve)
        saved = None
        if output is not None and curve.chosen is not None:
            _save(counts(request, gpus).on(curve.chosen), output, force=force)
            saved = f"Wrote {output}: the plan on {curve.chosen:,} GPUs"
        _show(terminal, curve, tradeoffs_screen.curve_screen(curve, most), saved)


def _show(terminal: Terminal, result: Frontier | Curve, screen: Sequence[Part], saved: str | None = None) -> None:
    """Prints the answer with its warnings; exits with 130 where the search was interrupted."""
    if terminal.settings.json:
        terminal.write_json(result.model_dump(mode="json"))
    terminal.show(screen)
    if saved is not None:
        terminal.talk(saved)
    requests.show_warnings(terminal, result.warnings)
    if result.stopped == "interrupted":
        terminal.interruption_shown = True
        terminal.warn("interrupted: this is what was found so far")
        raise typer.Exit(130)


def _save(resolved: Resolved, output: Path, *, force: bool) -> None:
    """Write the plan on the number of GPUs that the answer chose."""
    from ..planner import api

    write_file(output, api.plan(resolved.request).to_json(), force=force)
