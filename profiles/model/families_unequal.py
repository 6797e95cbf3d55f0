"""Decoders that a search gave layers of unlike widths: config.json -> ModelSpec; defaults as in `families.py`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...cost_models.specs.model import Attention, FeedForward, Layer, ModelSpec
from .blocks import assemble, attention_of, num_layers_of
from .fields import Fields

_MULTIPLE = 256  # of widths of feed-forward blocks


def nemotron_nas(f: Fields) -> ModelSpec:
    """Llama-Nemotron Super and Ultra (published code of NVIDIA, DeciLM): Llama's blocks. `block_configs` states of each
    layer the heads that share keys and values, the width of its feed-forward block, and which of both it lacks, with
    the norm before it."""
    hidden, heads = f.count("hidden_size"), f.count("num_attention_heads")
    blocks, layers = f.get("block_configs"), num_layers_of(f)
    if not isinstance(blocks, list) or len(blocks) != layers:
        f.problem("block_configs", f"must be a list of {layers} layers")
        blocks = []
    bias = f.flag("attention_bias", False)
    made = [_layer(f, place, block, hidden, heads, bias=bias) for place, block in enumerate(blocks)]
    one = Layer(attention=attention_of(f, hidden), feed_forward=FeedForward(inner=hidden))
    return assemble(f, "nemotron_nas", made or [one], hidden=hidden, tied=False,
                    max_positions=f.count("max_position_embeddings", default=2048))  # fmt: skip


def _layer(f: Fields, place: int, block: Any, hidden: int, heads: int, *, bias: bool) -> Layer:
    parts = block if isinstance(block, Mapping) else {}
    attention, forward = (_part(f, place, parts, name) for name in ("attention", "ffn"))
    shared, times = (attention or {}).get("n_heads_in_group"), (forward or {}).get("ffn_mult")
    if attention is not None and not (isinstance(shared, int) and shared > 0 and heads % shared == 0):
        f.problem("block_configs", f"layer {place}: n_heads_in_group must divide {heads} heads, is {shared!r}")
        attention = None
    if forward is not None and not (isinstance(times, int | float) and times > 0):
        f.problem("block_configs", f"layer {place}: ffn_mult must be more than 0, is {times!r}")
        forward = None
    inner = 0 if forward is None or times is None else -(-int(2 * times * hidden / 3) // _MULTIPLE) * _MULTIPLE
    width = max(1, hidden // heads)
    return Layer(
        attention=None if attention is None or shared is None else Attention(
            heads=heads, kv_heads=heads // shared, head_dim=width, value_head_dim=width, qkv_bias=bias,
            output_bias=bias),
        feed_forward=FeedForward(inner=inner, bias=f.flag("mlp_bias", False)) if inner else None,
        num_norms=(attention is not None) + bool(inner),
    )  # fmt: skip


def _part(f: Fields, place: int, parts: Mapping[str, Any], name: str) -> Mapping[str, Any] | None:
    """The block that the layer states, None where it has none. One of another kind is no part of Llama."""
    part = parts.get(name)
    if not isinstance(part, Mapping):
        f.problem("block_configs", f"layer {place}: `{name}` must be a mapping, is {part!r}")
        return None
    other = [key for key, value in part.items() if value and key not in ("no_op", "n_heads_in_group", "ffn_mult")]
    if other:
        f.problem("block_configs", f"layer {place}: {name} with `{'`, `'.join(other)}` is not described")
    return None if part.get("no_op") else part
