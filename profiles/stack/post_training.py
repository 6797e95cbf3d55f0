"""Seconds of post-training beyond the parts of its step, fitted to measured steps (catalogue/measured)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from ..io.folders import MEASURED
from ..rates.calibration import load_yaml


@dataclass(frozen=True, slots=True, kw_only=True)
class PostTrainingConstants:
    """Seconds that the parts of a step take beyond their own (measured/post_training.yaml)."""

    training: float  # times that training and scoring take as long
    copies: float  # times that copies of models to the host and back take as long as its link does
    iteration_s: float  # of the host, in an iteration of an engine that is not scheduled beside the one before
    step_s: float  # of the controller


@cache
def post_training_constants() -> PostTrainingConstants:
    """The constants that ship."""
    content = load_yaml(MEASURED / "post_training.yaml")
    return PostTrainingConstants(**{name: float(value) for name, value in content["constants"].items()})
