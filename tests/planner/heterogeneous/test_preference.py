"""The choice among strategies over unlike groups that the model does not tell apart."""

from __future__ import annotations

from typing import Any
from unittest.mock import Mock

import pytest
from meshwright.cost_models.layouts import parse
from meshwright.planner import api
from meshwright.planner.drivers.preference import simplest_of
from meshwright.planner.evaluation import intervals
from meshwright.planner.heterogeneous.choices import Choices, IslandChoice

from .test_heterogeneous import TWO_KINDS


def row(step_s: float, name: str) -> tuple[float, str, Any]:
    return step_s, name, parse(name)


PIPELINE, CONTEXT, PLAIN = "pp4-dp2-mbs1-z1-rnone", "cp2r-pp4-dp1-mbs1-z1-rnone", "dp8-mbs1-z1-rnone"


@pytest.mark.parametrize(("plain_s", "chosen", "reasons"), [(1.02, 2, ("axes",)), (1.04, 0, None)])
def test_the_simplest_within_the_indifference_is_chosen(
    plain_s: float, chosen: int, reasons: tuple[str, ...] | None
) -> None:
    """It is 2.9 % of the fastest."""
    number, preference = simplest_of([row(1.0, PIPELINE), row(1.01, CONTEXT), row(plain_s, PLAIN)])
    assert number == chosen
    assert (preference.reasons if preference else None) == reasons
    assert preference is None or (preference.fastest, preference.fastest_s) == (PIPELINE, 1.0)


def test_of_equally_simple_ones_the_fastest_is_chosen() -> None:
    assert simplest_of([row(1.0, PIPELINE), row(1.01, "tp2-dp4-mbs1-z1-rnone")]) == (0, None)


def test_a_pipeline_over_one_group_is_listed_once() -> None:
    """It is found over the set that is this group alone, and on the group. The search goes on from both."""
    part: Any = Mock(number=0)
    staged: Any = Mock(step_s=1.0, id=PIPELINE, layout=parse(PIPELINE))
    choices = Choices()
    for manner in ("across", "together"):
        choices.record(IslandChoice(manner, (part,), staged))
    assert [choice.manner for choice in choices.ranked] == ["across", "together"]
    assert [choice.staged.id for choice in choices.distinct] == [PIPELINE]


@pytest.mark.slow
def test_a_plan_over_unlike_groups_has_the_simplest_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a lead of a fifth counts for nothing, the H100 alone without stages, 16 % slower than three stages."""
    monkeypatch.setattr(intervals, "indifference", lambda: 0.2)
    asked: dict[str, Any] = {"model": "llama-3.2-1b", "cluster": TWO_KINDS, "seq_len": 1024, "global_batch": 24,
                             "fix": {"micro_batch": 1}, "top": 4}  # fmt: skip
    plan, fastest = api.plan(**asked), api.plan(**asked, fastest=True)
    assert fastest.preference is None
    assert fastest.best.layout_id.startswith("pp3-")
    assert plan.best.layout_id == "dp4-mbs1-z1-rnone"
    assert plan.preference is not None
    assert plan.preference.fastest == fastest.best.layout_id
    assert plan.preference.reasons == ("axes",)
    assert plan.candidates[1].layout_id == fastest.best.layout_id
    assert plan.certificate.gap == fastest.certificate.gap
