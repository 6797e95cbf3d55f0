"""`meshwright diff`: what changed between two plans."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ...errors import InputError
from .. import requests, serving, text
from ..console import FORMAT_VERSION, Terminal
from ..flag import flag
from ..screens import listings as listings_screen
from ..screens import stages as stages_screen
from ..screens.listings import Difference

if TYPE_CHECKING:
    from ...planner.document.plan import Plan
    from ...planner.document.serving_plan import ServingPlan

Before = Annotated[Path, typer.Argument(metavar="PLAN", help="The first plan.", show_default=False)]
After = Annotated[Path, typer.Argument(metavar="PLAN", help="The second plan.", show_default=False)]
ExitCode = Annotated[bool, flag("--exit-code", text="Exit with 1 if the plans differ.")]


def command(
    context: typer.Context,
    before: Before,
    after: After,
    exit_code: ExitCode = False,
) -> None:
    """Show the changes between two plans: request, chosen layout, time, memory.

    Of two serving plans: request, constants, pools, latencies, cost.

    \b
    Examples:
      meshwright diff before.json after.json
      meshwright diff before.json after.json --exit-code
    """
    terminal: Terminal = context.obj
    changes = differences(*_summaries(before, after))
    if terminal.settings.json:
        items = [change.to_dict() for change in changes]
        terminal.write_json({"format_version": FORMAT_VERSION, "kind": "diff", "items": items})
    terminal.show(listings_screen.diff_screen(changes, (str(before), str(after))))
    if changes and exit_code:
        raise typer.Exit(1)


def _summaries(before: Path, after: Path) -> list[dict[str, object]]:
    """The parts of two plans of one kind that are compared."""
    from ...planner.document.reading import load_plan

    serve = [requests.is_plan(path, "serving-plan") for path in (before, after)]
    if serve[0] != serve[1]:
        load_plan(after if serve[0] else before)  # raises where it is missing, or no plan
        raise InputError(f"{before} and {after}: one is of a deployment that serves, the other is not",
                         hint="compare plans of one kind")  # fmt: skip
    if all(serve):
        return [serving_summary(serving.loaded(path)) for path in (before, after)]
    return [summary(load_plan(path)) for path in (before, after)]


def differences(before: Mapping[str, object], after: Mapping[str, object]) -> list[Difference]:
    """The fields of two summaries that differ."""
    old, new = (listings_screen.flatten(item) for item in (before, after))
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
        "layers": text.runs(stages_screen.num_layers(chunk) for chunk in best.stages),
        "recomputed": text.runs(chunk.recompute_layers for chunk in best.stages),
    }


def serving_summary(plan: ServingPlan) -> dict[str, object]:
    """As `summary`, of a serving plan."""
    best = plan.best
    skipped = {"choice", "pools", "simulated"}
    return {
        "tool": plan.tool,
        "request": plan.request,
        "constants": plan.resolved.get("constants", {}),
        "host_s": plan.resolved.get("host_s"),
        **best.model_dump(mode="json", exclude=skipped),
        **{f"pool of {pool.role}": pool.model_dump(mode="json", exclude={"role"}) for pool in best.pools},
        "simulated": None if best.simulated is None else best.simulated.model_dump(mode="json"),
    }
