"""Several models on one cluster: `plan --jobs-file`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from ..errors import InputError
from .console import Terminal, to_json
from .files import check_writable, write_file
from .screens import jobs as screens


def run(
    terminal: Terminal, file: Path, flags: Mapping[str, object], request: Path | None, output: Path | None,
    refused: Mapping[str, object], *, force: bool,
) -> None:  # fmt: skip
    """Plans the jobs of a file and shows them; `output` gets the schedule. flags: fields that hold for all of them.
    refused: flags that go with one plan."""
    from ..planner.studies.jobs import plan_jobs

    if request is not None:
        raise InputError(f"{request} is a request, and --jobs-file has those of all jobs", hint="leave one of them out")
    if given := [name for name, value in refused.items() if value]:
        raise InputError(f"{given[0]} goes with one plan, not with --jobs-file", hint="leave it out")
    if flags.get("exclude"):
        raise InputError("--exclude: jobs are placed on all nodes", hint="a cluster with fewer nodes")
    if output is not None:
        check_writable(output, force=force)
    fields = {name: value for name, value in flags.items() if value not in (None, [], ())}
    with terminal.progress("planning jobs") as progress:
        plan = plan_jobs(file, fields, progress=progress)
    document = plan.model_dump(mode="json")
    if output is not None:
        write_file(output, to_json(document), force=force)
    if terminal.settings.json:
        terminal.write_json(document)
    terminal.show(screens.jobs_screen(plan))
