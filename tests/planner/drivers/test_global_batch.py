"""The warning where a global batch rules out faster data parallelism."""

from __future__ import annotations

import re
from typing import Any

import pytest
from meshwright.planner.api import evaluate, plan

_SEVEN: dict[str, Any] = {"model": "llama-3.2-1b", "gpu": "h100-sxm-80gb", "gpus": 7, "seq_len": 4096}


def warnings_of(**asked: Any) -> list[str]:
    return [text for text in plan(None, **{**_SEVEN, **asked}).warnings if "global batch" in text]


def test_the_nearest_batch_of_more_data_parallelism_is_named_with_its_price() -> None:
    """Seven does not divide 250. The gain is that of the plan of 252 on the layouts that 250 rules out."""
    asked = plan(None, **_SEVEN, global_batch=250)
    text = next(text for text in asked.warnings if "global batch" in text)
    found = re.search(r"of 250 is no multiple of dp 7: 252 is one, and (\S+) then trains ([\d.]+) % more", text)
    assert found is not None
    there = evaluate(None, found[1], **_SEVEN, global_batch=252).best.step_s
    here = asked.certificate.lower_bound_s
    assert here is not None
    assert float(found[2]) == pytest.approx(100 * (252 / there * here / 250 - 1), abs=0.06)
    assert there == pytest.approx(plan(None, **_SEVEN, global_batch=252, fastest=True).best.step_s)


@pytest.mark.parametrize("asked", [
    {"global_batch": 252},  # a multiple
    {"global_batch": 250, "fix": {"dp": 1}},  # other degrees are not asked for
    {"global_batch": 5},  # fewer sequences than GPUs
    {"global_batch": 250, "gpus": 8, "model": "llama-3.1-8b"},  # a gain below what the model tells apart
    {"global_batch": 250, "objective": "memory"},
])  # fmt: skip
def test_no_other_batch_is_named_without_a_gain(asked: dict[str, Any]) -> None:
    assert not warnings_of(**asked)


def test_a_target_without_a_layout_names_the_batch() -> None:
    """DeepSpeed runs no pipeline of this model, so that seven GPUs leave it data parallelism alone."""
    asked: dict[str, Any] = {**_SEVEN, "model": "llama-3.1-8b"}
    compared = [plan(None, **asked, global_batch=batch).by_target for batch in (250, 252)]
    reasons = [dict(by_target.without) if by_target is not None else {} for by_target in compared]
    assert reasons[0]["deepspeed"] == "no legal layout of a global batch of 250"
    assert "deepspeed" not in reasons[1]


def test_a_target_without_the_precision_says_so() -> None:
    """A row that names no reason leaves the reader to try the target."""
    by_target = plan(None, model="mixtral-8x7b", cluster="8xb200-sxm-180gb", seq_len=4096, global_batch=64,
                     precision="fp8", target="megatron").by_target  # fmt: skip
    assert by_target is not None
    assert by_target.without["deepspeed"] == "no legal layout: DeepSpeed's JSON has no fp8 recipe"
    assert by_target.without["meshwright"] == "no legal layout: the runtime trains in bf16 or fp32"


def test_fewer_nodes_are_named_where_they_are_faster() -> None:
    """40 does not divide 64, and 32 does. The saved time is that of the plan of four nodes."""
    asked: dict[str, Any] = {"model": "llama-3.2-1b", "seq_len": 4096, "global_batch": 64, "fastest": True}
    all_nodes = plan(None, **asked, cluster="dgx-h100:5")
    text = next(text for text in all_nodes.warnings if "of the 5 nodes" in text)
    found = re.search(r"4 of the 5 nodes take ([\d.]+) % less time", text)
    assert found is not None
    there = plan(None, **asked, cluster="dgx-h100:4").certificate.lower_bound_s
    here = all_nodes.certificate.lower_bound_s
    assert there is not None
    assert here is not None
    assert float(found[1]) == pytest.approx(100 * (1 - there / here), abs=0.06)


@pytest.mark.parametrize("asked", [
    {"cluster": "dgx-h100:4"},  # divides
    {"cluster": "dgx-h100:5", "global_batch": 80},
    {"cluster": "dgx-h100:2+dgx-a100-80gb:3"},  # nodes are not alike
])  # fmt: skip
def test_no_fewer_nodes_are_named_without_a_gain(asked: dict[str, Any]) -> None:
    warnings = plan(None, **{"model": "llama-3.2-1b", "seq_len": 4096, "global_batch": 64, **asked}).warnings
    assert not any("nodes take" in text for text in warnings)
