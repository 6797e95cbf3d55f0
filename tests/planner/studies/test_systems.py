"""Figures of published systems come out of our prices, and do not with knobs that change nothing."""

from __future__ import annotations

import pytest
from meshwright.cost_models.techniques.registry import EVERY
from meshwright.planner.studies.systems.base import Check
from meshwright.planner.studies.systems.registry import CHECKS, OF_SERVING

# Each check of serving simulates several deployments.
TIMED = [pytest.param(check, marks=pytest.mark.slow if check in OF_SERVING else ()) for check in CHECKS]


@pytest.mark.parametrize("check", TIMED, ids=lambda check: f"{check.technique}: {check.of}")
def test_the_published_figure(check: Check) -> None:
    """Or, where the reason says so, it is missed."""
    assert check.technique in EVERY
    assert check.holds(check.value(False)) == (not check.missed)
    assert not check.holds(check.value(True))
