"""`meshwright what-if`: what a plan would cost if numbers differed."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from .. import options, requests, tables, what_if_screens
from ..console import Terminal


def command(
    context: typer.Context,
    plan: options.PlanFile,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="PATH=VALUE", help="Change a number or field; repeatable.", show_default=False),
    ] = None,
    replan: Annotated[
        bool, typer.Option("--replan", help="Search the best layout too, beside the one held.", show_default=False)
    ] = False,
    choice: options.Choice = 1,
) -> None:
    """What a layout of a plan would cost if numbers differed: hardware, prices, batch, length.

    A value is a quantity with its unit, or x2: twice what it is.

    \b
    Examples:
      meshwright what-if plan.json --set gpu.memory.bandwidth=4.8TB/s
      meshwright what-if plan.json --set cluster.links.inter_node.bandwidth=800Gb/s --replan
      meshwright what-if plan.json --set gpu=b200-sxm-180gb --replan
    """
    from ...planner.plan import load_plan
    from ...planner.what_if import what_if

    terminal: Terminal = context.obj
    found = load_plan(plan)
    with terminal.progress("searching") as progress:
        result = what_if(found, set=set_ or (), replan=replan, choice=choice, progress=progress)
    document: dict[str, Any] = requests.plain(result)
    if terminal.settings.json:
        terminal.write_json(document)
    terminal.show(what_if_screens.compare_screen(document, tables.header(found.model_dump(mode="json"))))
    requests.tell_warnings(terminal, document)
    if document["after"]["held"]["problems"] and not replan:
        raise typer.Exit(1)  # the answer is no
