"""Prices of single calls of post-training."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from meshwright.cost_models.layouts import CP_ALGORITHMS
from meshwright.cost_models.serving.pool import WORKING_BYTES
from meshwright.planner.request.reinforcement import RlRequest
from meshwright.planner.workflows.graph import graph_of
from meshwright.planner.workflows.prices import Prices
from meshwright.planner.workflows.resolve import question_of
from meshwright.profiles.stack.post_training import PostTrainingConstants

REQUEST = RlRequest.model_validate({"model": "llama-3.2-1b", "cluster": "4xh100-sxm-80gb", "workload": {
    "kind": "rl", "algorithm": "grpo", "kl": True, "prompts": 16, "output": 300}})  # fmt: skip


@pytest.fixture(scope="module")
def prices() -> Prices:
    return Prices(question_of(REQUEST)[0])


def test_a_model_that_scores_keeps_its_weights_alone(prices: Prices) -> None:
    option = prices.infer("reference", 4)
    assert option is not None
    assert option.layout is not None
    parts = option.layout.tp * option.layout.pp
    assert option.kept_bytes == pytest.approx(prices.weights_bytes("reference") / parts, rel=0.05)
    assert option.peak_bytes == option.kept_bytes + WORKING_BYTES


def test_constants_lengthen_the_same_options(prices: Prices) -> None:
    generate, _, train = graph_of(prices.question.work)
    other = prices.under(PostTrainingConstants(generation=2.0, training=3.0, step_s=1.0))
    taken = [getattr(found.of(call, 4), "seconds", np.nan) for found in (prices, other) for call in (generate, train)]
    constants = prices.constants
    assert taken[2:] == pytest.approx([taken[0] / constants.generation * 2.0, taken[1] / constants.training * 3.0])


def test_openrlhf_has_ring_attention_in_place_of_ulysses() -> None:
    request = RlRequest.model_validate({"model": "qwen3-30b-a3b", "cluster": "dgx-h100:4", "target": "openrlhf",
        "workload": {"kind": "rl", "algorithm": "dapo", "prompts": 32, "samples": 8, "output": 4000}})  # fmt: skip
    trained = Prices(question_of(request)[0]).train("policy", 32)
    assert trained is not None
    assert trained.layout is not None
    assert CP_ALGORITHMS[trained.layout.cp_algorithm] == "ring"


def test_answers_are_packed_so_that_more_degrees_divide_them() -> None:
    """Sequences of the longest answer: 48 of three significant bits, or 32, over which 16 and 32 copies divide, too."""
    request = RlRequest.model_validate({"model": "llama-3.1-8b", "cluster": "dgx-h100:4", "workload": {
        "kind": "rl", "algorithm": "grpo", "prompts": 32, "samples": 8, "output": 2000}})  # fmt: skip
    question = question_of(request)[0]
    mean, longest = 512 + question.lengths.mean, question.longest
    most = 256 // -int(-longest // mean)
    assert 48 <= most < 56
    expected = [(number, -int(-256 * mean / number // 128) * 128) for number in (48, 32)]
    assert question.packings(256) == expected
    assert replace(question, fixed={"train": {"tp": 2}}).packings(256) == expected[:1]
    trained = Prices(question).train("policy", 32)
    fewer = [Prices(replace(question, fixed={"train": {"tp": tp}})).train("policy", 32) for tp in (1, 2, 4, 8)]
    assert trained is not None
    assert trained.layout is not None
    assert (trained.sequences, trained.seq_len) in expected
    assert trained.sequences % trained.layout.dp == 0
    assert all(trained.seconds <= other.seconds for other in fewer if other is not None)
