"""Language models that fill in masked tokens: config.json -> ModelSpec; defaults as in the code of each release.

LLaDA has the fields of OLMo (the code of GSAI-ML/LLaDA-8B-Instruct on Hugging Face), Dream those of Qwen 2
(Dream-org/Dream-v0-Instruct-7B). Their tokens attend to those before and after them.
"""

from __future__ import annotations

from dataclasses import replace

from ...cost_models.specs.model import Attention, FeedForward, Layer, ModelSpec
from .blocks import attention_of, dense_model
from .fields import Fields

_MAX_LAYERS = 10_000  # as in blocks.py


def llada(f: Fields) -> ModelSpec:
    """Blocks of Llama. `embedding_size` are the rows of the table, which may be more than the tokens."""
    hidden, heads = f.count("d_model"), f.count("n_heads")
    if (kind := f.get("block_type")) != "llama":
        f.problem("block_type", f"`{kind}` is not described, `llama` is")
    if f.sound and hidden % heads:
        f.problem("n_heads", f"d_model {hidden} is not divisible by {heads} heads")
    groups, width = f.count("n_kv_heads", default=heads), max(1, hidden // heads)
    if f.sound and heads % groups:
        f.problem("n_kv_heads", f"{heads} heads are not divisible by {groups} key/value heads")
    bias = f.flag("include_bias", False)
    attention = Attention(heads=heads, kv_heads=groups, head_dim=width, value_head_dim=width, causal=False,
                          qkv_bias=bias or f.flag("include_qkv_bias", False), output_bias=bias)  # fmt: skip
    layer = Layer(attention=attention, feed_forward=FeedForward(inner=f.count("mlp_hidden_size"), bias=bias))
    layers = f.count("n_layers", maximum=_MAX_LAYERS)
    return ModelSpec(
        name="", family="llada", hidden=hidden, vocab=f.count("embedding_size", "vocab_size"), kinds=(layer,),
        pattern=(0,) * layers, max_positions=f.count("max_sequence_length", default=1024),
        tied_embeddings=f.flag("weight_tying", True), unmasks=True,
    )  # fmt: skip


def dream(f: Fields) -> ModelSpec:
    """Qwen 2 whose attention sees all tokens."""
    hidden = f.count("hidden_size")
    attention = replace(attention_of(f, hidden, bias=(True, False)), causal=False)
    return replace(dense_model(f, "Dream", attention, hidden), unmasks=True)
