"""Where each weight of this runtime's models is in those of Hugging Face, as transformers (5.24) has them in memory.

Each of ours is a part of one of theirs, perhaps transposed or with rows in another order. So the same table also leads
over gradients. Predictions of more than one token are in none of their models.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from ...cost_models.specs.model import Attention, FeedForward, Layer, MixtureOfExperts, ModelSpec


@dataclass(frozen=True)
class Source:
    """A weight of theirs, and how ours is taken out of it."""

    name: str  # in their state
    take: Callable[[Tensor], Tensor] = lambda theirs: theirs


Sources = dict[str, Source]


@dataclass(frozen=True)
class Naming:
    """The names of a family's modules, layers aside without their prefix."""

    layers: str  # of the list of layers
    tokens: str  # of the embedding
    final_norm: str  # of the norm before the head
    attention: Callable[[Attention], Sources]  # of one layer
    feed_forward: Callable[[FeedForward | MixtureOfExperts], Sources]  # of one layer
    norms: tuple[str, ...]  # of one layer, in the order of `_norm_names`
    parallel_norms: tuple[str, ...] = ()  # in place of `norms` where both of two parallel blocks have one
    positions: Source | None = None  # learned ones
    head: str = "lm_head"


def sources(model: ModelSpec) -> Sources:
    """By the name of each of our weights the source in theirs. Raises KeyError for a family without a table."""
    naming = FAMILIES[model.family]
    out = {"embedding.tokens": Source(f"{naming.tokens}.weight")}
    if naming.positions is not None:
        out["embedding.positions"] = naming.positions
    for index, kind in enumerate(model.pattern):
        within = _layer(naming, model.kinds[kind])
        prefix = f"{naming.layers}.{index}"
        out |= {f"layers.{index}.{ours}": Source(f"{prefix}.{at.name}", at.take) for ours, at in within.items()}
    if model.final_norm:
        out |= _norm("head.norm", naming.final_norm, model.norm_bias)
    if not model.tied_embeddings:
        out["head.projection"] = Source(f"{naming.head}.weight")
    if model.head_bias:
        out["head.projection_bias"] = Source(f"{naming.head}.bias")
    return out


