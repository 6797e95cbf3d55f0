"""The modules hold the parameters that the planner counts, and compute what Hugging Face's models compute."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch
from meshwright.cost_models.quantities import params
from meshwright.cost_models.specs.model import FeedForward, Layer, MixtureOfExperts, ModelSpec
from meshwright.profiles.model.huggingface import read_config
from meshwright.runtime.model.decoder import DecoderChunk
from meshwright.runtime.model.router import route
from meshwright.runtime.reference import whole_model
from meshwright.runtime.settings import Settings, check_balancing
from torch import Tensor, nn

from meshwright.errors import InputError

from .jobs import attention, deepseek, gpt, job, llama, moe


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
    total = params.total_parameters(spec) + params.mtp_parameters(spec)
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


def logits_of(model: DecoderChunk, tokens: torch.Tensor) -> torch.Tensor:
    """The path of the loss, without the loss."""
    found: list[torch.Tensor] = []
    head = model.head
    assert head is not None
    head.loss = lambda x, targets, norm=None: found.append(head.logits(x)) or x.sum()  # type: ignore[method-assign, func-returns-value]
    model(tokens, tokens)
    return found[0]


def fill(target: DecoderChunk, theirs: Mapping[str, Tensor], names: dict[str, str]) -> None:
    """Copies Hugging Face's weights: `names` maps the ends of our names to theirs, {} stands for the layer."""
    with torch.no_grad():
        for name, parameter in target.named_parameters():
            layer = name.split(".")[1] if name.startswith("layers.") else ""
            end = name.removeprefix(f"layers.{layer}.")
            parameter.copy_(theirs[names[end].replace("{}", layer)])


LLAMA = {
    "embedding.tokens": "model.embed_tokens.weight", "head.norm.weight": "model.norm.weight",
    "head.projection": "lm_head.weight", "attention_norm.weight": "model.layers.{}.input_layernorm.weight",
    "feed_forward_norm.weight": "model.layers.{}.post_attention_layernorm.weight",
    **{f"attention.{n}": f"model.layers.{{}}.self_attn.{n}_proj.weight" for n in "qkvo"},
    **{f"feed_forward.{n}": f"model.layers.{{}}.mlp.{n}_proj.weight" for n in ("gate", "up", "down")},
}  # fmt: skip


def hugging_face(name: str, **config: Any) -> Any:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    made = getattr(transformers, name + ("LMHeadModel" if name == "GPT2" else "ForCausalLM"))(
        getattr(transformers, f"{name}Config")(**config, attn_implementation="eager")
    )
    return made.double().eval()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("theta", "epsilon", "activation", "scaling"),
    [
        (10_000.0, 1e-5, "silu", None), (500_000.0, 1e-6, "silu", None), (100.0, 0.1, "gelu_pytorch_tanh", None),
        (100.0, 0.1, "relu", {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                              "original_max_position_embeddings": 64}),
        (100.0, 0.1, "relu", {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}),
    ],
)  # fmt: skip
def test_llama_is_that_of_hugging_face(
    theta: float, epsilon: float, activation: str, scaling: dict[str, Any] | None
) -> None:
    theirs = hugging_face(
        "Llama", vocab_size=61, hidden_size=32, intermediate_size=64, num_hidden_layers=4, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=16, rms_norm_eps=epsilon, hidden_act=activation,
        rope_parameters={"rope_theta": theta, **(scaling or {"rope_type": "default"})},
    )  # fmt: skip
    # Both read the same config, so that no default of ours can stand in for a field that was not read.
    spec, _ = read_config(theirs.config.to_dict(), "tiny")
    ours = whole_model(job("dp1-mbs1-z0-rnone", spec))
    fill(ours, dict(theirs.named_parameters()), LLAMA)
    tokens = torch.arange(32).view(2, 16) % 61
    # Hugging Face rounds its rotary tables to float32.
    torch.testing.assert_close(logits_of(ours, tokens), theirs(tokens).logits, rtol=1e-5, atol=1e-6)


