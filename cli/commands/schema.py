"""`meshwright schema`: JSON schemas, for completion in editors and checks in CI."""

from __future__ import annotations

from typing import Annotated

import typer

from ..console import Terminal

Kind = Annotated[str, typer.Argument(metavar="KIND", help="Document to describe.", show_default=False)]


def command(
    context: typer.Context,
    kind: Kind,
) -> None:
    """Print the JSON schema of a request or a plan.

    KIND: request, serve-request, rl-request, plan, serving-plan, rl-plan
    (post-training), mixed-lengths-plan, or sampler-plan (a line of the file).

    \b
    Example:
      meshwright schema request > request.schema.json
    """
    terminal: Terminal = context.obj
    terminal.write_json(schema(kind))


def schema(kind: str) -> dict[str, object]:
    """The schema of a document in the 2020-12 dialect. Raises UnknownNameError for a kind that has none."""
    from pydantic import BaseModel

    from ...errors import UnknownNameError
    from ...planner.document.lengths_plan import LengthsPlan
    from ...planner.document.plan import Plan
    from ...planner.document.rl_plan import RlPlan
    from ...planner.document.sampler_plan import SamplerLine
    from ...planner.document.serving_plan import ServingPlan
    from ...planner.request.load import Request
    from ...planner.request.reinforcement import RlRequest
    from ...planner.request.serving import ServingRequest

    models: dict[str, type[BaseModel]] = {
        "request": Request, "serve-request": ServingRequest, "rl-request": RlRequest, "plan": Plan,
        "serving-plan": ServingPlan, "rl-plan": RlPlan, "mixed-lengths-plan": LengthsPlan, "sampler-plan": SamplerLine,
    }  # fmt: skip
    if kind not in models:
        raise UnknownNameError("kind of document", kind, models)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **models[kind].model_json_schema()}
