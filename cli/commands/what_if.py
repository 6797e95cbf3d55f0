"""`meshwright what-if`: what a plan would cost if numbers differed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ...errors import InputError
from .. import options, requests, text
from ..console import Terminal
from ..files import check_writable, write_file
from ..flag import flag
from ..screens import header as header_lines
from ..screens import sensitivity as sensitivity_screen
from ..screens import studies as studies_screen
from ..screens import sweep as sweep_screen
from ..screens import what_if as what_if_screen

if TYPE_CHECKING:
    from ...planner.studies.base import Result
    from ...planner.studies.sweep import Sweep
    from ..screens.parts import Part

    PlotWriter = Callable[[Sweep, str], str | bytes]

Changes = Annotated[list[str] | None, flag("--set", metavar="PATH=VALUE", text="Change a number or field; repeatable.")]
Vary = Annotated[
    list[str] | None, flag("--vary", metavar="PATH=A..B", text="Vary over a range or a list (a,b,c); two give a map.")
]
Study = Annotated[str | None, flag("--study", metavar="NAME", text="Run a study of the list above.")]
Assume = Annotated[list[str] | None, flag("--assume", metavar="NAME=VALUE", text="Change an assumption of a study.")]
Replan = Annotated[bool, flag("--replan", text="Also search the best layout for the changed numbers.")]
Plot = Annotated[Path | None, flag("--plot", metavar="FILE", text="Draw the result: .html (interactive) or .png.")]
Csv = Annotated[Path | None, flag("--csv", metavar="FILE", text="Write the points as CSV.")]
Resume = Annotated[
    Path | None, flag("--resume", metavar="FILE", text="Save searched points here, and resume from them.")
]


def command(
    context: typer.Context,
    plan: options.PlanFile,
    set_: Changes = None,
    vary: Vary = None,
    study: Study = None,
    assume: Assume = None,
    replan: Replan = False,
    choice: options.Choice = 1,
    plot: Plot = None,
    csv: Csv = None,
    jobs: options.Jobs = 1,
    executor: options.Executor = None,
    resume: Resume = None,
    force: options.Force = False,
) -> None:
    """Price a layout of a plan with changed hardware, prices, batch or sequence length.

    Write a value with its unit (4.8TB/s) or as a factor (x2). The points of a range a..b have equal
    ratios; a..b:linear:9 has 9 points at equal distances.

    \b
    Studies:
      sensitivity     ranks hardware numbers by their effect on the step time
      strong-scaling  the same batch on more GPUs, with the best layout on each
      weak-scaling    a batch in proportion to the GPUs
      generations     A100, H100, B200 or --vary gpu=..., the best layout on each
      reliability     failures, checkpoint interval and goodput
      faults          time lost in a day, by what is done after a failure
      network-cost    switches, transceivers, price and power without a spine
      step-law        learning rate and batch by the step law
      gossip          exchanges of replicas over a graph: --assume graph=a-b,b-c
      conversion      states moved to another layout in memory: --assume to=LAYOUT

    \b
    Examples:
      meshwright what-if plan.json --set gpu.memory.bandwidth=4.8TB/s --replan
      meshwright what-if plan.json --vary gpu.memory.bandwidth=2TB/s..8TB/s
      meshwright what-if plan.json --vary gpu.peak=x0.5..x4:4 --vary gpus=8,16,32
      meshwright what-if plan.json --vary gpus=64..512 --replan --resume a.jsonl
      meshwright what-if plan.json --study sensitivity
      meshwright what-if plan.json --study reliability --assume gpu_mtbf=30000h
    """
    from ...planner.document.reading import load_plan
    from ...planner.studies.compare import Comparison
    from ...planner.studies.what_if import what_if

    terminal: Terminal = context.obj
    loaded = load_plan(plan)
    draw = _drawing(plot)
    _check_outputs(plot, csv, several=bool(vary or study), force=force)
    with terminal.progress("studying") as progress:
        try:
            result = what_if(loaded, set=set_ or (), vary=vary or (), study=study, replan=replan, choice=choice,
                             assume=_assumed(assume or ()), jobs=jobs, executor=executor, resume=resume,
                             progress=progress)  # fmt: skip
        except KeyboardInterrupt:
            if resume is not None and resume.exists():
                terminal.talk(f"What was searched is in {resume}: the same command goes on from there")
            raise
    result, header = requests.rounded(result), header_lines.header(loaded)
    _write(result, header, csv, plot, draw, force=force)
    _show(terminal, result, header, csv, plot)
    if isinstance(result, Comparison) and result.after.held.problems and not replan:
        raise typer.Exit(1)  # the answer is no


def _check_outputs(plot: Path | None, csv: Path | None, *, several: bool, force: bool) -> None:
    """Raises InputError for a file that cannot be written, or has only one point. several: points."""
    if (plot or csv) and not several:
        raise InputError("one change is no curve", hint="`--vary path=a..b` with --plot or --csv; `--json` has all")
    for path in (plot, csv):
        if path is not None:
            check_writable(path, force=force)


def _show(terminal: Terminal, result: Result, header: str, *written: Path | None) -> None:
    """The screen of a study, with the files that it wrote and its warnings."""
    if terminal.settings.json:
        terminal.write_json(result.model_dump(mode="json"))
    *screen, end = screen_of(result, header)
    terminal.show([*screen, *map(text.wrapped, result.notes), end])
    for path in written:
        if path is not None:
            terminal.talk(f"Wrote {path}")
    requests.show_warnings(terminal, result.warnings)


def screen_of(result: Result, header: str) -> list[Part]:
    """The screen of a study. Raises TypeError for a result that has none."""
    from ...planner.studies.compare import Comparison
    from ...planner.studies.conversion import Conversion
    from ...planner.studies.faults import Faults
    from ...planner.studies.generations import Generations
    from ...planner.studies.gossip import GossipStudy
    from ...planner.studies.network_cost import NetworkCost
    from ...planner.studies.reliability import Reliability
    from ...planner.studies.scaling import Scaling
    from ...planner.studies.sensitivity import Sensitivity
    from ...planner.studies.step_law import StepLaw
    from ...planner.studies.sweep import Sweep

    match result:
        case Comparison():
            return what_if_screen.compare_screen(result, header)
        case Scaling():  # these two are sweeps as well
            return studies_screen.scaling_screen(result, header)
        case Generations():
            return studies_screen.generations_screen(result, header)
        case Sweep():
            return sweep_screen.sweep_screen(result, header)
        case Sensitivity():
            return sensitivity_screen.sensitivity_screen(result, header)
        case Reliability():
            return studies_screen.reliability_screen(result, header)
        case Faults():
            return studies_screen.faults_screen(result, header)
        case NetworkCost():
            return studies_screen.network_cost_screen(result, header)
        case StepLaw():
            return studies_screen.step_law_screen(result, header)
        case Conversion():
            return studies_screen.conversion_screen(result, header)
        case GossipStudy():
            return studies_screen.gossip_screen(result, header)
        case _:
            raise TypeError(f"{type(result).__name__} has no screen")


def _assumed(texts: Sequence[str]) -> dict[str, str]:
    pairs = [text.partition("=") for text in texts]
    if wrong := [name for name, _, value in pairs if not value.strip()]:
        raise InputError(f"--assume `{wrong[0]}` is not `name=value`", hint="write `--assume gpu_mtbf=30000h`")
    return {name.strip(): value.strip() for name, _, value in pairs}


def _drawing(plot: Path | None) -> PlotWriter | None:
    """The function that draws a file of this suffix. Raises InputError for an unknown suffix."""
    if plot is None:
        return None
    if plot.suffix.lower() == ".html":
        from ..charts.html import chart_page

        return chart_page
    if plot.suffix.lower() == ".png":
        from ..charts.png import chart_png

        return chart_png
    raise InputError(f"--plot {plot}: `{plot.suffix or 'no suffix'}` is no picture", hint="name it x.html or x.png")


def _write(
    result: Result, header: str, csv: Path | None, plot: Path | None, draw: PlotWriter | None, *, force: bool
) -> None:
    from ...planner.studies.sweep import Sweep
    from ..charts.csv import points_to_csv, rows_to_csv

    if plot is not None and not isinstance(result, Sweep):
        raise InputError(f"nothing to draw in {result.study}", hint="`--csv` or `--json` have its numbers")
    if csv is not None and isinstance(result, Sweep):
        write_file(csv, points_to_csv(result.points), force=force)
    elif csv is not None and result.table:
        write_file(csv, rows_to_csv(result.table), force=force)
    if plot is not None and draw is not None and isinstance(result, Sweep):
        write_file(plot, draw(result, header), force=force)
