"""The modules hold the parameters that the planner counts; experts in turn. `test_families` has what they compute."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from meshwright.cost_models.quantities import params
from meshwright.cost_models.specs.model import FeedForward, Layer, MixtureOfExperts, ModelSpec
from meshwright.runtime.model.router import route, scored
from meshwright.runtime.preparation import check_balancing
from meshwright.runtime.reference import whole_model
from meshwright.runtime.settings import Settings

from meshwright.errors import InputError

from ...cost_models.mtp_parameters import mtp_parameters
from ..jobs import attention, deepseek, gpt, job, llama, moe


def qwen3() -> ModelSpec:
    layer = Layer(attention=attention(norm_parameters=16), feed_forward=FeedForward(inner=64))
    return llama(kinds=(layer,), tied_embeddings=True)


def qwen_moe() -> ModelSpec:
    block = MixtureOfExperts(experts=4, top_k=2, expert_inner=24, shared_inner=40, shared_gate=True)
    dense = Layer(attention=attention(qkv_bias=True), feed_forward=FeedForward(inner=64))
    sparse = replace(dense, feed_forward=block)
    return llama(kinds=(dense, sparse), pattern=(0, 1, 1, 1), head_bias=True)


def biased_experts() -> ModelSpec:
    block = MixtureOfExperts(experts=4, top_k=2, expert_inner=24, expert_bias=True, router_bias=True)
    return llama(kinds=(Layer(attention=attention(output_bias=True), feed_forward=block),))


def direct_queries() -> ModelSpec:
    """As DeepSeek-V2-Lite, with biases."""
    latent = attention(kv_heads=4, head_dim=12, rope_head_dim=4, kv_lora_rank=8, norm_parameters=8, qkv_bias=True,
                       output_bias=True)  # fmt: skip
    return llama(kinds=(Layer(attention=latent, feed_forward=FeedForward(inner=64)),))


@pytest.mark.parametrize(
    "spec", [llama(), gpt(), moe(), qwen3(), qwen_moe(), biased_experts(), deepseek(), direct_queries()]
)
def test_parameters_are_those_of_the_cost_model(spec: ModelSpec) -> None:
    model = whole_model(job("dp1-mbs1-z0-rnone", spec))
    total = params.total_parameters(spec) + mtp_parameters(spec)
    assert sum(p.numel() for p in model.parameters()) == total
    for name, layer in model.layers.items():
        kind = spec.kinds[spec.pattern[int(name)]]
        assert sum(p.numel() for p in layer.parameters()) == sum(params.layer_parameters(spec, kind).values())


def test_weights_depend_on_the_seed_and_nothing_else() -> None:
    one, two = (whole_model(job(each)) for each in ("dp1-mbs1-z0-rnone", "pp2-dp2-mbs1-z0-rfull"))
    other = whole_model(job("dp1-mbs1-z0-rnone", seed=1))
    for (name, a), b, c in zip(one.named_parameters(), two.parameters(), other.parameters(), strict=True):
        assert torch.equal(a, b), name
        assert a.dim() < 2 or not torch.equal(a, c), name


@pytest.mark.parametrize("model", [moe(), deepseek()])
def test_experts_in_turn_get_equally_many_tokens_and_the_router_still_learns(model: ModelSpec) -> None:
    spec = next(kind.feed_forward for kind in model.kinds if isinstance(kind.feed_forward, MixtureOfExperts))
    logits = torch.randn(spec.experts * 6, spec.experts, requires_grad=True)
    weights, chosen = route(spec, scored(spec, logits), in_turn=True)
    assert torch.bincount(chosen.flatten()).tolist() == [6 * spec.top_k] * spec.experts
    assert all(len(set(row)) == spec.top_k for row in chosen.tolist())
    usual, best = route(spec, scored(spec, logits))
    own = torch.bincount(best.flatten(), minlength=spec.experts)
    assert own.max() > own.min()
    assert weights.sum(-1).max() <= usual.sum(-1).max() + 1e-6
    (weights**2).sum().backward()  # type: ignore[no-untyped-call]
    assert logits.grad is not None
    assert logits.grad.abs().sum() > 0


def test_balanced_experts_are_refused_where_they_mean_nothing() -> None:
    settings = Settings(plan="plan.json", balance_experts=True)
    assert Settings.parse(settings.words()) == settings
    with pytest.raises(InputError, match="tiny has no experts"):
        check_balancing(job("dp1-mbs1-z0-rnone"), settings)
    with pytest.raises(InputError, match="depends on the layout"):
        check_balancing(job("dp1-mbs1-z0-rnone", moe()), replace(settings, check_parity=True))
    check_balancing(job("dp1-mbs1-z0-rnone", moe()), settings)
