"""All checks of published systems."""

from __future__ import annotations

from . import (
    faults,
    images,
    less_communication,
    long_context,
    memory,
    overlap,
    passes,
    pipelines,
    quality,
    serving,
    serving_memory,
    towers,
    without_gradients,
)
from .base import Check

OF_SERVING: tuple[Check, ...] = (*serving.CHECKS, *serving_memory.CHECKS, *passes.CHECKS, *images.CHECKS,
                                *towers.CHECKS)
CHECKS: tuple[Check, ...] = (
    *less_communication.CHECKS, *without_gradients.CHECKS, *overlap.CHECKS, *memory.CHECKS, *long_context.CHECKS,
    *pipelines.CHECKS, *faults.CHECKS, *quality.CHECKS, *OF_SERVING,
)  # fmt: skip
