"""Nodes that telemetry shows to be slower (`slowdown`): the planner gives them fewer layers (arXiv 2509.03394)."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest

import meshwright as mw
from meshwright.errors import InputError


def nodes(slowdown: object) -> dict[str, Any]:
    """Four nodes, one of which takes so much longer, as a share."""
    slow: dict[str, Any] = {"name": "slow", "node": "dgx-a100-80gb", "count": 1, "slowdown": slowdown}
    return {"groups": [{"name": "fast", "node": "dgx-a100-80gb", "count": 3}, slow if slowdown else {
        "name": "slow", "node": "dgx-a100-80gb", "count": 1}]}  # fmt: skip


@cache
def gain(slowdown: float) -> float:
    """Step of the best pipeline as if all nodes were the slow one, over that of the best as they are."""
    asked: dict[str, Any] = {"model": "llama-3.1-8b", "cluster": nodes(slowdown), "seq_len": 4096, "global_batch": 384,
                             "target": "any", "fix": {"pp": 4, "schedule": "1f1b", "vpp": 1}}  # fmt: skip
    own: dict[str, Any] = {} if slowdown else {"stages": "own"}  # else stages of their own come from unlike groups
    return mw.plan(None, stages="even", **asked).best.step_s / mw.plan(None, **asked, **own).best.step_s


@pytest.mark.parametrize("slowdown", [0.1, pytest.param(0.2, marks=pytest.mark.slow), 0.3])
def test_layers_move_from_slow_nodes(slowdown: float) -> None:
    """Three of four nodes need not wait: at least 3/4 of the slowdown is gained, beyond what stages of unlike size gain
    anyway, since the head is on one of them."""
    assert gain(slowdown) / gain(0.0) >= 1 + 0.75 * slowdown


@pytest.mark.parametrize("wrong", [-0.1, "10 %", "0.2x", True])
def test_bad_slowdowns(wrong: object) -> None:
    with pytest.raises(InputError, match="slowdown"):
        mw.plan(None, model="llama-3.1-8b", cluster=nodes(wrong), global_batch=64)
