"""Maps each weight of this runtime's models to the files of Hugging Face, as transformers (5.24) reads and writes them.

Some weights have other names in memory (get_model_conversion_mapping of transformers). Each of our weights is a part of
one of theirs, perhaps transposed or with permuted rows, or one tensor per expert. The same table therefore maps in both
directions, and also maps gradients. Their models ignore multi-token prediction, whose weights published files have.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import count, takewhile
from typing import Any

import torch
from torch import Tensor

from ...cost_models.specs.model import Attention, FeedForward, Layer, MixtureOfExperts, ModelSpec
from ..model.rope import rotated_width
from .hybrid_sources import blocks_of_nemotron, gated_delta_net, gated_queries, mamba2
from .sources import (
    MIXTRAL_PRODUCTS,
    Source,
    Sources,
    alternating,
    by_group,
    columns_first,
    gate_above_input,
    gated,
    halved,
    joined,
    latent,
    norm,
    plain,
    separate,
    stacked,
    transposed,
)
from .t5_sources import T5_TABLES, t5_sources
from .vision_sources import columns_of_experts, tower_sources


@dataclass(frozen=True)
class Naming:
    """The module names of a family. Names inside a layer have no prefix."""

    layers: str  # the list of layers
    tokens: str  # the embedding
    final_norm: str  # the norm before the head
    attention: Callable[[Attention], Sources]  # sources of one layer
    feed_forward: Callable[[FeedForward | MixtureOfExperts], Sources]  # sources of one layer
    norms: tuple[str, ...]  # norms of one layer, in the order of `_norm_names`
    mixer: Callable[[Any], Sources] | None = None  # sources of one layer's mixer other than attention
    parallel_norms: tuple[str, ...] = ()  # replaces `norms` where two parallel blocks have a norm each
    positions: Source | None = None  # learned positions
    head: str = "lm_head"
    predictions: bool = False  # whether files have prediction modules as further layers, as those of DeepSeek-V3
    turns_neighbours: bool = False  # rotary pairs are adjacent elements of a head, not elements half a head apart


def sources(model: ModelSpec) -> Sources:
    """Our weight name -> source in their files. Raises KeyError for a family without a table."""
    naming = FAMILIES[model.family]
    if model.encoder is not None:
        return t5_sources(model)
    if model.tower is not None:
        naming = replace(naming, feed_forward=partial(columns_of_experts, dense=naming.feed_forward))
    out = {"embedding.tokens": Source(f"{naming.tokens}.weight")}
    if naming.positions is not None:
        out["embedding.positions"] = naming.positions
    for index, kind in enumerate(model.pattern):
        within = _layer(naming, model, model.kinds[kind])
        prefix = f"{naming.layers}.{index}"
        out |= {f"layers.{index}.{ours}": replace(at, name=f"{prefix}.{at.name}") for ours, at in within.items()}
    if model.final_norm:
        out |= norm("head.norm", naming.final_norm, model.norm_bias)
    if not model.tied_embeddings:
        out["head.projection"] = Source(f"{naming.head}.weight")
    if model.head_bias:
        out["head.projection_bias"] = Source(f"{naming.head}.bias")
    for number in range(stored_predictions(model)):
        out |= _prediction(naming, model, number)
    if model.tower is not None:  # the text model is then one part of the files' model
        inside = partial(re.sub, r"^model\.", "model.language_model.")
        out = {ours: replace(at, name=inside(at.name)) for ours, at in out.items()}
        out |= tower_sources(model.tower, "embedding.tower")
    return out


def stored_predictions(model: ModelSpec) -> int:
    """Prediction modules that the files of the model's family have names for."""
    return model.mtp_layers if FAMILIES[model.family].predictions else 0


def prediction_prefix(model: ModelSpec, number: int) -> str:
    """The start of the names of a prediction module, which follows the layers (DeepSeek-V3: model.layers.61)."""
    return f"{FAMILIES[model.family].layers}.{model.num_layers + number}."


