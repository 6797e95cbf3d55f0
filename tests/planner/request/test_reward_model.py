"""A reward model in a request: one value per token in place of logits."""

from __future__ import annotations

from typing import Any

import pytest
from meshwright.cost_models.quantities.params import total_parameters
from meshwright.planner.request.load import load_request
from meshwright.planner.request.resolve import resolve

from meshwright.errors import InputError

ASKED: dict[str, Any] = {"model": "llama-3.1-8b", "cluster": "dgx-h100:1", "target": "any", "reward_model": True}


def test_the_head_is_a_vector() -> None:
    """Llama 3.1 8B has 128,256 rows of 4,096 in its head, a reward model one."""
    whole, valued = (resolve(load_request(None, {**ASKED, "reward_model": on})).model for on in (False, True))
    assert total_parameters(whole) - total_parameters(valued) == (128256 - 1) * 4096


@pytest.mark.parametrize(("also", "text"), [
    ({"reference": True}, "a frozen copy scores tokens, and it gives none"),
    ({"model": "bert-base-uncased"}, "is no decoder with logits"),
    ({"model": "mt5-small"}, "is no decoder with logits"),
])  # fmt: skip
def test_what_has_no_reward_model(also: dict[str, Any], text: str) -> None:
    with pytest.raises(InputError, match=text):
        resolve(load_request(None, {**ASKED, **also}))
