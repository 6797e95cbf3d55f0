"""All checks of published systems."""

from __future__ import annotations

from . import less_communication, overlap
from .base import Check

CHECKS: tuple[Check, ...] = (*less_communication.CHECKS, *overlap.CHECKS)
