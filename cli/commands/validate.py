"""`meshwright validate`: predictions beside published runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..console import FORMAT_VERSION, Terminal, check_writable
from ..screens import validate as validate_screen

Files = Annotated[
    list[Path] | None,
    typer.Argument(metavar="[FILE]...", help="Runs: YAML, JSON, JSON lines; none: those shipped.", show_default=False),
]
Core = Annotated[bool, typer.Option("--core", help="Tables over core rows only.", show_default=False)]
Stack = Annotated[
    str | None,
    typer.Option(
        "--stack", metavar="NAME|FILE", help="Software of all runs [what each states].", show_default=False
    ),
]
Plot = Annotated[
    Path | None,
    typer.Option("--plot", metavar="FILE", help="Draw predicted against measured here.", show_default=False),
]
KeepGoing = Annotated[
    bool, typer.Option("--keep-going", help="Leave out runs that are wrong and judge the rest.", show_default=False)
]
Rows = Annotated[bool, typer.Option("--rows/--no-rows", help="Print every run [--rows].", show_default=False)]
Overwrite = Annotated[bool, typer.Option("--force", help="Overwrite the picture.", show_default=False)]


def command(
    context: typer.Context,
    files: Files = None,
    core: Core = False,
    stack: Stack = None,
    plot: Plot = None,
    keep_going: KeepGoing = False,
    rows: Rows = True,
    force: Overwrite = False,
) -> None:
    """Predict published runs from their configuration and show the errors.

    Step time and peak memory, by source, hardware, regime and stack; for sweeps
    also what choosing by the prediction would have cost.

    \b
    Examples:
      meshwright validate --no-rows
      meshwright validate runs.yaml --core --plot errors.png
    """
    from ...planner.accuracy.validate import validate

    terminal: Terminal = context.obj
    if plot is not None:
        check_writable(plot, force=force)
        validate_screen.check_plot()
    with terminal.progress("predicting") as progress:
        validation = validate(files or (), stack=stack, keep_going=keep_going, core=core, progress=progress)
    if plot is not None:
        validate_screen.draw(validation.rows, plot)
    if terminal.settings.json:
        terminal.write_json({"format_version": FORMAT_VERSION, "kind": "validation", **validation.to_dict()})
    terminal.show(validate_screen.screen(validation, rows=rows))
    for problem in validation.problems:
        terminal.warn(problem)
