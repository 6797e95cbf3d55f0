"""Figures of published systems come out of our prices, and do not with knobs that change nothing."""

from __future__ import annotations

import pytest
from meshwright.cost_models.techniques.registry import TECHNIQUES
from meshwright.planner.studies.systems.base import Check
from meshwright.planner.studies.systems.registry import CHECKS


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.technique)
def test_the_published_figure(check: Check) -> None:
    """Or, where the reason says so, it is missed."""
    assert check.technique in TECHNIQUES
    assert check.holds(check.value(False)) == (not check.missed)
    assert not check.holds(check.value(True))