def converted(model: ModelSpec, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Our weights (or gradients), out of theirs by name."""
    return {ours: source.take(state[source.name]) for ours, source in sources(model).items()}


def _layer(naming: Naming, layer: Layer) -> Sources:
    attention, block = layer.transformer_blocks
    out = {f"attention.{ours}": source for ours, source in naming.attention(attention).items()}
    out |= {f"feed_forward.{ours}": source for ours, source in naming.feed_forward(block).items()}
    separate = naming.parallel_norms if layer.parallel_blocks and layer.num_norms == 2 else ()
    for ours, theirs in zip(_norm_names(layer), separate or naming.norms, strict=False):
        out |= _norm(ours, theirs, layer.norm_bias)
    return out


def _norm_names(layer: Layer) -> tuple[str, ...]:
    """Our norms of a layer, in the order in which they are applied."""
    if layer.output_norms:
        return "attention_output_norm", "feed_forward_output_norm"
    if layer.num_norms == 4:
        return "attention_norm", "attention_output_norm", "feed_forward_norm", "feed_forward_output_norm"
    return ("attention_norm", "feed_forward_norm")[: layer.num_norms]


def _norm(ours: str, theirs: str, bias: bool) -> Sources:
    return {f"{ours}.{part}": Source(f"{theirs}.{part}") for part in ("weight", "bias")[: 1 + bias]}


def _product(ours: str, theirs: str, bias: bool, take: Callable[[Tensor], Tensor] = lambda rows: rows) -> Sources:
    """A weight [out, in] and its bias [out]. take: our rows out of theirs, of both."""
    parts = ((ours, "weight"), (f"{ours}_bias", "bias"))[: 1 + bias]
    return {name: Source(f"{theirs}.{part}", take) for name, part in parts}


def _rows(first: int, number: int) -> Callable[[Tensor], Tensor]:
    return lambda theirs: theirs[first : first + number]


def _in_halves(turned: int) -> Tensor:
    """Order of the elements of a head that turn, from neighbours beside each other to halves."""
    return torch.arange(turned).view(-1, 2).t().flatten()


# ---------------------------------------------------------------------------------------------------- attention
def _separate(attention: Attention, module: str = "self_attn", output: str = "o_proj") -> Sources:
    """One product each for queries, keys and values."""
    out: Sources = {}
    for name in "qkv":
        out |= _product(name, f"{module}.{name}_proj", attention.qkv_bias)
    out |= _product("o", f"{module}.{output}", attention.output_bias)
    if attention.norm_parameters:
        out |= {**_norm("q_norm", f"{module}.q_norm", False), **_norm("k_norm", f"{module}.k_norm", False)}
    if attention.sink_parameters:
        out["sinks"] = Source(f"{module}.sinks")
    return out


def _joined(attention: Attention) -> Sources:
    """Phi-3: queries, keys and values one below the other."""
    q, k = attention.heads * attention.head_dim, attention.kv_heads * attention.head_dim
    out = _product("o", "self_attn.o_proj", attention.output_bias)
    for name, first, number in (("q", 0, q), ("k", q, k), ("v", q + k, k)):
        out |= _product(name, "self_attn.qkv_proj", attention.qkv_bias, _rows(first, number))
    return out


def _transposed(attention: Attention) -> Sources:
    """GPT-2: one product [in, 3 x out]."""
    width = attention.heads * attention.head_dim
    out = _product("o", "attn.c_proj", attention.output_bias, torch.t)
    for index, name in enumerate("qkv"):
        out |= _product(name, "attn.c_attn", attention.qkv_bias, partial(_columns, index * width, width))
    return out


def _columns(first: int, number: int, theirs: Tensor) -> Tensor:
    return theirs.t()[first : first + number]


def _by_group(attention: Attention, module: str) -> Sources:
    """Falcon, GPT-NeoX: by group of heads its queries, its key and its value."""
    shared = attention.heads // attention.kv_heads

    def take(which: slice, theirs: Tensor) -> Tensor:
        groups = theirs.view(attention.kv_heads, shared + 2, attention.head_dim, *theirs.shape[1:])
        return groups[:, which].flatten(0, 2)

    out = _product("o", f"{module}.dense", attention.output_bias)
    for name, which in (("q", slice(0, shared)), ("k", slice(shared, shared + 1)), ("v", slice(shared + 1, None))):
        out |= _product(name, f"{module}.query_key_value", attention.qkv_bias, partial(take, which))
    return out


def _latent(attention: Attention) -> Sources:
    """DeepSeek: positions turn neighbours; a head has keys and values one below the other."""
    heads, rope, rank = attention.heads, attention.rope_head_dim, attention.kv_lora_rank or 0
    nope = attention.head_dim - rope

    def query(theirs: Tensor) -> Tensor:
        rows = theirs.view(heads, attention.head_dim, -1)
        return torch.cat([rows[:, :nope], rows[:, nope:][:, _in_halves(rope)]], dim=1).flatten(0, 1)

    def compressed(theirs: Tensor) -> Tensor:
        return torch.cat([theirs[:rank], theirs[rank:][_in_halves(rope)]])

    def unfolded(which: slice, theirs: Tensor) -> Tensor:
        return theirs.view(heads, -1, rank)[:, which].flatten(0, 1)

    out = _product("o", "self_attn.o_proj", attention.output_bias)
    if attention.q_lora_rank is None:
        out["q"] = Source("self_attn.q_proj.weight", query)
    else:
        out |= _product("q_down", "self_attn.q_a_proj", attention.qkv_bias)
        out |= _norm("q_norm", "self_attn.q_a_layernorm", False)
        out["q_up"] = Source("self_attn.q_b_proj.weight", query)
    out |= _product("kv_down", "self_attn.kv_a_proj_with_mqa", attention.qkv_bias, compressed)
    out |= _norm("kv_norm", "self_attn.kv_a_layernorm", False)
    for name, which in (("k_up", slice(0, nope)), ("v_up", slice(nope, None))):
        out[name] = Source("self_attn.kv_b_proj.weight", partial(unfolded, which))
    return out


# ------------------------------------------------------------------------------------------ feed-forward blocks
def _gated(block: FeedForward | MixtureOfExperts, module: str = "mlp", shared: str = "shared_experts") -> Sources:
    """Three products; of experts gate and input one below the other, [experts, 2 x inner, hidden]."""
    if isinstance(block, FeedForward):
        out: Sources = {}
        for name in ("gate", "up", "down"):
            out |= _product(name, f"{module}.{name}_proj", block.bias)
        return out
    inner = block.expert_inner
    out = {
        "router": Source(f"{module}.gate.weight"),
        "gate": Source(f"{module}.experts.gate_up_proj", lambda x: x[:, :inner]),
        "up": Source(f"{module}.experts.gate_up_proj", lambda x: x[:, inner:]),
        "down": Source(f"{module}.experts.down_proj"),
    }
    if block.shared_inner:
        out |= {f"shared.{name}": Source(f"{module}.{shared}.{name}_proj.weight") for name in ("gate", "up", "down")}
    if block.shared_gate:
        out["shared_gate"] = Source(f"{module}.{shared}_gate.weight")
    return out


def _gate_above_input(block: FeedForward | MixtureOfExperts) -> Sources:
    """Phi-3: gate and input one below the other."""
    if not isinstance(block, FeedForward):
        raise TypeError("Phi-3 has no experts")
    return {"gate": Source("mlp.gate_up_proj.weight", _rows(0, block.inner)),
            "up": Source("mlp.gate_up_proj.weight", _rows(block.inner, block.inner)),
            "down": Source("mlp.down_proj.weight")}  # fmt: skip


def _alternating(block: FeedForward | MixtureOfExperts) -> Sources:
    """gpt-oss: gate and input in turn, [experts, hidden, 2 x inner]."""
    out = {"router": Source("mlp.router.weight"), "router_bias": Source("mlp.router.bias"),
           "down": Source("mlp.experts.down_proj", lambda x: x.transpose(1, 2)),
           "down_bias": Source("mlp.experts.down_proj_bias")}  # fmt: skip
    for name, every in (("gate", slice(0, None, 2)), ("up", slice(1, None, 2))):
        out[name] = Source("mlp.experts.gate_up_proj", partial(_experts_rows, every))
        out[f"{name}_bias"] = Source("mlp.experts.gate_up_proj_bias", partial(_experts_rows, every))
    return out


def _experts_rows(which: slice, theirs: Tensor) -> Tensor:
    """Some outputs of all experts: [experts, in, out] -> [experts, out, in], or [experts, out]."""
    chosen = theirs[..., which]
    return chosen if chosen.dim() == 2 else chosen.transpose(1, 2)


def _plain(
    up: str, down: str, block: FeedForward | MixtureOfExperts, take: Callable[[Tensor], Tensor] = lambda rows: rows
) -> Sources:
    """Two products."""
    if not isinstance(block, FeedForward):
        raise TypeError("a block of two products has no experts")
    return {**_product("up", up, block.bias, take), **_product("down", down, block.bias, take)}


def _llama(**changes: object) -> Naming:
    """Most families have Llama's names."""
    usual = {"layers": "model.layers", "tokens": "model.embed_tokens", "final_norm": "model.norm",
             "attention": _separate, "feed_forward": _gated,
             "norms": ("input_layernorm", "post_attention_layernorm")}  # fmt: skip
    return Naming(**{**usual, **changes})  # type: ignore[arg-type]


_FOUR_NORMS = ("input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm")
FAMILIES: Mapping[str, Naming] = {
    "deepseek_v2": _llama(attention=_latent),
    "deepseek_v3": _llama(attention=_latent),
    "falcon": _llama(
        layers="transformer.h", tokens="transformer.word_embeddings", final_norm="transformer.ln_f",
        attention=partial(_by_group, module="self_attention"),
        feed_forward=partial(_plain, "mlp.dense_h_to_4h", "mlp.dense_4h_to_h"),
        parallel_norms=("ln_attn", "ln_mlp"),
    ),
    "gemma": _llama(),
    "gemma2": _llama(norms=_FOUR_NORMS),
    "gemma3": _llama(norms=_FOUR_NORMS),
    "gpt2": Naming(
        layers="transformer.h", tokens="transformer.wte", final_norm="transformer.ln_f", attention=_transposed,
        feed_forward=partial(_plain, "mlp.c_fc", "mlp.c_proj", take=torch.t), norms=("ln_1", "ln_2"),
        positions=Source("transformer.wpe.weight"),
    ),
    "gpt_neox": _llama(
        layers="gpt_neox.layers", tokens="gpt_neox.embed_in", final_norm="gpt_neox.final_layer_norm",
        attention=partial(_by_group, module="attention"),
        feed_forward=partial(_plain, "mlp.dense_h_to_4h", "mlp.dense_4h_to_h"),
    ),
    "gpt_oss": _llama(feed_forward=_alternating),
    "granite": _llama(),
    "llama": _llama(),
    "mistral": _llama(),
    "mixtral": _llama(),
    "olmo2": _llama(norms=("post_attention_layernorm", "post_feedforward_layernorm")),
    "opt": Naming(
        layers="model.decoder.layers", tokens="model.decoder.embed_tokens", final_norm="model.decoder.final_layer_norm",
        attention=partial(_separate, output="out_proj"), feed_forward=partial(_plain, "fc1", "fc2"),
        norms=("self_attn_layer_norm", "final_layer_norm"),
        # Position p is in row p + 2 there, the rows before are of no token.
        positions=Source("model.decoder.embed_positions.weight", lambda rows: rows.roll(-2, 0)),
    ),
    "phi3": _llama(attention=_joined, feed_forward=_gate_above_input),
    "qwen2": _llama(),
    "qwen2_moe": _llama(feed_forward=partial(_gated, shared="shared_expert")),
    "qwen3": _llama(),
    "qwen3_moe": _llama(),
    "starcoder2": _llama(feed_forward=partial(_plain, "mlp.c_fc", "mlp.c_proj")),
}  # fmt: skip
