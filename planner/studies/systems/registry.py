"""All checks of published systems."""

from __future__ import annotations

from . import less_communication, long_context, overlap
from .base import Check

CHECKS: tuple[Check, ...] = (*less_communication.CHECKS, *overlap.CHECKS, *long_context.CHECKS)
