"""The step law beside a plan: its published figure, and the batches that a layout takes."""

from __future__ import annotations

import pytest
from meshwright.planner.document.plan import Plan
from meshwright.planner.studies.step_law import StepLaw, batch_tokens, learning_rate, without_vocabulary
from meshwright.profiles.model.load import load_model

import meshwright as mw
from meshwright.errors import InputError


@pytest.fixture(scope="module")
def plan() -> Plan:
    return mw.evaluate(None, "dp16-mbs1-z3-rfull", model="llama-3.1-8b", cluster="dgx-h100:2", global_batch=64)


def studied(plan: Plan, **assume: str) -> StepLaw:
    result = mw.what_if(plan, study="step-law", assume=assume)
    assert isinstance(result, StepLaw)
    return result


def test_the_published_batch() -> None:
    """A trillion tokens: 4.1 M tokens per step (arXiv 2503.04715)."""
    assert batch_tokens(1e12) == pytest.approx(4.1e6, rel=0.02)
    assert batch_tokens(2e12) > batch_tokens(1e12)


def test_the_rate_by_hand() -> None:
    """ln(rate) = ln(1.79) - 0.713 ln(N) + 0.307 ln(D): of 1e9 and 1e11 exp(0.582 - 14.776 + 7.776)."""
    assert learning_rate(1e9, 1e11) == pytest.approx(1.635e-3, rel=0.002)


def test_parameters_without_the_vocabulary() -> None:
    """8B: 32 layers of 218,112,000."""
    assert without_vocabulary(load_model("llama-3.1-8b")[0]) == pytest.approx(32 * 218_112_000, rel=1e-5)


def test_the_batch_is_one_that_the_layout_takes(plan: Plan) -> None:
    result = studied(plan, tokens="1T")
    ours, law = result.rows

    assert ours.sequences == 64
    assert law.sequences % 16 == 0
    assert law.tokens == pytest.approx(result.batch_tokens, rel=0.05)
    assert law.held.tokens_per_s > ours.held.tokens_per_s  # gathers are spread over more tokens
    assert "times that of the law" in " ".join(result.notes)


def test_a_batch_near_the_law_has_no_warning() -> None:
    near = mw.evaluate(None, "dp16-mbs1-z3-rfull", model="llama-3.1-8b", cluster="dgx-h100:2", global_batch=512,
                       total_tokens="1T")  # fmt: skip
    assert studied(near).tokens == 1e12
    assert "times that of the law" not in " ".join(studied(near).notes)


@pytest.mark.parametrize(
    ("assume", "message"),
    [({}, "needs the tokens of the run"), ({"tokens": "0"}, "more than 0"), ({"tokens": "many"}, "tokens"),
     ({"token": "1T"}, "unknown assumption")],
)  # fmt: skip
def test_bad_assumptions(plan: Plan, assume: dict[str, str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        studied(plan, **assume)
