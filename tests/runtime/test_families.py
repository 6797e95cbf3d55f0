"""Every family that the runtime accepts computes what transformers computes: logits, and gradients of all weights."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from meshwright.cost_models.specs.model import ModelSpec
from meshwright.planner.targets.meshwright.rules import COMPARED
from meshwright.runtime.checkpoint.huggingface import converted
from torch import Tensor

from .families import Case, logits_of, loss_of, ours_of, spec_of, theirs_of

_YARN = {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 8, "beta_fast": 2.0}
_LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
           "original_max_position_embeddings": 64}  # fmt: skip
_GROUPED = {"n_group": 4, "topk_group": 2}
# By name of the family; after a comma what else of it is looked at.
CASES = {
    "deepseek_v2": Case("deepseek-v2-lite", {"q_lora_rank": 16, "topk_method": "group_limited_greedy", **_GROUPED,
                                             "routed_scaling_factor": 1.7}),
    "deepseek_v2, lite": Case("deepseek-v2-lite", {"num_hidden_layers": 2}),
    "deepseek_v3": Case("deepseek-v3", {**_GROUPED, "num_nextn_predict_layers": 0}),
    "deepseek_v3, biases and scaled positions": Case("deepseek-v3", {
        **_GROUPED, "num_nextn_predict_layers": 0, "attention_bias": True, "rope_scaling": {**_YARN, "mscale": 1.0,
                                                                                           "mscale_all_dim": 0.8}}),
    "gpt2": Case("gpt2", {"layer_norm_epsilon": 1e-3}),
    "llama": Case("llama-3.1-8b", {}),
    "llama, biases and other numbers": Case("llama-3.2-1b", {
        "attention_bias": True, "mlp_bias": True, "hidden_act": "gelu_pytorch_tanh", "rms_norm_eps": 0.1,
        "rope_theta": 100.0, "rope_scaling": _LLAMA3}),
    "llama, yarn": Case("llama-3.1-8b", {"rope_theta": 100.0, "rope_scaling": _YARN, "hidden_act": "relu"}),
    "mistral": Case("mistral-7b", {"sliding_window": 64}),
    "mixtral": Case("mixtral-8x7b", {}),
    "opt": Case("opt-125m", {}),
    "phi3": Case("phi-3-mini-4k", {"sliding_window": 64}),
    "phi3, part of a head": Case("phi-3-mini-4k", {"partial_rotary_factor": 0.5, "sliding_window": 64}),
    "qwen2": Case("qwen2.5-7b", {}),
    "qwen2_moe": Case("qwen1.5-moe-a2.7b", {}),
    "qwen2_moe, dense layers": Case("qwen1.5-moe-a2.7b", {"mlp_only_layers": [1], "norm_topk_prob": True}),
    "qwen3": Case("qwen3-8b", {}),
    "qwen3_moe": Case("qwen3-30b-a3b", {}),
    "starcoder2": Case("starcoder2-7b", {"sliding_window": 64}),
}  # fmt: skip


def differences(case: Case, broken: ModelSpec | None = None) -> dict[str, float]:
    """Largest difference of the logits and of each weight's gradient, over their range: of gradients that in the block,
    since some are sums of what cancels out (biases of keys)."""
    data = case.data()
    theirs = theirs_of(data)
    spec = broken or spec_of(data)
    ours = ours_of(spec, dict(theirs.named_parameters()))
    tokens = torch.randint(61, (2, 16), generator=torch.Generator().manual_seed(1))
    their_logits, our_logits = theirs(tokens).logits, logits_of(ours, tokens)
    loss_of(their_logits, tokens).backward()  # type: ignore[no-untyped-call]
    loss_of(our_logits, tokens).backward()  # type: ignore[no-untyped-call]
    wanted = converted(spec, {name: gradient(weight) for name, weight in theirs.named_parameters()})
    ranges: dict[str, float] = {}
    for name, values in wanted.items():
        ranges[block_of(name)] = max(ranges.get(block_of(name), 0.0), float(values.abs().max()))
    out = {"logits": float((our_logits - their_logits).abs().max() / their_logits.abs().max())}
    for name, parameter in ours.named_parameters():
        out[name] = float((gradient(parameter) - wanted[name]).abs().max()) / ranges[block_of(name)]
    return out


def block_of(name: str) -> str:
    """`layers.0.attention` of `layers.0.attention.q_norm.weight`."""
    return ".".join(name.split(".")[:3])


def gradient(weight: Any) -> Tensor:
    return torch.zeros_like(weight) if weight.grad is None else weight.grad


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("family", sorted(CASES))
def test_a_family_is_that_of_transformers(family: str) -> None:
    found = differences(CASES[family])
    assert not {name: value for name, value in found.items() if not value < 1e-5}


def test_what_is_accepted_is_what_is_compared() -> None:
    assert {name.partition(",")[0] for name in CASES} | {"own"} == COMPARED
