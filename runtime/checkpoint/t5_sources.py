"""Maps the weights of a model with two stacks to the files of T5 (transformers 5.24, T5ForConditionalGeneration)."""

from __future__ import annotations

from ...cost_models.specs.model import FeedForward, Layer, ModelSpec
from .sources import Source, Sources, norm

# Tensors of files that repeat the token table, and one of first files that no model has (`_tied_weights_keys` and
# `_keys_to_ignore_on_load_unexpected` of T5ForConditionalGeneration).
T5_TABLES = ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight")
T5_UNUSED = "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight"


def t5_sources(model: ModelSpec) -> Sources:
    """All weights. A head of its own is version 1.1's."""
    of_encoder = 0 if model.encoder is None else model.encoder.layers
    out = {"embedding.tokens": Source("shared.weight")}
    for index, kind in enumerate(model.pattern):
        stack, block = ("encoder", index) if index < of_encoder else ("decoder", index - of_encoder)
        out |= _layer(f"layers.{index}", f"{stack}.block.{block}", model.kinds[kind])
        if block == 0:
            table = f"{stack}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
            out[f"{stack}_bias.table"] = Source(table)
    out |= {**norm("encoder_norm", "encoder.final_layer_norm", False),
            **norm("head.norm", "decoder.final_layer_norm", False)}  # fmt: skip
    return out if model.tied_embeddings else {**out, "head.projection": Source("lm_head.weight")}


def _layer(ours: str, theirs: str, layer: Layer) -> Sources:
    blocks = ["attention", *["cross_attention"] * (layer.cross_attention is not None), "feed_forward"]
    out: Sources = {}
    for number, block in enumerate(blocks):
        within = f"{theirs}.layer.{number}"
        out |= norm(f"{ours}.{block}_norm", f"{within}.layer_norm", False)
        for name, module in _products(block, layer):
            out[f"{ours}.{block}.{name}"] = Source(f"{within}.{module}.weight")
    return out


def _products(block: str, layer: Layer) -> list[tuple[str, str]]:
    """Our name of each product of a block, and theirs."""
    if block != "feed_forward":
        module = "SelfAttention" if block == "attention" else "EncDecAttention"
        return [(name, f"{module}.{name}") for name in "qkvo"]
    gated = isinstance(layer.feed_forward, FeedForward) and layer.feed_forward.gated
    inputs = [("gate", "wi_0"), ("up", "wi_1")] if gated else [("up", "wi")]
    return [(name, f"DenseReluDense.{theirs}") for name, theirs in (*inputs, ("down", "wo"))]
