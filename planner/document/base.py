"""The base class of the parts of a plan document, and a word that requests and plans share."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict

OWN_STAGES = "own"  # `stages` of a request whose layers `plan` places


class DocumentPart(BaseModel):
    """A part of the document: read-only."""

    model_config = ConfigDict(frozen=True)


def without_none(fields: dict[str, Any], name: str) -> dict[str, Any]:
    """`fields` without `name` if it is None: plans that a newer field does not concern look as they always did."""
    return {key: value for key, value in fields.items() if key != name or value is not None}


def rounded(value: Any) -> Any:
    """`value` with every float in it, however nested, at 9 significant digits."""
    if isinstance(value, float):
        return float(f"{value:.9g}")
    if isinstance(value, dict):
        return {key: rounded(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(item) for item in value]
    return value