LATENT = {
    "q": "q_proj", "q_down": "q_a_proj", "q_norm.weight": "q_a_layernorm", "q_up": "q_b_proj", "o": "o_proj",
    "kv_down": "kv_a_proj_with_mqa", "kv_norm.weight": "kv_a_layernorm", "k_up": "k_up", "v_up": "v_up",
}  # fmt: skip


EXPERTS = {
    "feed_forward.router": "model.layers.{}.mlp.gate.weight",
    **{f"feed_forward.shared.{n}": f"model.layers.{{}}.mlp.shared_experts.{n}_proj.weight"
       for n in ("gate", "up", "down")},
}  # fmt: skip


def apart(state: dict[str, Tensor], rows: int) -> dict[str, Tensor]:
    """Theirs has keys and values of a head side by side, `rows` of keys, and gates beside what they open."""
    for name, weight in list(state.items()):
        layer, _, end = name.rpartition(".self_attn.") if ".self_attn." in name else name.rpartition(".mlp.")
        if end == "kv_b_proj.weight":
            both = weight.view(4, -1, weight.shape[1])
            state[f"{layer}.self_attn.k_up.weight"] = both[:, :rows].flatten(0, 1)
            state[f"{layer}.self_attn.v_up.weight"] = both[:, rows:].flatten(0, 1)
        elif end == "experts.gate_up_proj":
            halves = zip(("gate", "up"), weight.chunk(2, dim=1), strict=True)
            state.update({f"{layer}.mlp.{half}_proj.weight": each for half, each in halves})
            state[f"{layer}.mlp.down_proj.weight"] = state[f"{layer}.mlp.experts.down_proj"]
    return state


# Scores grow by (0.1 * 0.8 * ln 8 + 1)^2, cos and sin by 1.02.
LATENT_YARN = {"rope_type": "yarn", "factor": 8.0, "mscale": 1.0, "mscale_all_dim": 0.8, "beta_fast": 2.0,
               "original_max_position_embeddings": 32}  # fmt: skip


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("version", "q_rank", "scaling"), [(3, 16, None), (3, None, None), (2, 16, None), (3, 16, LATENT_YARN)]
)
def test_deepseek_is_that_of_hugging_face(version: int, q_rank: int | None, scaling: dict[str, Any] | None) -> None:
    groups = {"n_group": 4, "topk_group": 2, "topk_method": "group_limited_greedy"} if version == 2 else {
        "n_group": 4, "topk_group": 2, "rope_interleave": False, "num_nextn_predict_layers": 0}  # fmt: skip
    theirs = hugging_face(
        f"DeepseekV{version}", vocab_size=61, hidden_size=32, intermediate_size=64, moe_intermediate_size=24,
        num_hidden_layers=2, first_k_dense_replace=1, num_attention_heads=4, num_key_value_heads=4, n_routed_experts=8,
        n_shared_experts=1, num_experts_per_tok=4, q_lora_rank=q_rank, kv_lora_rank=8, qk_nope_head_dim=8,
        qk_rope_head_dim=4, v_head_dim=6, max_position_embeddings=16, routed_scaling_factor=1.7,
        rope_parameters={"rope_theta": 100.0, **(scaling or {"rope_type": "default"})},
        experts_implementation="eager", **groups,
    )  # fmt: skip
    spec, _ = read_config(theirs.config.to_dict(), "tiny")
    ours = whole_model(job("dp1-mbs1-z0-rnone", spec))
    state = apart({name: 5 * each.detach() for name, each in theirs.named_parameters()}, rows=8)
    theirs.load_state_dict({name: state.get(name, each) for name, each in theirs.state_dict().items()})
    if version == 2:  # it turns neighbours, not halves
        order = torch.tensor([0, 2, 1, 3])
        for name in list(state):
            if name.endswith(("q_b_proj.weight", "kv_a_proj_with_mqa.weight")):
                heads = state[name].view(4 if "q_b" in name else 1, -1, state[name].shape[1])
                turned = torch.cat([heads[:, :8], heads[:, 8:][:, order]], dim=1)
                state[name] = turned.flatten(0, 1)
    attention = {f"attention.{a}": f"model.layers.{{}}.self_attn.{b}.weight" for a, b in LATENT.items()}
    fill(ours, state, {**LLAMA, **attention, **EXPERTS})
    tokens = torch.arange(32).view(2, 16) % 61
    torch.testing.assert_close(logits_of(ours, tokens), theirs(tokens).logits, rtol=1e-5, atol=1e-5)


