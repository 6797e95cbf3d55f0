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


def command(
    context: typer.Context,
    kind: Annotated[Kind, typer.Argument(metavar="KIND", help="Document to describe.", show_default=False)],
) -> None:
    """Print the JSON schema of a request file or of a plan.

    \b
    Example:
      meshwright schema request > request.schema.json
    """
    terminal: Terminal = context.obj
    terminal.write_json(schema(kind))


def schema(kind: str) -> dict[str, object]:
    """The schema of `request` or `plan`, in the 2020-12 dialect."""
    from pydantic import BaseModel

    from ...planner.document import plan as plan_document
    from ...planner.request import load

    model: type[BaseModel] = load.Request if kind == "request" else plan_document.Plan
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **model.model_json_schema()}
