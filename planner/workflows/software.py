"""A program of post-training that is neither a trainer nor an engine of the catalogue."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ...cost_models.specs.model import ModelSpec
from ...profiles.stack.engines import Engine
from ..serving.instance import InstanceLayout
from ..space.rules import Rule


@dataclass(frozen=True, kw_only=True)
class Software:
    """A program that runs all calls by limits and an engine of its own."""

    engine: Engine
    training_rules: tuple[Rule, ...]
    scoring_rules: tuple[Rule, ...]
    scoring_parts: int  # micro-batches of a stage in a forward pass
    # Whether its search takes instances of this layout, so many of them, to generate with a model.
    generates: Callable[[ModelSpec, InstanceLayout, float], bool]
