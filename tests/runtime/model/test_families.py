"""Every family that the runtime accepts computes what transformers computes: logits, and gradients of all weights."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from meshwright.cost_models.layer_kinds.mamba2 import Mamba2
from meshwright.cost_models.specs.model import FeedForward, Layer, MixtureOfExperts, ModelSpec
from meshwright.planner.targets.meshwright.rules import COMPARED
from meshwright.runtime.checkpoint.huggingface import converted
from torch import Tensor

from .families import Case, choice_biases_of, filed, logits_of, ours_of, spec_of, state_of, theirs_of

_YARN = {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 8, "beta_fast": 2.0}
_LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
           "original_max_position_embeddings": 64}  # fmt: skip
_WINDOWS = {"use_sliding_window": True, "sliding_window": 5}
_GROUPED = {"n_group": 4, "topk_group": 2}
_MAMBA = {"mamba_num_heads": 4, "mamba_head_dim": 8, "n_groups": 2, "ssm_state_size": 6, "chunk_size": 5}
# The delta rule of transformers is in fp32 whatever the model is in, and its outputs may be near zero: norms with a
# small epsilon would make rounding errors large. In fp64 all agrees to 1e-13 (its fp32 replaced by hand).
_DELTA = {"linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 8,
          "linear_value_head_dim": 6, "rms_norm_eps": 0.1, "head_dim": 16, "rope_theta": 100.0,
          "full_attention_interval": 2}  # fmt: skip
# By name of the family; after a comma what else of it is looked at.
CASES = {
    "arcee": Case("afm-4.5b", {"rope_scaling": None, "rope_theta": 100.0}),
    "deepseek_v2": Case("deepseek-v2-lite", {"q_lora_rank": 16, "topk_method": "group_limited_greedy", **_GROUPED,
                                             "routed_scaling_factor": 1.7}),
    "deepseek_v2, lite": Case("deepseek-v2-lite", {"num_hidden_layers": 2}),
    "deepseek_v3": Case("deepseek-v3", {**_GROUPED, "num_nextn_predict_layers": 0}),
    "deepseek_v2, groups without a method": Case("deepseek-v2-lite", {**_GROUPED, "num_hidden_layers": 2},
                                                 absent=("topk_method",)),
    "deepseek_v3, groups whatever the method": Case("deepseek-v3", {
        **_GROUPED, "num_nextn_predict_layers": 0, "topk_method": "greedy"}),
    "deepseek_v3, three experts of a group": Case("deepseek-v3", {
        **_GROUPED, "num_nextn_predict_layers": 0, "num_experts_per_tok": 6}),
    "deepseek_v2, groups that are not used": Case("deepseek-v2-lite", {**_GROUPED, "topk_method": "greedy",
                                                                   "num_hidden_layers": 2}),
    "deepseek_v3, biases and scaled positions": Case("deepseek-v3", {
        **_GROUPED, "num_nextn_predict_layers": 0, "attention_bias": True, "rope_scaling": {**_YARN, "mscale": 1.0,
                                                                                           "mscale_all_dim": 0.8}}),
    "dots1": Case("dots.llm1", {**_GROUPED, "n_routed_experts": 16}),
    "dots1, scores as they are": Case("dots.llm1", {"norm_topk_prob": False, "attention_bias": True}),
    "ernie4_5": Case("ernie-4.5-0.3b", {}),
    "ernie4_5, biases": Case("ernie-4.5-0.3b", {"use_bias": True, "tie_word_embeddings": False}),
    "ernie4_5_moe": Case("ernie-4.5-21b-a3b", {"moe_layer_end_index": -1}),
    "exaone4": Case("exaone-4.0-32b", {"sliding_window": None, "layer_types": ["full_attention"] * 4,
                                       "rope_scaling": _LLAMA3}),
    "falcon": Case("falcon-40b", {"num_ln_in_parallel_attn": 2}),
    "falcon, one norm and one key": Case("falcon-7b", {"alibi": False}),
    "gemma": Case("gemma-2b", {}),
    "gemma2": Case("gemma-2-9b", {}),
    "gemma3": Case("gemma-3-1b", {"num_hidden_layers": 6, "sliding_window_pattern": 3}),
    "gemma3, capped logits": Case("gemma-3-1b", {"num_hidden_layers": 2, "final_logit_softcapping": 2.0,
                                                 "sliding_window_pattern": 2}),
    "gemma3, scaled positions": Case("gemma-3-4b", {"num_attention_heads": 4, "num_key_value_heads": 2,
                                                    "head_dim": 8, "query_pre_attn_scalar": 13, "vocab_size": 61,
                                                    "num_hidden_layers": 6, "rope_theta": 100.0}),
    "glm": Case("glm-4-9b", {"rms_norm_eps": 1e-3}),
    "glm, no biases": Case("glm-4-9b", {"attention_bias": False}),
    "glm4": Case("glm-4-32b-0414", {}),
    "glm4_moe": Case("glm-4.5", {**_GROUPED, "n_routed_experts": 16, "num_nextn_predict_layers": 0}),
    "glm4_moe, air": Case("glm-4.5-air", {"num_nextn_predict_layers": 0}),
    "glm4_moe_lite": Case("glm-4.7-flash", {"q_lora_rank": 16}, absent=("mlp_layer_types",)),
    "gpt2": Case("gpt2", {"layer_norm_epsilon": 1e-3}),
    "gpt_neox": Case("gpt-neox-20b", {"rotary_pct": 0.5}),
    "gpt_neox, blocks in turn": Case("gpt-neox-20b", {"rotary_pct": 0.5, "use_parallel_residual": False}),
    "gpt_oss": Case("gpt-oss-20b", {"rope_scaling": {**_YARN, "truncate": False}}),
    "gpt_oss, positions of its family": Case("gpt-oss-20b", {}, absent=("rope_scaling",)),
    "granite": Case("granite-3.1-8b", {"attention_dropout": 0.0}),
    "granitemoe": Case("granite-3.1-3b-a800m", {"attention_dropout": 0.0}),
    "hy_v3": Case("hy3-295b-a21b", {}),
    "internlm3": Case("internlm3-8b", {}),
    "internlm3, biases": Case("internlm3-8b", {"attention_bias": True, "mlp_bias": True}),
    "llama": Case("llama-3.1-8b", {}),
    "llama, biases and other numbers": Case("llama-3.2-1b", {
        "attention_bias": True, "mlp_bias": True, "hidden_act": "gelu_pytorch_tanh", "rms_norm_eps": 0.1,
        "rope_theta": 100.0, "rope_scaling": _LLAMA3}),
    "llama, yarn": Case("llama-3.1-8b", {"rope_theta": 100.0, "rope_scaling": _YARN, "hidden_act": "relu"}),
    "minimax_m2": Case("minimax-m2.5", {}),
    "ministral3": Case("devstral-2-123b", {"rope_parameters": {
        **_YARN, "rope_theta": 100.0, "llama_4_scaling_beta": 0.0}}),
    "mistral": Case("mistral-7b", {"sliding_window": 5}),
    "mixtral": Case("mixtral-8x7b", {}),
    "nemotron_h": Case("nemotron-h-56b", {**_MAMBA, "hybrid_override_pattern": "M*-M"}),
    "nemotron_h, experts and biases": Case("nemotron-3-nano-30b-a3b", {
        **_MAMBA, "n_groups": 1, "hybrid_override_pattern": "ME*E", "use_bias": True, "layer_norm_epsilon": 0.01,
        "moe_shared_expert_intermediate_size": 40}),
    "olmo2": Case("olmo-2-7b", {"num_key_value_heads": 2}),
    "nemotron": Case("nemotron-4-340b", {}),
    "nemotron, biases": Case("nemotron-4-340b", {"attention_bias": True, "mlp_bias": True}),
    "olmo3": Case("olmo-3.1-32b", {"rope_scaling": _YARN}),
    "olmoe": Case("olmoe-1b-7b", {}),
    "opt": Case("opt-125m", {}),
    "phi3": Case("phi-3-mini-4k", {}),
    "phi3, part of a head": Case("phi-3-mini-4k", {"partial_rotary_factor": 0.5}),
    "qwen2": Case("qwen2.5-7b", {}),
    "qwen2, windows": Case("qwen2.5-7b", {**_WINDOWS, "max_window_layers": 2}),
    "qwen2_moe": Case("qwen1.5-moe-a2.7b", {}),
    "qwen2_moe, dense layers": Case("qwen1.5-moe-a2.7b", {"mlp_only_layers": [1], "norm_topk_prob": True}),
    "qwen2_moe, windows": Case("qwen1.5-moe-a2.7b", {**_WINDOWS, "max_window_layers": 3}),
    "qwen3": Case("qwen3-8b", {}),
    "qwen3_moe": Case("qwen3-30b-a3b", {}),
    "qwen3_moe, windows": Case("qwen3-30b-a3b", _WINDOWS),
    "seed_oss": Case("seed-oss-36b", {"attention_dropout": 0.0, "residual_dropout": 0.0}),
    "smollm3": Case("smollm3-3b", {"no_rope_layers": [1] * 4}),
    "stablelm": Case("stablelm-2-1.6b", {"partial_rotary_factor": 0.5}),
    "stablelm, blocks in parallel": Case("stablelm-2-1.6b", {
        "use_parallel_residual": True, "use_qkv_bias": False, "partial_rotary_factor": 0.5}),
    "qwen3_next": Case("qwen3-next-80b-a3b", {**_DELTA, "partial_rotary_factor": 0.5}),
    "qwen3_next, dense layers and biases": Case("qwen3-next-80b-a3b", {
        **_DELTA, "mlp_only_layers": [1], "attention_bias": True, "linear_num_key_heads": 4,
        "linear_conv_kernel_dim": 2}),
    "starcoder2": Case("starcoder2-7b", {}),
}  # fmt: skip


def differences(case: Case, broken: ModelSpec | None = None) -> dict[str, float]:
    """Largest difference of the logits and of each weight's gradient, over their range: of gradients that in the block,
    since some are sums of what cancels out (biases of keys)."""
    data = case.data()
    theirs = theirs_of(data)
    spec = broken or spec_of(data)
    ours = ours_of(spec, state_of(theirs))
    tokens = torch.randint(61, (2, 16), generator=torch.Generator().manual_seed(1))
    targets = torch.randint(61, (2, 16), generator=torch.Generator().manual_seed(2))
    their_logits, our_logits = theirs(tokens).logits, logits_of(ours, tokens)
    loss = torch.nn.functional.cross_entropy(their_logits.flatten(0, 1), targets.flatten(), reduction="sum")
    loss.backward()  # type: ignore[no-untyped-call]
    ours(tokens, targets).backward()
    gradients = {name: gradient(weight) for name, weight in theirs.named_parameters()}
    wanted = converted(spec, filed(theirs, {**choice_biases_of(theirs), **gradients}))
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


def of_attention(**changes: Any) -> Callable[[ModelSpec], ModelSpec]:
    def change(layer: Layer) -> Layer:
        return layer if layer.attention is None else replace(layer, attention=replace(layer.attention, **changes))

    return of_layers(change)


def of_block(kind: type[Any], **changes: Any) -> Callable[[ModelSpec], ModelSpec]:
    """Changes all feed-forward blocks of a kind."""

    def change(layer: Layer) -> Layer:
        block = layer.feed_forward
        return replace(layer, feed_forward=replace(block, **changes)) if isinstance(block, kind) else layer

    return of_layers(change)


def of_mixer(kind: type[Any], **changes: Any) -> Callable[[ModelSpec], ModelSpec]:
    return of_layers(lambda layer: replace(layer, mixer=replace(layer.mixer, **changes))
                     if isinstance(layer.mixer, kind) else layer)  # fmt: skip


def of_layers(change: Callable[[Layer], Layer]) -> Callable[[ModelSpec], ModelSpec]:
    return lambda spec: replace(spec, kinds=tuple(map(change, spec.kinds)))


def of_model(**changes: Any) -> Callable[[ModelSpec], ModelSpec]:
    return lambda spec: replace(spec, **changes)


# Each takes one thing out of a model, or makes it another; where that changes its spec, the logits must show it.
FAULTS: dict[str, Callable[[ModelSpec], ModelSpec]] = {
    "embeddings not scaled": of_model(embedding_scale=1.0),
    "residuals not scaled": of_model(residual_scale=1.0),
    "logits not scaled": of_model(logit_scale=1.0),
    "logits not capped": of_model(logit_softcap=None),
    "norms by weight": of_model(unit_offset_norms=False),
    "another epsilon": of_model(norm_epsilon=0.03),
    "no final norm": of_model(final_norm=False),
    "another activation": lambda spec: replace(spec, activation="gelu" if spec.activation == "silu" else "silu"),
    "another base": lambda spec: replace(spec, rope_theta=spec.rope_theta and spec.rope_theta / 50),
    "one base": of_model(window_rope_theta=None),
    "whole heads turn": of_model(partial_rotary_factor=1.0),
    "scores by the root": of_attention(score_scale=None),
    "scores not capped": of_attention(score_softcap=None),
    "no windows": of_attention(window=None),
    "no sinks": of_attention(sink_parameters=0),
    "no biases of queries": of_attention(qkv_bias=False),
    "no bias of attention": of_attention(output_bias=False),
    "no gate of what attention puts out": of_attention(output_gate=False),
    "heads that turn": lambda spec: spec if spec.learned_positions else of_attention(rotary=True)(
        replace(spec, rope_theta=spec.rope_theta or 100.0)),
    "no least step": of_mixer(Mamba2, least_step=0.0),
    "no norm of the scan": of_mixer(Mamba2, gated_norm=False),
    "no bias of the convolution": of_mixer(Mamba2, conv_bias=False),
    "no bias into the scan": of_mixer(Mamba2, in_bias=False),
    "norms of inputs": of_layers(lambda layer: replace(layer, output_norms=False)),
    "blocks in turn": of_layers(lambda layer: replace(layer, parallel_blocks=False)),
    "no biases": of_block(FeedForward, bias=False),
    "no shared experts": of_block(MixtureOfExperts, shared_inner=0, shared_gate=False),
    "no gate of shared experts": of_block(MixtureOfExperts, shared_gate=False),
    "any groups": of_block(MixtureOfExperts, groups=1, top_groups=1),
    "weights not scaled": of_block(MixtureOfExperts, router_scale=1.0),
    "weights that sum to 1": of_block(MixtureOfExperts, router_normalised=True),
    "weights that do not": of_block(MixtureOfExperts, router_normalised=False),
    "no bias of the choice": of_block(MixtureOfExperts, choice_bias=False),
    "softmax of the router": of_block(MixtureOfExperts, router_scores="softmax"),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("family", sorted(CASES))
def test_a_family_is_that_of_transformers(family: str) -> None:
    found = differences(CASES[family])
    assert not {name: value for name, value in found.items() if not value < 1e-5}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("family", sorted(CASES))
def test_each_part_of_a_family_shows(family: str) -> None:
    """Else the test above could pass without it."""
    data = CASES[family].data()
    theirs, spec = theirs_of(data), spec_of(data)
    state = state_of(theirs)
    tokens = torch.randint(61, (2, 16), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        wanted = theirs(tokens).logits
        unseen = []
        for name, fault in FAULTS.items():
            if repr(fault(spec)) != repr(spec):  # some fields are not compared
                logits = logits_of(ours_of(fault(spec), state, spec), tokens)
                if float((logits - wanted).abs().max() / wanted.abs().max()) < 1e-4:
                    unseen.append(name)
    assert not unseen


def test_what_is_accepted_is_what_is_compared() -> None:
    """T5 in `test_two_stacks.py`."""
    assert {name.partition(",")[0] for name in CASES} | {"own", "t5"} == COMPARED
