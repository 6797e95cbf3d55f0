"""`meshwright validate`: predictions beside published runs, and beside plans that experts tuned."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ...errors import InputError
from .. import options
from ..console import FORMAT_VERSION, Terminal
from ..files import check_writable
from ..flag import flag
from ..screens import folds as folds_screen
from ..screens import rl_validation as rl_screen
from ..screens import serving as serving_screen
from ..screens import tuned_plans as plans_screen
from ..screens import validate as validate_screen

if TYPE_CHECKING:
    from rich.console import RenderableType

Files = Annotated[
    list[Path] | None,
    typer.Argument(metavar="[FILE]...", help="Runs: YAML, JSON, JSON lines; none: those shipped.", show_default=False),
]
Core = Annotated[bool, flag("--core", text="Restrict tables to core rows.")]
Stack = Annotated[str | None, flag("--stack", metavar="NAME|FILE", text="Software of all runs [that of each row].")]
Plot = Annotated[Path | None, flag("--plot", metavar="FILE", text="Draw predicted against measured here.")]
Plans = Annotated[
    list[Path] | None, flag("--plans", metavar="FILE", text="Judge tuned plans instead of runs; repeatable.")
]
KeepGoing = Annotated[bool, flag("--keep-going", text="Leave out rows that are wrong and judge the rest.")]
Rows = Annotated[
    bool | None, flag("--rows/--no-rows", text="Print every row [runs: yes; plans: the worst; engines: no].")
]
OtherHardware = Annotated[bool, flag("--other-hardware", text="Judge the shipped runs of TPUs, AMD, Gaudi, Trainium.")]
Folds = Annotated[bool, flag("--folds", text="Predict each run by a fit that saw nothing like it.")]
Overwrite = Annotated[bool, flag("--force", text="Overwrite the picture.")]


def command(
    context: typer.Context,
    files: Files = None,
    plans: Plans = None,
    core: Core = False,
    folds: Folds = False,
    stack: Stack = None,
    plot: Plot = None,
    keep_going: KeepGoing = False,
    rows: Rows = None,
    other_hardware: OtherHardware = False,
    jobs: options.Jobs = 1,
    force: Overwrite = False,
) -> None:
    """Predict published runs from their configuration and show the errors.

    Shows step time and peak memory by source, hardware, regime and stack; for
    sweeps also the cost of choosing by the prediction. Tuned plans (--plans) are
    looked up in the space, checked for memory, and compared with the search.
    Runs of inference engines, in files of their own, show TTFT, TPOT and tokens/s;
    steps of post-training their seconds, and ratios of runs that differ in lag.

    \b
    Examples:
      meshwright validate --no-rows
      meshwright validate runs.yaml --core --plot errors.png
      meshwright validate --folds
      meshwright validate --other-hardware --no-rows
      meshwright validate --plans tuned.yaml --jobs 2
    """
    terminal: Terminal = context.obj
    given = {"FILE": files, "--core": core, "--stack": stack, "--plot": plot, "--other-hardware": other_hardware}
    if files and not plans and _are_rl(files):
        rest = {**given, "FILE": None, "--folds": folds}
        _refuse(rest, "{}: of training runs, and FILE has steps of post-training", hint="leave it out")
        _predict_rl(terminal, files, keep_going=keep_going)
    elif files and not plans and _serve(files):
        rest = {**given, "FILE": None}
        _refuse(rest, "{}: of training runs, and FILE has runs of inference engines", hint="leave it out")
        _predict_serving(terminal, files, folds=folds, keep_going=keep_going, rows=bool(rows))
    elif folds:
        rest = {**given, "--plans": plans, "--keep-going": keep_going, "--rows": rows}
        _refuse(rest, "--folds and {}: folds are of the shipped runs",
                hint="leave them out: `meshwright validate --folds`")  # fmt: skip
        _judge_folds(terminal)
    elif plans:
        _refuse(given, "--plans and {}: plans have no measurements", hint="leave one of them out")
        _judge_plans(terminal, plans, jobs=jobs, keep_going=keep_going, rows=bool(rows))
    elif other_hardware:
        if files:
            raise InputError("--other-hardware and FILE: the runs are those that ship", hint="leave one of them out")
        _predict_other(terminal, core=core, stack=stack, rows=rows is not False)
    else:
        _predict_runs(terminal, files or [], core=core, stack=stack, plot=plot, keep_going=keep_going,
                      rows=rows is not False, force=force)  # fmt: skip


def _refuse(flags: Mapping[str, object], text: str, *, hint: str) -> None:
    """Raises InputError with the names of the flags that were given, in the place of {} in the text."""
    if given := [name for name, value in flags.items() if value]:
        raise InputError(text.format(", ".join(given)), hint=hint)


def _predict_runs(
    terminal: Terminal, files: list[Path], *, core: bool, stack: str | None, plot: Path | None, keep_going: bool,
    rows: bool, force: bool,
) -> None:  # fmt: skip
    from ...planner.accuracy.validate import validate

    if plot is not None:
        check_writable(plot, force=force)
        validate_screen.check_plot()
    with terminal.progress("predicting") as progress:
        validation = validate(files, stack=stack, keep_going=keep_going, core=core, progress=progress)
    if plot is not None:
        validate_screen.draw(validation.rows, plot)
    screen = validate_screen.screen(validation, rows=rows)
    _show(terminal, "validation", validation.to_dict(), screen, validation.problems)


def _predict_other(terminal: Terminal, *, core: bool, stack: str | None, rows: bool) -> None:
    from ...planner.accuracy import other_hardware
    from ...planner.accuracy.validate import validate

    with terminal.progress("predicting") as progress:
        validation = validate(other_hardware.files(), stack=stack, core=core, progress=progress)
    folds = other_hardware.fold_errors(validation.rows)
    if terminal.settings.json:
        document = {"format_version": FORMAT_VERSION, "kind": "validation", **validation.to_dict()}
        terminal.write_json(document | {"folds": {name: asdict(errors) for name, errors in folds.items()}})
    terminal.show(validate_screen.screen(validation, rows=rows))
    terminal.show(validate_screen.folds_screen(folds))


def _are_rl(files: list[Path]) -> bool:
    from ...planner.workflows.validate import are_rl

    return are_rl(files)


def _predict_rl(terminal: Terminal, files: list[Path], *, keep_going: bool) -> None:
    from ...planner.workflows.validate import validate_rl

    with terminal.progress("predicting") as progress:
        validation = validate_rl(files, keep_going=keep_going, progress=progress)
    _show(terminal, "rl-validation", validation.to_dict(), rl_screen.screen(validation), validation.problems)


def _serve(files: list[Path]) -> bool:
    from ...planner.serving.validate import are_serving

    return are_serving(files)


def _predict_serving(terminal: Terminal, files: list[Path], *, folds: bool, keep_going: bool, rows: bool) -> None:
    from ...planner.serving.validate import validate_serving

    with terminal.progress("predicting") as progress:
        validation = validate_serving(files, folds=folds, keep_going=keep_going, progress=progress)
    screen = serving_screen.screen(validation, rows=rows)
    _show(terminal, "serving-validation", validation.to_dict(), screen, validation.problems)


def _judge_folds(terminal: Terminal) -> None:
    from ...planner.accuracy.fold_report import fold_report

    with terminal.progress("predicting") as progress:
        report = fold_report(progress)
    _show(terminal, "validation-folds", report.to_dict(), folds_screen.screen(report))


def _judge_plans(terminal: Terminal, files: list[Path], *, jobs: int, keep_going: bool, rows: bool) -> None:
    from ...planner.accuracy.tuned_plans import validate_plans

    with terminal.progress("searching") as progress:
        validation = validate_plans(files, jobs=jobs, keep_going=keep_going, progress=progress)
    screen = plans_screen.screen(validation, rows=rows)
    _show(terminal, "plan-validation", validation.to_dict(), screen, validation.problems)


def _show(
    terminal: Terminal, kind: str, values: Mapping[str, object], screen: Iterable[RenderableType],
    problems: Iterable[str] = (),
) -> None:  # fmt: skip
    """A JSON document where it is wanted, the screen, and the problems of rows that were left out."""
    if terminal.settings.json:
        terminal.write_json({"format_version": FORMAT_VERSION, "kind": kind, **values})
    terminal.show(screen)
    for problem in problems:
        terminal.warn(problem)