def _prediction(naming: Naming, model: ModelSpec, number: int) -> Sources:
    """Sources of a prediction module, by the names in DeepSeek-V3.2's files and in vLLM's DeepSeekMTP."""
    ours, theirs = f"predictions.{number}", prediction_prefix(model, number)
    layer = _layer(naming, model, model.kinds[model.pattern[-1]])
    out = {f"{ours}.layer.{name}": replace(at, name=theirs + at.name) for name, at in layer.items()}
    for name, of_files in (("hidden_norm", "hnorm"), ("token_norm", "enorm"), ("norm", "shared_head.norm")):
        out |= norm(f"{ours}.{name}", theirs + of_files, model.norm_bias)
    # Their projection takes the embedding first and then the hidden state, ours the other way round.
    out[f"{ours}.projection"] = Source(f"{theirs}eh_proj.weight", lambda rows: rows.roll(rows.shape[1] // 2, 1))
    return out


def copies(model: ModelSpec) -> dict[str, str]:
    """Name of each tensor of prediction modules that repeats a weight of the model -> that weight of ours."""
    return {prediction_prefix(model, number) + theirs: ours for number in range(stored_predictions(model))
            for theirs, ours in (("embed_tokens.weight", "embedding.tokens"),
                                 ("shared_head.head.weight", "head.projection"))}  # fmt: skip


def repeated(model: ModelSpec) -> dict[str, str]:
    """Name of each tensor that files may have beside the others -> the weight of ours that it repeats."""
    tables = {} if model.encoder is None else dict.fromkeys(T5_TABLES, "embedding.tokens")
    return copies(model) | tables


def converted(model: ModelSpec, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Our weights (or gradients) taken from theirs, by name."""
    return {ours: _taken(source, state) for ours, source in sources(model).items()}


def _taken(source: Source, state: Mapping[str, Tensor]) -> Tensor:
    if not source.per_expert:
        return source.take(state[source.name])
    names = takewhile(state.__contains__, map(source.of_expert, count()))
    return torch.stack([source.take(state[name]) for name in names])


def _layer(naming: Naming, model: ModelSpec, layer: Layer) -> Sources:
    blocks: dict[str, Sources] = {}
    if (attention := layer.attention) is not None:
        within = naming.attention(attention)
        turned = rotated_width(model, attention)
        blocks["attention"] = halved(within, attention, turned) if naming.turns_neighbours else within
    if layer.mixer is not None and naming.mixer is not None:
        blocks["mixer"] = naming.mixer(layer.mixer)
    if layer.feed_forward is not None:
        blocks["feed_forward"] = naming.feed_forward(layer.feed_forward)
    out = {f"{block}.{ours}": source for block, within in blocks.items() for ours, source in within.items()}
    separate = naming.parallel_norms if layer.parallel_blocks and layer.num_norms == 2 else ()
    for ours, theirs in zip(_norm_names(layer), separate or naming.norms, strict=False):
        out |= norm(ours, theirs, layer.norm_bias)
    return out


def _norm_names(layer: Layer) -> tuple[str, ...]:
    """Our norms of a layer, in order of application."""
    if layer.output_norms:
        return "attention_output_norm", "feed_forward_output_norm"
    if layer.num_norms == 4:
        return "attention_norm", "attention_output_norm", "feed_forward_norm", "feed_forward_output_norm"
    return ("attention_norm", "feed_forward_norm")[not layer.mixes :][: layer.num_norms]


def _llama(**changes: object) -> Naming:
    """Llama's module names, which most families share."""
    usual = {"layers": "model.layers", "tokens": "model.embed_tokens", "final_norm": "model.norm",
             "attention": separate, "feed_forward": gated,
             "norms": ("input_layernorm", "post_attention_layernorm")}  # fmt: skip
    return Naming(**{**usual, **changes})  # type: ignore[arg-type]


_FOUR_NORMS = ("input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm")
_mixtral = partial(gated, module="block_sparse_moe", products=MIXTRAL_PRODUCTS)
_TWO_PRODUCTS = partial(plain, "mlp.up_proj", "mlp.down_proj")
_OUTPUT_NORMS = ("post_attention_layernorm", "post_feedforward_layernorm")
FAMILIES: Mapping[str, Naming] = {
    "arcee": _llama(feed_forward=_TWO_PRODUCTS),
    "deepseek_v2": _llama(attention=latent),
    "deepseek_v3": _llama(attention=latent, predictions=True),
    "dots1": _llama(),
    "ernie4_5": _llama(turns_neighbours=True),
    "ernie4_5_moe": _llama(
        turns_neighbours=True, feed_forward=partial(gated, choice=Source(
            "moe_statics.e_score_correction_bias", lambda theirs: theirs[0], lambda ours: (1, *ours)))
    ),
    "exaone4": _llama(norms=_OUTPUT_NORMS),
    "falcon": _llama(
        layers="transformer.h", tokens="transformer.word_embeddings", final_norm="transformer.ln_f",
        attention=partial(by_group, module="self_attention"),
        feed_forward=partial(plain, "mlp.dense_h_to_4h", "mlp.dense_4h_to_h"),
        parallel_norms=("ln_attn", "ln_mlp"),
    ),
    "gemma": _llama(),
    "gemma2": _llama(norms=_FOUR_NORMS),
    "gemma3": _llama(norms=_FOUR_NORMS),
    "glm": _llama(feed_forward=gate_above_input, turns_neighbours=True),
    "glm4": _llama(feed_forward=gate_above_input, turns_neighbours=True, norms=(
        "input_layernorm", "post_self_attn_layernorm", "post_attention_layernorm", "post_mlp_layernorm")),
    "glm4_moe": _llama(predictions=True),
    "glm4_moe_lite": _llama(attention=latent, predictions=True),
    "gpt2": Naming(
        layers="transformer.h", tokens="transformer.wte", final_norm="transformer.ln_f", attention=transposed,
        feed_forward=partial(columns_first, "mlp.c_fc", "mlp.c_proj"), norms=("ln_1", "ln_2"),
        positions=Source("transformer.wpe.weight"),
    ),
    "gpt_neox": _llama(
        layers="gpt_neox.layers", tokens="gpt_neox.embed_in", final_norm="gpt_neox.final_layer_norm",
        attention=partial(by_group, module="attention"),
        feed_forward=partial(plain, "mlp.dense_h_to_4h", "mlp.dense_4h_to_h"), head="embed_out",
    ),
    "gpt_oss": _llama(feed_forward=alternating),
    "granite": _llama(),
    "granitemoe": _llama(feed_forward=stacked),
    "hy_v3": _llama(feed_forward=partial(
        gated, shared="shared_mlp", router="router.gate", choice=Source("expert_bias"))),
    "internlm3": _llama(),
    "llama": _llama(),
    "minimax_m2": _llama(feed_forward=partial(_mixtral, choice=Source("e_score_correction_bias"))),
    "ministral3": _llama(),
    "mistral": _llama(),
    "mixtral": _llama(feed_forward=_mixtral),
    "nemotron": _llama(feed_forward=_TWO_PRODUCTS),
    "nemotron_h": _llama(
        layers="backbone.layers", tokens="backbone.embeddings", final_norm="backbone.norm_f",
        attention=partial(separate, module="mixer"),
        feed_forward=blocks_of_nemotron, norms=("norm",), mixer=mamba2,
    ),
    "olmo2": _llama(norms=_OUTPUT_NORMS),
    "olmo3": _llama(norms=_OUTPUT_NORMS),
    "olmoe": _llama(),
    "opt": Naming(
        layers="model.decoder.layers", tokens="model.decoder.embed_tokens", final_norm="model.decoder.final_layer_norm",
        attention=partial(separate, output="out_proj"), feed_forward=partial(plain, "fc1", "fc2"),
        norms=("self_attn_layer_norm", "final_layer_norm"),
        # Position p is in their row p + 2. The first two rows belong to no token.
        positions=Source("model.decoder.embed_positions.weight", lambda rows: rows.roll(-2, 0)),
    ),
    "phi3": _llama(attention=joined, feed_forward=gate_above_input),
    "qwen2": _llama(),
    "qwen2_moe": _llama(feed_forward=partial(gated, shared="shared_expert")),
    "qwen3": _llama(),
    "qwen3_moe": _llama(),
    "qwen3_next": _llama(
        attention=gated_queries, feed_forward=partial(gated, shared="shared_expert"), mixer=gated_delta_net
    ),
    "seed_oss": _llama(),
    "smollm3": _llama(),
    "stablelm": _llama(),
    "t5": _llama(layers="encoder.block", tokens="shared"),  # the first stack; all weights are in t5_sources.py
    "starcoder2": _llama(feed_forward=partial(plain, "mlp.c_fc", "mlp.c_proj")),
}  # fmt: skip
