"""Prices of single calls of post-training."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from meshwright.cost_models.layouts import CP_ALGORITHMS, Layout, Layouts
from meshwright.cost_models.quantities import tables
from meshwright.cost_models.quantities.params import total_parameters
from meshwright.cost_models.quantities.stages import HEAD
from meshwright.cost_models.serving.pool import WORKING_BYTES
from meshwright.cost_models.specs.variants import valued
from meshwright.planner.request.reinforcement import RlRequest
from meshwright.planner.request.resolve import Resolved
from meshwright.planner.workflows.forward import fastest_forwards
from meshwright.planner.workflows.graph import Role, graph_of
from meshwright.planner.workflows.prices import Prices
from meshwright.planner.workflows.resolve import rl_problem_of
from meshwright.profiles.model.huggingface import read_config
from meshwright.profiles.stack.post_training import PostTrainingConstants
from transformers import AutoModelForSequenceClassification, AutoModelForTokenClassification

from ...meta_models import count, text_config
from ...snapshots import ROOT

REQUEST = RlRequest.model_validate({"model": "llama-3.2-1b", "cluster": "4xh100-sxm-80gb", "workload": {
    "kind": "rl", "algorithm": "grpo", "kl": True, "prompts": 16, "output": 300}})  # fmt: skip


@pytest.fixture(scope="module")
def prices() -> Prices:
    return Prices(rl_problem_of(REQUEST)[0])


def test_a_model_that_scores_keeps_its_weights_alone(prices: Prices) -> None:
    option = prices.infer("reference", 4)
    assert option is not None
    assert option.layout is not None
    parts = option.layout.tp * option.layout.pp
    assert option.kept_bytes == pytest.approx(prices.weights_bytes("reference") / parts, rel=0.05)
    assert option.peak_bytes > option.kept_bytes + WORKING_BYTES


def test_a_pass_that_scores_holds_the_logits_of_a_sequence() -> None:
    """Answers of up to 38,000 tokens packed into sequences of 45,440 by a vocabulary of 151,936: in bf16 and their
    softmax in fp32 41.4 GB on a rank without tensor parallelism, which no GPU has beside 65.5 GB of weights."""
    request = RlRequest.model_validate({"model": "qwen3-32b", "cluster": "dgx-h100:4", "workload": {
        "kind": "rl", "algorithm": "grpo", "kl": True, "prompts": 64, "samples": 16, "output": 8000,
        "output_max": 38000}})  # fmt: skip
    long = Prices(rl_problem_of(request)[0])
    option = long.infer("reference", 32)
    assert option is not None
    assert option.layout is not None
    assert option.layout.tp > 1
    packed = {seq_len for _, seq_len in long.rl.packings(64 * 16, 32)}
    logits = [seq_len * 151_936 / option.layout.tp * (2 + 4) for seq_len in packed]
    beside = option.peak_bytes - WORKING_BYTES - option.kept_bytes
    assert beside <= max(logits) * 1.001
    assert option.layout.pp > 1 or any(beside == pytest.approx(it, rel=1e-3) for it in logits)


def test_scoring_takes_the_best_of_all_packings() -> None:
    request = RlRequest.model_validate({"model": "qwen3-8b", "cluster": "dgx-h100:4", "workload": {
        "kind": "rl", "algorithm": "grpo", "kl": True, "prompts": 8, "samples": 4, "output": 2000,
        "output_max": 16000}})  # fmt: skip
    prices = Prices(rl_problem_of(request)[0])
    rl, option = prices.rl, prices.infer("reference", 32)
    assert option is not None
    tried = []
    for packing in rl.packings(32, 32):
        resolved = rl.on("reference", 32, 32, packing)
        tried.append(fastest_forwards(resolved, [resolved.budget_bytes], {}, None)[0].seconds)
    assert len(tried) == 2
    assert option.seconds == min(tried) < 0.7 * max(tried)


def test_constants_lengthen_the_same_options(prices: Prices) -> None:
    generate, _, train = graph_of(prices.rl.work)
    other = prices.under(PostTrainingConstants(training=3.0, copies=5.0, iteration_s=1.0, step_s=1.0))
    taken = [getattr(found.of(call, 4), "seconds", np.nan) for found in (prices, other) for call in (generate, train)]
    assert taken[2:] == pytest.approx([taken[0], taken[1] / prices.constants.training * 3.0])
    copied = [it.copied_s(np.array(1.0)) / it.constants.copies for it in (prices, other)]
    assert copied[0] == pytest.approx(copied[1])


def test_an_engine_that_ray_runs_waits_for_the_host() -> None:
    """Instances of two GPUs take `iteration_s` more in every iteration, of which the longest answer has one a token;
    those of one GPU, and engines that others run, do not."""
    ray = Prices(replace(rl_problem_of(REQUEST)[0], ray_engine=True))
    slower = ray.under(replace(ray.constants, iteration_s=ray.constants.iteration_s + 0.01))
    for tp, waits in ((2, True), (1, False)):
        given = replace(ray.rl, fixed={"generate": {"tp": tp}})
        asked = [Prices(given).under(it.constants) for it in (ray, slower)]
        one, other = (found.of(graph_of(REQUEST.workload)[0], 4) for found in asked)
        assert one is not None
        assert other is not None
        assert other.seconds - one.seconds == pytest.approx(0.01 * one.hosted_iterations)
        assert (one.hosted_iterations > 300) == waits
    plain = Prices(replace(ray.rl, ray_engine=False, fixed={"generate": {"tp": 2}})).generate(4, 0)
    assert plain is not None
    assert plain.hosted_iterations == 0


def test_an_engine_with_less_memory_holds_fewer_answers() -> None:
    request = REQUEST.model_copy(update={"model": "llama-3.1-8b"})
    rl = replace(rl_problem_of(request)[0], fixed={"generate": {"tp": 1}})
    whole, half = (Prices(replace(rl, memory_share=share)).generate(4, 0) for share in (0.9, 0.45))
    assert whole is not None
    assert half is not None
    assert half.cache_sequences < 0.6 * whole.cache_sequences
    assert half.peak_bytes == whole.peak_bytes  # models that train leave for it all the same


def test_packs_are_filled_by_whole_answers() -> None:
    """64 answers of 128 + 100 to 400 tokens in packs of 600: each holds whole answers, and each of 4 copies as many.
    Stages need packs of one length."""
    request = RlRequest.model_validate({"model": "llama-3.2-1b", "cluster": "4xh100-sxm-80gb", "workload": {
        "kind": "rl", "algorithm": "grpo", "prompts": 64, "samples": 1, "input": 128, "output": 250,
        "output_max": 472}})  # fmt: skip
    rl = replace(rl_problem_of(request)[0], row_tokens=600, fixed={"train": {"tp": 1}})
    tokens = 128 + rl.lengths.evenly(64)
    ((packs, each),) = rl.packings(64, 4)
    assert packs % 4 == 0
    assert tokens.sum() / 600 < packs <= 64
    assert packs * each >= tokens.sum() > packs * (each - 128)
    piped = replace(rl, fixed={"train": {"pp": 2}})
    assert piped.packings(64, 4)[0][1] == 640  # 600 in units of 128
    assert piped.packings(64, 4)[0][0] % 2 == 0


@pytest.mark.parametrize(
    ("target", "gradient_bytes", "loss_bytes"), [(None, 4, 56), ("verl", 4, 56), ("nemo-rl", 2, 68)]
)
def test_frameworks_set_the_switches_of_megatron(target: str | None, gradient_bytes: int, loss_bytes: int) -> None:
    """NeMo-RL reduces gradients in bf16 and has a loss of its own, verl reduces them in fp32. None has DeepEP, a fused
    loss or products beside their collectives, all of which `plan --target megatron` chooses. Only the files of NeMo-RL
    gather weights beside the next pass."""
    request = RlRequest.model_validate({"model": "qwen3-30b-a3b", "cluster": "dgx-h100:2", "target": target,
        "workload": {"kind": "rl", "algorithm": "grpo", "output": 300}})  # fmt: skip
    rl = rl_problem_of(request)[0]
    for resolved in (rl.resolved, rl.on("policy", 8, 128)):
        stack = resolved.stack
        assert (stack.gradient_bytes, stack.loss_traffic_bytes) == (gradient_bytes, loss_bytes)
        assert (stack.ep_dispatch, stack.sequence_parallel_overlap) == ("alltoall", 0)
        assert stack.dp_overlap > 0
        assert (stack.dp_gather_overlap > 0) == (target == "nemo-rl")
    fsdp = RlRequest.model_validate({"model": "llama-3.2-1b", "cluster": "dgx-h100:1", "trainer": "torchtitan",
        "workload": {"kind": "rl", "algorithm": "grpo", "output": 300}})  # fmt: skip
    assert rl_problem_of(fsdp)[0].resolved.switches.settings["torch_compile"] == "on"


@pytest.mark.parametrize(("target", "held_bytes"), [("verl", 6), ("openrlhf", 12), (None, 12)])
def test_verl_on_fsdp_has_the_loss_of_flash_attn(target: str | None, held_bytes: int) -> None:
    request = RlRequest.model_validate({"model": "llama-3.2-1b", "cluster": "dgx-h100:1", "target": target,
        "trainer": "deepspeed" if target == "openrlhf" else "accelerate",
        "workload": {"kind": "rl", "algorithm": "grpo", "output": 300}})  # fmt: skip
    rl = rl_problem_of(request)[0]
    assert [it.stack.logit_bytes for it in (rl.resolved, rl.on("policy", 8, 128))] == [held_bytes, held_bytes]


def test_openrlhf_has_ring_attention_in_place_of_ulysses() -> None:
    request = RlRequest.model_validate({"model": "qwen3-30b-a3b", "cluster": "dgx-h100:4", "target": "openrlhf",
        "workload": {"kind": "rl", "algorithm": "dapo", "prompts": 32, "samples": 8, "output": 4000}})  # fmt: skip
    trained = Prices(rl_problem_of(request)[0]).train("policy", 32)
    assert trained is not None
    assert trained.layout is not None
    assert CP_ALGORITHMS[trained.layout.cp_algorithm] == "ring"


def test_answers_are_packed_so_that_more_degrees_divide_them() -> None:
    """Sequences of the longest answer: 48 of three significant bits, or 32, over which 16 and 32 copies divide, too."""
    request = RlRequest.model_validate({"model": "llama-3.1-8b", "cluster": "dgx-h100:4", "workload": {
        "kind": "rl", "algorithm": "grpo", "prompts": 32, "samples": 8, "output": 2000}})  # fmt: skip
    rl = rl_problem_of(request)[0]
    mean, longest = 512 + rl.lengths.mean, rl.longest
    most = 256 // -int(-longest // mean)
    assert 48 <= most < 56
    expected = [(number, -int(-256 * mean / number // 128) * 128) for number in (48, 32)]
    assert rl.packings(256, 32) == expected
    assert replace(rl, fixed={"train": {"tp": 2}}).packings(256, 32) == expected[:1]
    trained = Prices(rl).train("policy", 32)
    fewer = [Prices(replace(rl, fixed={"train": {"tp": tp}})).train("policy", 32) for tp in (1, 2, 4, 8)]
    assert trained is not None
    assert trained.layout is not None
    assert (trained.sequences, trained.seq_len) in expected
    assert trained.sequences % trained.layout.dp == 0
    assert all(trained.seconds <= other.seconds for other in fewer if other is not None)


def of_one_label(data: dict[str, Any], kind: Any) -> int:
    """Parameters of a class of transformers with one label."""
    config = text_config(data)
    config.num_labels = 1
    with torch.device("meta"):
        return count(kind.from_config(config))


@pytest.mark.parametrize("name", ["llama-3.2-1b", "qwen3-8b", "gemma-2b", "mixtral-8x7b", "opt-350m"])
def test_a_critic_and_a_reward_model_are_models_of_one_label(name: str) -> None:
    """Tied and separate heads, experts, and an embedding that is narrower than the layers."""
    data = json.loads((ROOT / "tests" / "data" / "configs" / f"{name}.json").read_text())
    spec, _ = read_config(data, "test")
    assert of_one_label(data, AutoModelForSequenceClassification) == total_parameters(valued(spec))


def test_the_critic_of_transformers_has_a_bias_more() -> None:
    data = json.loads((ROOT / "tests" / "data" / "configs" / "llama-3.1-8b.json").read_text())
    spec, _ = read_config(data, "test")
    assert of_one_label(data, AutoModelForTokenClassification) == total_parameters(valued(spec)) + 1


def test_the_calls_of_a_critic_have_no_product_with_the_vocabulary() -> None:
    """Weights: 16 GiB and 1 GiB of Llama 3.1 8B and its head. FLOP: 2 T V h and 2 T h of a head."""
    request = RlRequest.model_validate({"model": "llama-3.1-8b", "cluster": "4xh100-sxm-80gb", "workload": {
        "kind": "rl", "algorithm": "ppo", "prompts": 128, "output": 300}})  # fmt: skip
    prices = Prices(rl_problem_of(request)[0])
    vocab, hidden = 128256, 4096
    roles: tuple[Role, ...] = ("critic", "reward")
    for role in roles:
        assert prices.weights_bytes("policy") - prices.weights_bytes(role) == 2 * (vocab - 1) * hidden
    resolved = {role: prices.rl.on(role, 4, 128) for role in ("policy", "critic")}
    flops = {role: _head_flops(it) for role, it in resolved.items()}
    assert flops["policy"] / flops["critic"] == vocab
    scored = {role: prices.infer(role, 4) for role in ("reference", "reward", "critic")}
    seconds = {role: option.seconds for role, option in scored.items() if option is not None}
    assert seconds["reward"] == seconds["critic"] < seconds["reference"]


def _head_flops(resolved: Resolved) -> float:
    columns = Layouts.of([Layout(tp=2, dp=2, shard=2, sequence_parallel=1)])
    head = tables.build(resolved.problem, tables.index_keys(columns)[0]).operations[HEAD]
    return sum(2.0 * float((it.m * it.n * it.k)[0]) for it in head.gemms if it.name == "head")
