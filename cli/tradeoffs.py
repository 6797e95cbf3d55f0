"""`plan` over several numbers of GPUs, or for a frontier: asks the planner, shows the answer."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from ..errors import InputError
from . import requests
from .console import Terminal, write_file
from .screens import tradeoffs as tradeoffs_screen

if TYPE_CHECKING:
    from ..planner.request.gpu_counts import GpuRange
    from ..planner.request.load import Request
    from ..planner.studies.gpu_curve import Curve
    from ..planner.studies.tradeoffs import Frontier


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
    top: int | None, output: Path | None, force: bool, **how: Any,
) -> None:  # fmt: skip
    """how: jobs, executor and time_limit_s. output: of the plan on the number of GPUs that is chosen."""
    from ..planner.studies.gpu_curve import gpu_curve
    from ..planner.studies.tradeoffs import frontier, parse_axes

    found: Frontier | Curve
    axes = parse_axes(pareto) if pareto is not None else ()
    with terminal.progress("searching") as progress:
        if axes:
            found = frontier(request, axes, gpus, progress=progress, **how)
        elif gpus is not None:
            found = gpu_curve(request, gpus, deadline_s, progress=progress, **how)
    document = requests.plain(found)
    if output is not None and gpus is not None:
        _keep(request, gpus, document, output, force=force)
    if terminal.settings.json:
        terminal.write_json(document)
    screen = tradeoffs_screen.frontier_screen if axes else tradeoffs_screen.curve_screen
    terminal.show(screen(document, top or tradeoffs_screen.MOST_ROWS))
    if output is not None:
        terminal.talk(f"Wrote {output}: the plan on {document['chosen']:,} GPUs")
    requests.tell_warnings(terminal, document)
    if document["stopped"] == "interrupted":
        terminal.interruption_told = True
        terminal.warn("interrupted: this is what was found so far")
        raise typer.Exit(130)


def _keep(request: Request, gpus: GpuRange, document: dict[str, Any], output: Path, *, force: bool) -> None:
    """Write the plan on the number of GPUs that the answer chose."""
    from ..planner import api
    from ..planner.request.gpu_counts import counts

    found = api.plan(counts(request, gpus).on(document["chosen"]).request)
    write_file(output, found.to_json(), force=force)
