"""What post-training takes beyond the parts of its step, fitted to measured steps (catalogue/measured)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from ..io.folders import MEASURED
from ..rates.calibration import load_yaml


@dataclass(frozen=True, slots=True, kw_only=True)
class PostTrainingConstants:
    """Factors on seconds of the parts, and seconds of the controller (measured/post_training.yaml)."""

    generation: float
    training: float  # and scoring
    step_s: float


@cache
def post_training_constants() -> PostTrainingConstants:
    """The constants that ship."""
    content = load_yaml(MEASURED / "post_training.yaml")
    return PostTrainingConstants(**{name: float(value) for name, value in content["constants"].items()})
