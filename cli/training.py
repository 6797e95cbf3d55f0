"""`plan` of a training step: one search, or one for each of several numbers of GPUs or objectives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from . import requests, tradeoffs
from .allocator import keep_freed_memory
from .console import Terminal
from .files import write_file
from .screens import plan as plan_screen

if TYPE_CHECKING:
    from ..planner.document.plan import Plan
    from ..planner.request.gpu_counts import GpuRange
    from ..planner.request.load import Request

Layers = Literal["alike", "own"]


@dataclass(frozen=True, kw_only=True)
class Search:
    """The flags of `plan` for the search of a training step and for its answer."""

    numbers: GpuRange | None  # of GPUs; None: those of the request
    pareto: str | None  # axes of a frontier
    deadline: str | None  # of the whole run
    layers: Layers
    time_limit: str | None
    fastest: bool
    seed: int
    top: int | None  # layouts to show
    jobs: int
    executor: str | None
    allow: Sequence[str]  # techniques
    output: Path | None  # of the plan
    trace: Path | None  # of the pipeline of its best layout
    force: bool  # overwrite both


def run(terminal: Terminal, request: Request, search: Search) -> None:
    """Plans, shows and writes."""
    from ..cost_models import units

    _check_drawn(request, search)
    keep_freed_memory()
    limit_s = None if search.time_limit is None else units.parse(search.time_limit, "s")
    if tradeoffs.asks(search.numbers, search.pareto, search.deadline):
        return _compare(terminal, request, search, limit_s)
    plan = _planned(terminal, request, search, limit_s)
    _write(plan, request, search)
    _show(terminal, plan, search.output)


def _check_drawn(request: Request, search: Search) -> None:
    """Refuses to draw what the simulator does not know."""
    if search.trace is not None:
        from ..planner.explain.trace import check_drawn

        check_drawn(request, search.allow)


def _compare(terminal: Terminal, request: Request, search: Search, limit_s: float | None) -> None:
    """Several numbers of GPUs, or a frontier."""
    from ..cost_models import units
    from ..planner.document.base import OWN_STAGES

    single = {"--trace": search.trace, "--stages own": request.stages == OWN_STAGES,
              "--layers own": search.layers == "own", "--allow-technique": search.allow}  # fmt: skip
    tradeoffs.refuse(single, search.output, search.deadline)
    deadline_s = None if search.deadline is None else units.parse(search.deadline, "s")
    tradeoffs.run(terminal, request, search.numbers, search.pareto, deadline_s, top=search.top, output=search.output,
                  force=search.force, jobs=search.jobs, executor=search.executor, time_limit_s=limit_s)  # fmt: skip


def _planned(terminal: Terminal, request: Request, search: Search, limit_s: float | None) -> Plan:
    from ..planner import api

    with terminal.progress("searching") as progress:
        return api.plan(request, progress=progress, time_limit_s=limit_s, layers=search.layers, seed=search.seed,
                        fastest=search.fastest, jobs=search.jobs, executor=search.executor,
                        allow_techniques=search.allow)  # fmt: skip


def _write(plan: Plan, request: Request, search: Search) -> None:
    """The plan, and the pipeline of its best layout."""
    if search.output is not None:
        write_file(search.output, plan.to_json(), force=search.force)
    if search.trace is not None:
        from ..planner.explain.trace import chrome_trace, of_candidate

        write_file(search.trace, chrome_trace(of_candidate(request, plan.best)), force=search.force)


def _show(terminal: Terminal, plan: Plan, output: Path | None) -> None:
    """Prints the plan with its warnings; exits with 130 where the search was interrupted."""
    if terminal.settings.json:
        terminal.write(plan.to_json())
    terminal.show(plan_screen.plan_screen(plan, unicode=terminal.unicode, saved_as=str(output) if output else None))
    requests.end_with_warnings(terminal, plan)
