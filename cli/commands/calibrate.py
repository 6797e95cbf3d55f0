"""`meshwright calibrate`: the numbers of a stack from runs of one's own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ...errors import InputError
from .. import requests, serving
from ..console import FORMAT_VERSION, Terminal
from ..files import check_writable, write_file
from ..flag import flag
from ..screens import calibrate as calibrate_screen
from ..screens import calibrate_benches as calibrate_benches_screen
from ..screens import calibrate_runs as calibrate_runs_screen

if TYPE_CHECKING:
    from rich.console import RenderableType

    from ...planner.accuracy.calibrate_report import CalibrationReport
    from ...planner.accuracy.from_run import RunCalibrationReport
    from ...planner.serving.from_bench import BenchCalibrationReport

Rows = Annotated[
    list[Path] | None, typer.Argument(metavar="ROWS", help="Runs: YAML, JSON, JSON lines.", show_default=False)
]
FromRun = Annotated[
    list[Path] | None,
    flag("--from-run", metavar="REPORT", text="Report of a `launch`, or of vLLM's benchmark; repeatable."),
]
Plans = Annotated[list[Path] | None, flag("--plan", metavar="PLAN", text="The plan that was launched; repeatable.")]
Instances = Annotated[
    int | None, flag("--instances", metavar="N", text="serve: instances that the benchmark asked [all of the plan].")
]
Output = Annotated[Path | None, flag("-o", "--output", metavar="FILE", text="Write the stack here.")]
Overwrite = Annotated[bool, flag("--force", text="Overwrite the stack file.")]
KeepGoing = Annotated[bool, flag("--keep-going", text="Leave out runs that are wrong and use the rest.")]


def command(
    context: typer.Context, rows: Rows = None, from_run: FromRun = None, plan: Plans = None,
    instances: Instances = None, output: Output = None, force: Overwrite = False, keep_going: KeepGoing = False,
) -> None:  # fmt: skip
    """Fit the numbers of a software stack to measured runs.

    The fit starts at the shipped numbers and moves those that the runs determine:
    three short jobs of different layouts are enough for the sustained rate of your
    kernels. Prints the errors before and after, on runs left out of the fit, and
    the certainty of each number. `plan --stack FILE` and `validate --stack FILE`
    use the result. One report of `launch` is enough for the numbers it determines.

    With a serving plan the reports are those of `vllm bench serve --save-result`.
    They are compared with the plan, and the file is for requests to serve.

    \b
    Examples:
      meshwright calibrate runs.yaml -o stack.yaml
      meshwright calibrate --from-run run.json --plan plan.json -o stack.yaml
      meshwright plan request.yaml --stack stack.yaml
    """
    from ...planner.accuracy.calibrate import calibrate
    from ...planner.accuracy.from_run import calibrate_runs

    terminal: Terminal = context.obj
    _check_given(rows, from_run, plan, keep_going=keep_going)
    if output is not None:
        check_writable(output, force=force)
    saved_as = str(output) if output else None
    if from_run and any(requests.is_plan(path, "serving-plan") for path in plan or []):
        with terminal.progress("fitting"):
            benched = serving.calibrated(from_run, plan or [], instances)
        shown = calibrate_benches_screen.screen(benched.report, saved_as=saved_as)
        _finish(terminal, benched.report, shown, benched.stack, output, force=force)
        return
    if instances is not None:
        raise InputError("--instances goes with a serving plan", hint="leave it out")
    if from_run:
        with terminal.progress("fitting"):
            launched = calibrate_runs(from_run, plan or [])
        screen = calibrate_runs_screen.screen(launched.report, saved_as=saved_as)
        _finish(terminal, launched.report, screen, launched.stack, output, force=force)
        return
    with terminal.progress("fitting") as progress:
        fitted = calibrate(rows or [], keep_going=keep_going, progress=progress)
    screen = calibrate_screen.screen(fitted.report, saved_as=saved_as)
    _finish(terminal, fitted.report, screen, fitted.stack, output, force=force)


def _finish(
    terminal: Terminal, report: CalibrationReport | RunCalibrationReport | BenchCalibrationReport,
    screen: Iterator[RenderableType], stack: str, output: Path | None, *, force: bool,
) -> None:  # fmt: skip
    """Writes the stack file and shows the report."""
    if output is not None:
        write_file(output, stack, force=force)
    if terminal.settings.json:
        terminal.write_json({"format_version": FORMAT_VERSION, "kind": "calibration", **report.to_dict()})
    terminal.show(screen)
    for problem in report.problems:
        terminal.warn(problem)


def _check_given(
    rows: list[Path] | None, reports: list[Path] | None, plans: list[Path] | None, *, keep_going: bool
) -> None:
    if bool(rows) == bool(reports):
        wrong = "ROWS and --from-run are two ways: give one" if rows else "give ROWS, or reports by --from-run"
        raise InputError(wrong, hint="`meshwright calibrate --from-run run.json --plan plan.json`")
    for name, given in (("--plan", bool(plans) and not reports), ("--keep-going", keep_going and bool(reports))):
        if given:
            raise InputError(f"{name} goes with {'--from-run' if name == '--plan' else 'ROWS'} only")
