"""`meshwright schema`: JSON schemas, for completion in editors and checks in CI."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from ..console import Terminal


class Kind(StrEnum):
    """The documents that have a schema."""

    request = "request"
    plan = "plan"
    mixed_lengths_plan = "mixed-lengths-plan"
    sampler_plan = "sampler-plan"
    rl_request = "rl-request"
    rl_plan = "rl-plan"


def command(
    context: typer.Context,
    kind: Annotated[Kind, typer.Argument(metavar="KIND", help="Document to describe.", show_default=False)],
) -> None:
    """Print the JSON schema of a request or a plan.

    KIND: request, plan, mixed-lengths-plan, sampler-plan (a line of the file),
    rl-request or rl-plan (post-training).

    \b
    Example:
      meshwright schema request > request.schema.json
    """
    terminal: Terminal = context.obj
    terminal.write_json(schema(kind))


def schema(kind: str) -> dict[str, object]:
    """The schema of a document in the 2020-12 dialect. kind: a value of `Kind`."""
    from pydantic import BaseModel

    from ...planner.document.lengths_plan import LengthsPlan
    from ...planner.document.plan import Plan
    from ...planner.document.rl_plan import RlPlan
    from ...planner.document.sampler_plan import SamplerLine
    from ...planner.request.load import Request
    from ...planner.request.reinforcement import RlRequest

    models: dict[str, type[BaseModel]] = {
        "request": Request, "plan": Plan, "mixed-lengths-plan": LengthsPlan, "sampler-plan": SamplerLine,
        "rl-request": RlRequest, "rl-plan": RlPlan,
    }  # fmt: skip
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **models[kind].model_json_schema()}