@pytest.mark.filterwarnings("ignore")
def test_gpt2_is_that_of_hugging_face() -> None:
    theirs = hugging_face(
        "GPT2", vocab_size=61, n_embd=32, n_inner=64, n_layer=4, n_head=4, n_positions=16, layer_norm_epsilon=1e-3
    )
    spec, _ = read_config(theirs.config.to_dict(), "tiny")
    ours = whole_model(job("dp1-mbs1-z0-rnone", spec))
    block = "transformer.h.{}"
    state = dict(theirs.named_parameters())
    with torch.no_grad():
        for name, parameter in ours.named_parameters():
            layer = name.split(".")[1] if name.startswith("layers.") else ""
            end = name.removeprefix(f"layers.{layer}.")
            if end.startswith("attention.") and end.split(".")[1][0] in "qkv":  # one Conv1D [in, 3 x out]
                part = "qkv".index(end.split(".")[1][0])
                kind = "bias" if end.endswith("_bias") else "weight"
                value = state[f"{block}.attn.c_attn.{kind}".replace("{}", layer)]
                parameter.copy_(value.t()[part * 32 : (part + 1) * 32] if kind == "weight" else value[part * 32 :][:32])
                continue
            parameter.copy_(_gpt2(state, end, block.replace("{}", layer)))
    tokens = torch.arange(32).view(2, 16) % 61
    torch.testing.assert_close(logits_of(ours, tokens), theirs(tokens).logits, rtol=1e-6, atol=1e-8)


def _gpt2(state: dict[str, nn.Parameter], end: str, block: str) -> torch.Tensor:
    names = {
        "embedding.tokens": "transformer.wte.weight", "embedding.positions": "transformer.wpe.weight",
        "head.norm.weight": "transformer.ln_f.weight", "head.norm.bias": "transformer.ln_f.bias",
        "attention_norm.weight": f"{block}.ln_1.weight", "attention_norm.bias": f"{block}.ln_1.bias",
        "feed_forward_norm.weight": f"{block}.ln_2.weight", "feed_forward_norm.bias": f"{block}.ln_2.bias",
        "attention.o": f"{block}.attn.c_proj.weight", "attention.o_bias": f"{block}.attn.c_proj.bias",
        "feed_forward.up": f"{block}.mlp.c_fc.weight", "feed_forward.up_bias": f"{block}.mlp.c_fc.bias",
        "feed_forward.down": f"{block}.mlp.c_proj.weight", "feed_forward.down_bias": f"{block}.mlp.c_proj.bias",
    }  # fmt: skip
    value = state[names[end]]
    return value.t() if ".attn." in names[end] or ".mlp." in names[end] else value


@pytest.mark.parametrize("model", [moe(), deepseek()])
def test_experts_in_turn_get_equally_many_tokens_and_the_router_still_learns(model: ModelSpec) -> None:
    spec = next(kind.feed_forward for kind in model.kinds if isinstance(kind.feed_forward, MixtureOfExperts))
    logits = torch.randn(spec.experts * 6, spec.experts, requires_grad=True)
    weights, chosen = route(spec, logits, in_turn=True)
    assert torch.bincount(chosen.flatten()).tolist() == [6 * spec.top_k] * spec.experts
    assert all(len(set(row)) == spec.top_k for row in chosen.tolist())
    usual, best = route(spec, logits)
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
