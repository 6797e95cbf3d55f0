"""`meshwright calibrate`: the numbers of a stack from runs of one's own."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .. import calibrate_screens
from ..console import FORMAT_VERSION, Terminal, check_writable, write_file

Rows = Annotated[
    list[Path], typer.Argument(metavar="ROWS", help="Runs: YAML, JSON, JSON lines.", show_default=False)
]
Output = Annotated[
    Path | None, typer.Option("-o", "--output", metavar="FILE", help="Write the stack here.", show_default=False)
]
Overwrite = Annotated[bool, typer.Option("--force", help="Overwrite the stack file.", show_default=False)]
KeepGoing = Annotated[
    bool, typer.Option("--keep-going", help="Leave out runs that are wrong and use the rest.", show_default=False)
]


def command(
    context: typer.Context, rows: Rows, output: Output = None, force: Overwrite = False, keep_going: KeepGoing = False
) -> None:
    """Fit the numbers of a software stack to measured runs.

    Starts at what ships and moves what the runs can tell: three short jobs of
    different layouts are enough for the rate that your kernels keep up. Prints
    the errors before and after, on runs left out of the fit, and how sure each
    number is. `plan --stack FILE` and `validate --stack FILE` use the result.

    \b
    Examples:
      meshwright calibrate runs.yaml -o stack.yaml
      meshwright plan request.yaml --stack stack.yaml
    """
    from ...planner.calibrate import calibrate

    terminal: Terminal = context.obj
    if output is not None:
        check_writable(output, force=force)
    with terminal.progress("fitting") as progress:
        found = calibrate(rows, keep_going=keep_going, progress=progress)
    if output is not None:
        write_file(output, found.stack, force=force)
    if terminal.settings.json:
        terminal.write_json({"format_version": FORMAT_VERSION, "kind": "calibration", **found.document})
    terminal.show(calibrate_screens.screen(found.document, saved_as=str(output) if output else None))
    for problem in found.document["problems"]:
        terminal.warn(problem)
