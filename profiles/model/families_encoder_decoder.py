"""Families with an encoder and a decoder: config.json -> ModelSpec; defaults as in `families.py`."""

from __future__ import annotations

from dataclasses import replace

from ...cost_models.specs.encoder import Encoder
from ...cost_models.specs.model import Attention, FeedForward, Layer, ModelSpec
from .blocks import assemble
from .fields import Fields

_MAX_LAYERS = 10_000  # as in blocks.py


def t5(f: Fields) -> ModelSpec:
    """T5 and its version 1.1 with gates, Flan-T5 and mT5: learned biases by distance in place of positions, whose table
    is in the first layer of each stack; scores are not scaled; a head that is tied takes scaled inputs, or as
    `scale_decoder_outputs` of newer configs states. mT5 is of version 1.1, and no head of it takes scaled inputs."""
    multilingual = f.get("model_type") == "mt5"
    hidden, heads, width = f.count("d_model"), f.count("num_heads"), f.count("d_kv", default=64)
    layers = f.count("num_layers", maximum=_MAX_LAYERS)
    decoder_layers = f.count("num_decoder_layers", default=layers, maximum=_MAX_LAYERS)
    gated = str(f.get("feed_forward_proj") or ("gated-gelu" if multilingual else "relu")).startswith("gated-")
    block = FeedForward(inner=f.count("d_ff"), gated=gated)
    attention = Attention(heads=heads, kv_heads=heads, head_dim=width, value_head_dim=width, rotary=False,
                          score_scale=1.0)  # fmt: skip
    biased = replace(attention, relative_bias=True)
    table = f.count("relative_attention_num_buckets", default=32) * heads
    encoder = Layer(attention=replace(biased, causal=False), feed_forward=block, encodes=True)
    decoder = Layer(attention=biased, feed_forward=block, cross_attention=attention, num_norms=3)
    stacks = [stacked(encoder, layers, table), stacked(decoder, decoder_layers, table)]
    positions = f.count("n_positions", default=512)
    spec = assemble(f, "t5", stacks[0] + stacks[1], hidden=hidden, tied=True, max_positions=positions,
                    vocab=250112 if multilingual else 32128)  # fmt: skip
    scaled = f.flag("scale_decoder_outputs", spec.tied_embeddings and not multilingual)
    scale = hidden**-0.5 if scaled else 1.0
    return replace(spec, encoder=Encoder(layers=layers, max_positions=positions), logit_scale=scale)


def whisper(f: Fields) -> ModelSpec:
    """Two convolutions before the encoder, whose positions are not learned; a bias in all projections but of keys."""
    hidden = f.count("d_model")
    stacks = []
    for side in ("encoder", "decoder"):
        heads = f.count(f"{side}_attention_heads")
        if f.sound and hidden % heads:
            f.problem(f"{side}_attention_heads", f"d_model {hidden} is not divisible by {heads} heads")
        width = max(1, hidden // heads)
        attention = Attention(heads=heads, kv_heads=heads, head_dim=width, value_head_dim=width, qkv_bias=True,
                              output_bias=True, key_bias=False, rotary=False)  # fmt: skip
        encodes = side == "encoder"
        layer = Layer(
            attention=replace(attention, causal=not encodes), cross_attention=None if encodes else attention,
            feed_forward=FeedForward(inner=f.count(f"{side}_ffn_dim"), gated=False, bias=True),
            num_norms=2 if encodes else 3, norm_bias=True, encodes=encodes,
        )  # fmt: skip
        stacks.append(stacked(layer, f.count(f"{side}_layers", maximum=_MAX_LAYERS)))
    positions = f.count("max_target_positions", default=448)
    spec = assemble(f, "whisper", stacks[0] + stacks[1], hidden=hidden, tied=True, max_positions=positions,
                    vocab=51865, norm_bias=True, dropout=f.number("dropout", 0.0) > 0)  # fmt: skip
    encoder = Encoder(layers=len(stacks[0]), max_positions=f.count("max_source_positions", default=1500),
                      mel_bins=f.count("num_mel_bins", default=80))  # fmt: skip
    scale = hidden**0.5 if f.flag("scale_embedding", False) else 1.0
    return replace(spec, encoder=encoder, learned_positions=positions, embedding_scale=scale)


def stacked(layer: Layer, layers: int, table: int = 0) -> list[Layer]:
    """The layers of a stack. table: elements of the biases by distance, which the first one holds."""
    first = replace(layer, starts=True)
    if table and first.attention is not None:
        first = replace(first, attention=replace(first.attention, bias_parameters=table))
    return [first, *[layer] * (layers - 1)]
