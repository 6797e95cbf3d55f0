"""`meshwright explain`: where the time goes, what binds, why not another layout."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from ...errors import MeshwrightError
from .. import options, requests
from ..console import FORMAT_VERSION, Terminal
from ..screens import explain as explain_screen
from ..screens import listings as listings_screen


def command(
    context: typer.Context,
    plan: options.PlanFile,
    choice: Annotated[int, typer.Argument(metavar="#", help="Which layout of the plan [1].", show_default=False)] = 1,
    why_not: Annotated[
        str | None,
        typer.Option("--why-not", metavar="ID", help="Compare this layout with the first.", show_default=False),
    ] = None,
    origins: Annotated[
        bool, typer.Option("--origins", help="Where each value of the request came from.", show_default=False)
    ] = False,
    plot: Annotated[bool, typer.Option("--plot", help="Draw its pipeline, simulated.", show_default=False)] = False,
) -> None:
    """Explain a layout of a plan: time, memory, targets, and what was searched.

    \b
    Examples:
      meshwright explain plan.json
      meshwright explain plan.json 2
      meshwright explain plan.json --why-not tp8-dp1-mbs1-z1-rfull
    """
    terminal: Terminal = context.obj
    document = requests.load_plan(plan)
    candidate = requests.candidate(document, choice)
    if why_not is not None:
        _why_not(terminal, document, why_not)
        return
    if plot:
        _plot(terminal, document, candidate)
        return
    if origins:
        where = origins_of(document)
        if terminal.settings.json:
            terminal.write_json({"format_version": FORMAT_VERSION, "kind": "origins", "items": where})
        terminal.show([explain_screen.origins_table(where)])
        return
    loads = _loads(terminal, document, candidate)
    spread = _redistribution(document, candidate) if loads else {}
    if terminal.settings.json:
        terminal.write_json({**_explanation(document, candidate), "stage_loads": loads, **spread})
    loads = {**loads, **spread} if loads else None
    terminal.show(explain_screen.explain_screen(document, candidate, loads, unicode=terminal.unicode))
    requests.tell_warnings(terminal, document)


def _explanation(document: dict[str, Any], candidate: dict[str, Any]) -> dict[str, Any]:
    return {
        "format_version": FORMAT_VERSION,
        "kind": "explanation",
        "candidate": candidate,
        "certificate": document["certificate"],
        "rejected": document["rejected"],
    }


def origins_of(document: dict[str, Any]) -> dict[str, str]:
    """Every field of the request and where its value came from."""
    known: dict[str, str] = document.get("origins") or {}

    def origin(field: str) -> str:
        return next((text for name, text in known.items() if field == name or field.startswith(f"{name}.")), "default")

    return {field: origin(field) for field in listings_screen.flatten(document["request"])}


def _loads(terminal: Terminal, document: dict[str, Any], candidate: dict[str, Any]) -> dict[str, Any] | None:
    """What the stages do, priced anew; None without a pipeline, or where the request no longer resolves."""
    if candidate["layout"].get("pp", 1) == 1:
        return None
    from ...planner.document.candidate import Candidate
    from ...planner.explain.stage_loads import stage_loads
    from ...planner.request.load import request_from_dict

    try:
        found = stage_loads(request_from_dict(document["request"]), Candidate.model_validate(candidate))
    except MeshwrightError as error:
        terminal.talk(f"The stages are not timed: {error.message}")
        return None
    return found.model_dump(mode="json")


def _redistribution(document: dict[str, Any], candidate: dict[str, Any]) -> dict[str, Any]:
    """Under vocabulary parallelism, what redistributed layers would take instead."""
    if not document["request"]["workload"].get("techniques"):
        return {}  # and nothing is loaded that could tell
    from ...planner.document.candidate import Candidate
    from ...planner.explain.redistribution import redistribution
    from ...planner.request.load import request_from_dict

    found = redistribution(request_from_dict(document["request"]), Candidate.model_validate(candidate))
    return {} if found is None else {"redistribution": found.model_dump(mode="json")}


def _plot(terminal: Terminal, document: dict[str, Any], candidate: dict[str, Any]) -> None:
    from ...planner.document.candidate import Candidate
    from ...planner.explain import trace
    from ...planner.request.load import request_from_dict

    chosen = Candidate.model_validate(candidate)
    one = trace.of_candidate(request_from_dict(document["request"]), chosen)
    lines = trace.draw(one.timeline, 80)
    if terminal.settings.json:
        kind = {"format_version": FORMAT_VERSION, "kind": "pipeline"}
        terminal.write_json({**kind, "layout_id": chosen.layout_id, "step_s": one.step_s, "lines": lines})
    terminal.show([candidate["layout_id"], "", *lines])


def _why_not(terminal: Terminal, document: dict[str, Any], layout: str) -> None:
    from ...planner import api
    from ...planner.request.load import request_from_dict

    other = next((each for each in document["candidates"] if each["layout_id"] == layout), None)
    if other is None:
        asked = request_from_dict(document["request"])
        other = requests.candidate(api.evaluate(asked, layout).model_dump(mode="json"), 1)
    if terminal.settings.json:
        kind = {"format_version": FORMAT_VERSION, "kind": "comparison"}
        terminal.write_json({**kind, "candidate": document["candidates"][0], "other": other})
    terminal.show(explain_screen.why_not_screen(document, other))
