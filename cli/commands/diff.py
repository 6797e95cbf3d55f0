"""`meshwright diff`: what changed between two plans."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..console import FORMAT_VERSION, Terminal
from ..screens import listings as listings_screen
from ..screens import stages as stages_screen
from ..screens.listings import Difference

if TYPE_CHECKING:
    from ...planner.document.plan import Plan


def command(
    context: typer.Context,
    before: Annotated[Path, typer.Argument(metavar="PLAN", help="The first plan.", show_default=False)],
    after: Annotated[Path, typer.Argument(metavar="PLAN", help="The second plan.", show_default=False)],
    exit_code: Annotated[
        bool, typer.Option("--exit-code", help="Exit with 1 if the plans differ.", show_default=False)
    ] = False,
) -> None:
    """Show the changes between two plans: request, chosen layout, time, memory.

    \b
    Examples:
      meshwright diff before.json after.json
      meshwright diff before.json after.json --exit-code
    """
    from ...planner.document.reading import load_plan

    terminal: Terminal = context.obj
    changes = differences(load_plan(before), load_plan(after))
    if terminal.settings.json:
        items = [change.to_dict() for change in changes]
        terminal.write_json({"format_version": FORMAT_VERSION, "kind": "diff", "items": items})
    terminal.show(listings_screen.diff_screen(changes, (str(before), str(after))))
    if changes and exit_code:
        raise typer.Exit(1)


def differences(before: Plan, after: Plan) -> list[Difference]:
    """The fields of the summaries that differ."""
    old, new = (listings_screen.flatten(summary(plan)) for plan in (before, after))
    return [
        Difference(field, old.get(field), new.get(field))
        for field in dict.fromkeys([*old, *new])
        if old.get(field) != new.get(field)
    ]


def summary(plan: Plan) -> dict[str, object]:
    """The part of a plan that is compared: everything that led to it, and the first layout of the result."""
    best = plan.best
    return {
        "tool": plan.tool,
        "request": plan.request,
        "profiles": {profile.name: profile.sha256 for profile in plan.profiles},
        "layout": best.layout_id,
        "step_s": best.step_s,
        "mfu": best.mfu,
        "tokens_per_s_per_gpu": best.tokens_per_s_per_gpu,
        "cost_usd_per_mtoken": best.cost_usd_per_mtoken,
        "seconds": {term.name: term.seconds for term in best.terms if term.exposed},
        "peak_bytes": best.device_bytes,
        "layers": [stages_screen.num_layers(chunk) for chunk in best.stages],
        "recomputed": [chunk.recompute_layers for chunk in best.stages],
    }
