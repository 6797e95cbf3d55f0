"""`plan --max-len`: documents of mixed lengths, each a sequence with a degree of its own."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import InputError
from . import requests
from .console import Terminal, to_json
from .files import check_writable, write_files
from .screens import mixed_lengths as screen

if TYPE_CHECKING:
    from ..planner.request.load import Request


def refuse(options: Mapping[str, object]) -> None:
    """Refuses what goes with a plan of one layout, by name."""
    if given := [name for name, value in options.items() if value]:
        raise InputError(f"{given[0]} goes with a plan of one layout, and --max-len gives every document a degree",
                         hint="leave one of them out")  # fmt: skip


def run(terminal: Terminal, request: Request, output: Path | None, *, force: bool, seed: int) -> None:
    """Plans and shows; `output` gets the plan, and a file beside it the batches for a sampler, as JSON lines."""
    from ..planner import api
    from ..planner.document.sampler_plan import sampler_path

    sampler = None if output is None else sampler_path(output)
    if sampler is not None:
        check_writable(sampler, force=force)
    with terminal.progress("planning batches") as progress:
        planned = api.plan_documents(request, progress=progress, seed=seed)
    document = planned.document().model_dump(mode="json")
    if output is not None and sampler is not None:
        lines = "".join(f"{line}\n" for line in planned.sampler_lines())
        write_files({output: to_json(document), sampler: lines}, force=force)
    if terminal.settings.json:
        terminal.write_json(document)
    terminal.show(screen.screen(planned, str(output) if output else None, str(sampler) if sampler else None))
    requests.show_warnings(terminal, document["warnings"])
