"""`meshwright report`: one page on a plan, to send on."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .. import mixed_lengths, options, reinforcement, requests, serving
from ..console import FORMAT_VERSION, Terminal
from ..files import check_writable, write_file
from ..flag import flag

Output = Annotated[Path, flag("-o", "--output", metavar="FILE", text="Write the page here [report.html].")]


def command(
    context: typer.Context,
    plan: options.PlanFile,
    choice: options.Choice = 1,
    output: Output = Path("report.html"),
    force: options.Force = False,
) -> None:
    """Write one page on a plan: decision, time, memory, pipeline, sensitivity and all sources.

    The page is one HTML file that needs no network. Of a serving plan: latency against
    the load, deployments, pools, memory. Of one of post-training: calls over GPUs.

    \b
    Examples:
      meshwright report plan.json -o report.html
      meshwright report plan.json --choice 2 -o second.html
    """
    from ...planner.document.lengths_plan import load_lengths_plan
    from ...planner.document.reading import load_plan
    from ...planner.explain.report import report
    from ..pages.report import report_page

    terminal: Terminal = context.obj
    if (lengths := load_lengths_plan(plan)) is not None:
        check_writable(output, force=force)
        return mixed_lengths.report(terminal, plan, lengths, choice, output, force=force)
    if requests.is_plan(plan, "serving-plan"):
        served = serving.loaded(plan)
        check_writable(output, force=force)
        return serving.report(terminal, served, choice, output, force=force)
    if requests.is_plan(plan, "rl-plan"):
        check_writable(output, force=force)
        return reinforcement.report(terminal, plan, choice, output, force=force)
    loaded = load_plan(plan)
    check_writable(output, force=force)
    result = requests.rounded(report(loaded, choice))
    write_file(output, report_page(loaded, result), force=force)
    if terminal.settings.json:
        terminal.write_json({"format_version": FORMAT_VERSION, "kind": "report", **result.model_dump(mode="json")})
    terminal.talk(f"Wrote {output}")
    requests.show_warnings(terminal, result.warnings)
