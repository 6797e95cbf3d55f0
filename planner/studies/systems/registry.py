"""All checks of published systems."""

from __future__ import annotations

from . import less_communication, long_context, overlap, serving, serving_memory
from .base import Check

OF_SERVING: tuple[Check, ...] = (*serving.CHECKS, *serving_memory.CHECKS)
CHECKS: tuple[Check, ...] = (*less_communication.CHECKS, *overlap.CHECKS, *long_context.CHECKS, *OF_SERVING)
