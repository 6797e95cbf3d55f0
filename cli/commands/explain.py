"""`meshwright explain`: where the time goes, what binds, why not another layout."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ...errors import MeshwrightError
from .. import mixed_lengths, options, reinforcement, requests, serving
from ..console import FORMAT_VERSION, Terminal
from ..flag import flag
from ..screens import explain as explain_screen
from ..screens import listings as listings_screen

if TYPE_CHECKING:
    from ...planner.document.candidate import Candidate
    from ...planner.document.plan import Plan
    from ...planner.document.rl_plan import RlPlan
    from ...planner.document.serving_plan import ServingPlan
    from ...planner.explain.kinds_of_layers import KindLoad
    from ...planner.explain.redistribution import Redistribution
    from ...planner.explain.stage_loads import StageLoads

Choice = Annotated[
    int, typer.Argument(metavar="#", help="Number of the layout in the plan, or of a step of "
                        "documents of mixed lengths, or of the deployment [1].", show_default=False)
]
WhyNot = Annotated[
    str | None, flag("--why-not", metavar="ID", text="Compare this layout or deployment with the first.")
]
Origins = Annotated[bool, flag("--origins", text="List the origin of each value of the request.")]
Plot = Annotated[bool, flag("--plot", text="Draw its pipeline, simulated.")]


def command(
    context: typer.Context,
    plan: options.PlanFile,
    choice: Choice = 1,
    why_not: WhyNot = None,
    origins: Origins = False,
    plot: Plot = False,
) -> None:
    """Explain a layout of a plan: time, memory, targets and the search.

    A plan of `plan --max-len`: lengths, degrees, and how long groups wait.
    A plan of post-training: calls over GPUs, and memory over time.
    A serving plan: where TTFT and TPOT go, what binds, what other deployments lack.

    \b
    Examples:
      meshwright explain plan.json
      meshwright explain plan.json 2
      meshwright explain plan.json --why-not tp8-dp1-mbs1-z1-rfull
    """
    from ...planner.document.lengths_plan import load_lengths_plan
    from ...planner.document.reading import load_plan, load_rl_plan

    terminal: Terminal = context.obj
    of_layouts = {"--why-not": why_not, "--plot": plot}
    if requests.is_plan(plan, "rl-plan"):
        if origins and not any(of_layouts.values()):
            return _origins(terminal, load_rl_plan(plan))
        return reinforcement.explain(terminal, plan, choice, of_layouts)
    if (lengths := load_lengths_plan(plan)) is not None:
        return mixed_lengths.explain(terminal, plan, lengths, choice, {**of_layouts, "--origins": origins})
    if requests.is_plan(plan, "serving-plan"):
        return _serving(terminal, plan, choice, why_not, origins=origins, plot=plot)
    loaded = load_plan(plan)
    candidate = requests.candidate(loaded, choice)
    if why_not is not None:
        _why_not(terminal, loaded, why_not)
    elif plot:
        _plot(terminal, loaded, candidate)
    elif origins:
        _origins(terminal, loaded)
    else:
        _explain(terminal, loaded, candidate)


def _serving(
    terminal: Terminal, path: Path, choice: int, why_not: str | None, *, origins: bool, plot: bool
) -> None:  # fmt: skip
    """A serving plan."""
    plan = serving.loaded(path)
    serving.refuse({"--plot": plot})
    if why_not is not None:
        serving.why_not(terminal, plan, why_not)
    elif origins:
        _origins(terminal, plan)
    else:
        serving.explain(terminal, plan, choice)


def _explain(terminal: Terminal, plan: Plan, candidate: Candidate) -> None:
    """The layout in full."""
    loads, kinds = _loads(terminal, plan, candidate), _kinds(terminal, plan, candidate)
    spread = _redistribution(plan, candidate) if loads else None
    if terminal.settings.json:
        redistributed = {} if spread is None else {"redistribution": spread.model_dump(mode="json")}
        terminal.write_json({
            "format_version": FORMAT_VERSION, "kind": "explanation", "candidate": candidate.model_dump(mode="json"),
            "certificate": plan.certificate.model_dump(mode="json"), "rejected": plan.rejected,
            "stage_loads": None if loads is None else loads.model_dump(mode="json"),
            "kinds_of_layers": [kind.model_dump(mode="json") for kind in kinds], **redistributed,
        })  # fmt: skip
    terminal.show(explain_screen.explain_screen(plan, candidate, kinds, loads, spread, unicode=terminal.unicode))
    requests.show_warnings(terminal, plan.warnings)


def _origins(terminal: Terminal, plan: Plan | ServingPlan | RlPlan) -> None:
    """List the origin of each value of the request."""
    origins = origins_of(plan.request, plan.origins)
    if terminal.settings.json:
        terminal.write_json({"format_version": FORMAT_VERSION, "kind": "origins", "items": origins})
    terminal.show([explain_screen.origins_table(origins)])


def origins_of(request: Mapping[str, object], known: Mapping[str, str]) -> dict[str, str]:
    """Every field of the request and where its value came from. known: origins of the fields that were given; a given
    object has one for all of its fields."""

    def origin(field: str) -> str:
        return next((text for name, text in known.items() if field == name or field.startswith(f"{name}.")), "default")

    return {field: origin(field) for field in listings_screen.flatten(request)}


def _loads(terminal: Terminal, plan: Plan, candidate: Candidate) -> StageLoads | None:
    """Loads of the stages, priced anew; None where a single one holds nothing but layers, embedding and head, or where
    the request no longer resolves."""
    model = plan.resolved["model"]
    if candidate.to_layout().pp == 1 and not (model.get("tower") or model.get("encoder")):
        return None
    from ...planner.explain.stage_loads import stage_loads
    from ...planner.request.load import request_from_dict

    try:
        return stage_loads(request_from_dict(plan.request), candidate)
    except MeshwrightError as error:
        terminal.talk(f"The stages are not timed: {error.message}")
        return None


def _kinds(terminal: Terminal, plan: Plan, candidate: Candidate) -> tuple[KindLoad, ...]:
    """Loads of the kinds of layers, priced anew; none where the request no longer resolves."""
    from ...planner.explain.kinds_of_layers import kind_loads
    from ...planner.request.load import request_from_dict

    try:
        return kind_loads(request_from_dict(plan.request), candidate)
    except MeshwrightError as error:
        terminal.talk(f"The layers are not timed: {error.message}")
        return ()


def _redistribution(plan: Plan, candidate: Candidate) -> Redistribution | None:
    """The alternative to vocabulary parallelism with redistributed layers; None without that technique."""
    if not plan.request["workload"].get("techniques"):
        return None  # without loading the code that prices the alternative
    from ...planner.explain.redistribution import redistribution
    from ...planner.request.load import request_from_dict

    return redistribution(request_from_dict(plan.request), candidate)


def _plot(terminal: Terminal, plan: Plan, candidate: Candidate) -> None:
    """The pipeline of the layout over time."""
    from ...planner.explain import trace
    from ...planner.request.load import request_from_dict

    staged = trace.of_candidate(request_from_dict(plan.request), candidate)
    lines = trace.draw(staged.timeline, 80)
    if terminal.settings.json:
        terminal.write_json({"format_version": FORMAT_VERSION, "kind": "pipeline", "layout_id": candidate.layout_id,
                             "step_s": staged.step_s, "lines": lines})  # fmt: skip
    terminal.show([candidate.layout_id, "", *lines])


def _why_not(terminal: Terminal, plan: Plan, layout: str) -> None:
    """The layout beside the first of the plan; one that the plan does not have is evaluated."""
    from ...planner import api
    from ...planner.request.load import request_from_dict

    other = next((candidate for candidate in plan.candidates if candidate.layout_id == layout), None)
    if other is None:
        other = api.evaluate(request_from_dict(plan.request), layout).best
    if terminal.settings.json:
        terminal.write_json({"format_version": FORMAT_VERSION, "kind": "comparison",
                             "candidate": plan.best.model_dump(mode="json"),
                             "other": other.model_dump(mode="json")})  # fmt: skip
    terminal.show(explain_screen.why_not_screen(plan, other))
