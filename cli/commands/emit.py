"""`meshwright emit`: the files that launch a plan."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .. import options
from ..console import FORMAT_VERSION, Terminal, check_writable, write_file


def command(
    context: typer.Context,
    plan: options.PlanFile,
    to: Annotated[
        str, typer.Option("--to", metavar="TARGET", help="Framework to write for [meshwright].", show_default=False)
    ] = "meshwright",
    launcher: Annotated[
        str, typer.Option("--launcher", metavar="torchrun|slurm", help="Who starts it [torchrun].", show_default=False)
    ] = "torchrun",
    choice: options.Choice = 1,
    directory: Annotated[
        Path | None,
        typer.Option("-d", "--directory", metavar="DIR", help="Write here; else print.", show_default=False),
    ] = None,
    force: options.Force = False,
) -> None:
    """Write the files that launch a plan, or print them.

    \b
    Examples:
      meshwright emit plan.json
      meshwright emit plan.json --to meshwright --launcher slurm -d job
    """
    from ...errors import UnsupportedError
    from ...planner.emitters import meshwright
    from ...planner.emitters.registry import target
    from ...planner.plan import load_plan

    terminal: Terminal = context.obj
    found = load_plan(plan)
    if target(to).name != "meshwright":
        raise UnsupportedError(f"files for {to} cannot be written yet", hint="`--to meshwright` can")
    texts = meshwright.files(found, launcher, choice)
    if directory is not None:
        _write(terminal, texts, directory, force=force)
    if terminal.settings.json:
        terminal.write_json({"format_version": FORMAT_VERSION, "kind": "files", "files": texts})
    elif directory is None:
        for name, text in texts.items():
            if name != "plan.json":  # the reader has it
                terminal.show([f"# {name}", text.rstrip("\n")])


def _write(terminal: Terminal, texts: dict[str, str], directory: Path, *, force: bool) -> None:
    """All files or, where one may not be written, none."""
    directory.mkdir(parents=True, exist_ok=True)
    for name in texts:
        check_writable(directory / name, force=force)
    for name, text in texts.items():
        write_file(directory / name, text, force=force)
        terminal.talk(f"wrote {directory / name}")
