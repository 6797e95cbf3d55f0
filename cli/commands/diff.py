"""`meshwright diff`: what changed between two plans."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from .. import requests
from ..console import FORMAT_VERSION, Terminal
from ..screens import listings as listings_screen
from ..screens import memory as memory_screen
from ..screens import stages as stages_screen


def command(
    context: typer.Context,
    before: Annotated[Path, typer.Argument(metavar="PLAN", help="The first plan.", show_default=False)],
    after: Annotated[Path, typer.Argument(metavar="PLAN", help="The second plan.", show_default=False)],
    exit_code: Annotated[
        bool, typer.Option("--exit-code", help="Exit with 1 if the plans differ.", show_default=False)
    ] = False,
) -> None:
    """Show what changed between two plans: request, chosen layout, time, memory.

    \b
    Examples:
      meshwright diff before.json after.json
      meshwright diff before.json after.json --exit-code
    """
    terminal: Terminal = context.obj
    changes = differences(requests.load_plan(before), requests.load_plan(after))
    if terminal.settings.json:
        terminal.write_json({"format_version": FORMAT_VERSION, "kind": "diff", "items": changes})
    terminal.show(listings_screen.diff_screen(changes, (str(before), str(after))))
    if changes and exit_code:
        raise typer.Exit(1)


def differences(before: dict[str, Any], after: dict[str, Any]) -> list[dict[str, Any]]:
    """[{field, before, after}] for each field of the summaries that differs."""
    old, new = (listings_screen.flatten(summary(plan)) for plan in (before, after))
    return [
        {"field": field, "before": old.get(field), "after": new.get(field)}
        for field in dict.fromkeys([*old, *new])
        if old.get(field) != new.get(field)
    ]


def summary(plan: dict[str, Any]) -> dict[str, Any]:
    """What two plans are compared by: everything that led to them, and of the result the first layout."""
    best = plan["candidates"][0]
    return {
        "tool": plan["tool"],
        "request": plan["request"],
        "profiles": {each["name"]: each["sha256"] for each in plan["profiles"]},
        "layout": best["layout_id"],
        "step_s": best["step_s"],
        "mfu": best["mfu"],
        "tokens_per_s_per_gpu": best["tokens_per_s_per_gpu"],
        "cost_usd_per_mtoken": best["cost_usd_per_mtoken"],
        "seconds": {term["name"]: term["seconds"] for term in best["terms"] if term["exposed"]},
        "peak_bytes": memory_screen.peak_bytes(best),
        "layers": [stages_screen.num_layers(each) for each in best["stages"]],
        "recomputed": [each.get("recompute_layers", 0) for each in best["stages"]],
    }
