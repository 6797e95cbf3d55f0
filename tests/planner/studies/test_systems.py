"""Figures of published systems come out of our prices, and do not with knobs that change nothing."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from meshwright.cost_models.techniques.registry import EVERY
from meshwright.planner.studies.systems.base import Check
from meshwright.planner.studies.systems.registry import CHECKS, OF_SERVING

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "tools"))

import systems_page

# Each check of serving simulates several deployments.
TIMED = [pytest.param(check, marks=pytest.mark.slow if check in OF_SERVING else ()) for check in CHECKS]


@pytest.mark.parametrize("check", TIMED, ids=lambda check: f"{check.technique}: {check.of}")
def test_the_published_figure(check: Check) -> None:
    """Or, where the reason says so, it is missed. The page of systems states the same value."""
    assert check.technique in EVERY
    value = check.value(False)
    assert check.holds(value) == (not check.missed)
    assert systems_page.shown(value) == systems_page.written()[check.technique, check.of]
    assert not check.holds(check.value(True))
