"""Diffusion transformers of diffusers: the config.json of a transformer -> ModelSpec, by its `_class_name`.

Where a key is absent, the default of its class holds (diffusers 0.42.1, models/transformers). Pixels per latent (8 in
all autoencoders, 4 frames in that of Wan), tokens of a text, and whether each pass runs twice for guidance are those of
the pipelines (pipelines/flux, wan, dit).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from ...cost_models.specs.diffusion import Diffusion, Modulation
from ...cost_models.specs.model import Attention, FeedForward, Layer, ModelSpec
from .fields import Fields

_PIXELS = 8  # of a side of a latent
_TIMES = 256  # sines of a time step
_MOST_TOKENS = 2**20  # no table of positions bounds them
_MAX_LAYERS = 10_000  # as in blocks.py


def flux(f: Fields) -> ModelSpec:
    """Blocks of two streams with joint attention, then blocks of one stream, whose attention and feed-forward are
    parallel and share an output bias. Latents come packed, two by two."""
    heads, width = f.count("num_attention_heads", default=24), f.count("attention_head_dim", default=128)
    h, inputs = heads * width, f.count("in_channels", default=64)
    attention = Attention(heads=heads, kv_heads=heads, head_dim=width, value_head_dim=width, qkv_bias=True,
                          output_bias=True, norm_parameters=2 * width, causal=False)  # fmt: skip
    block = FeedForward(inner=4 * h, gated=False, bias=True)
    double = Layer(attention=attention, feed_forward=block, modulation=_product(h, 6), streams=2)
    single = Layer(attention=replace(attention, output_bias=False), feed_forward=block, num_norms=1,
                   parallel_blocks=True, modulation=_product(h, 3))  # fmt: skip
    layers = {double: f.count("num_layers", default=19, maximum=_MAX_LAYERS),
              single: f.count("num_single_layers", default=38, minimum=0, maximum=_MAX_LAYERS)}  # fmt: skip
    times = _two_products(_TIMES, h) * (2 if f.flag("guidance_embeds", False) else 1)
    text = _two_products(f.count("pooled_projection_dim", default=768), h)
    text += f.count("joint_attention_dim", default=4096) * h + h
    if f.count("patch_size", default=1) != 1:
        f.problem("patch_size", "must be 1: latents come packed")
    return _model(f, "flux", layers, Diffusion(
        side=2 * _PIXELS, frames=0, text_tokens=512, joins_text=True, inputs=inputs, embedders=times + text + h,
        ends=_product(h, 2).parameters,
    ))  # fmt: skip


def wan(f: Fields) -> ModelSpec:
    """Attention among the tokens of a video, and to those of its text; a table in each layer modulates it."""
    heads, width = f.count("num_attention_heads", default=40), f.count("attention_head_dim", default=128)
    h, channels = heads * width, f.count("in_channels", default=16)
    patch = f.get("patch_size") or [1, 2, 2]
    if list(patch) != [1, 2, 2]:
        f.problem("patch_size", f"must be [1, 2, 2], is {patch!r}")
    if f.has("image_dim") or f.has("added_kv_proj_dim"):
        f.problem("image_dim", "no formula for attention to an image")
    attention = Attention(heads=heads, kv_heads=heads, head_dim=width, value_head_dim=width, qkv_bias=True,
                          output_bias=True, norm_parameters=2 * h, causal=False)  # fmt: skip
    block = FeedForward(inner=f.count("ffn_dim", default=13824), gated=False, bias=True)
    normed = f.flag("cross_attn_norm", True)
    layer = Layer(attention=attention, cross_attention=replace(attention, rotary=False), feed_forward=block,
                  num_norms=2 + normed, norm_bias=True,
                  modulation=Modulation(parameters=6 * h, products=0, norms=int(normed)))  # fmt: skip
    times = _two_products(f.count("freq_dim", default=256), h) + _product(h, 6).parameters
    return _model(f, "wan", {layer: f.count("num_layers", default=40, maximum=_MAX_LAYERS)}, Diffusion(
        side=2 * _PIXELS, frames=4, text_tokens=512, joins_text=False, inputs=4 * channels, guided=True,
        embedders=times + _two_products(f.count("text_dim", default=4096), h) + h, ends=2 * h,
    ), outputs=4 * f.count("out_channels", default=channels))  # fmt: skip


def dit(f: Fields) -> ModelSpec:
    """Each layer has embedders of the time step and of the class, as diffusers writes them."""
    heads, width = f.count("num_attention_heads", default=16), f.count("attention_head_dim", default=72)
    h, patch, channels = heads * width, f.count("patch_size", default=2), f.count("in_channels", default=4)
    bias = f.flag("attention_bias", True)
    attention = Attention(heads=heads, kv_heads=heads, head_dim=width, value_head_dim=width, qkv_bias=bias,
                          output_bias=True, rotary=False, causal=False)  # fmt: skip
    classes = f.count("num_embeds_ada_norm", default=1000) + 1
    made = _product(h, 6)
    modulation = replace(made, parameters=made.parameters + _two_products(_TIMES, h) + classes * h)
    layer = Layer(attention=attention, feed_forward=FeedForward(inner=4 * h, gated=False, bias=True),
                  modulation=modulation)  # fmt: skip
    return _model(f, "dit", {layer: f.count("num_layers", default=28, maximum=_MAX_LAYERS)}, Diffusion(
        side=patch * _PIXELS, frames=0, text_tokens=0, joins_text=False, inputs=patch**2 * channels, embedders=h,
        ends=_product(h, 2).parameters, guided=True,
    ), outputs=patch**2 * f.count("out_channels", default=channels))  # fmt: skip


DIFFUSERS: Mapping[str, Callable[[Fields], ModelSpec]] = {
    "DiTTransformer2DModel": dit, "FluxTransformer2DModel": flux, "WanTransformer3DModel": wan,
}  # fmt: skip


def _two_products(inputs: int, hidden: int) -> int:
    """Elements of an embedder: two products with biases."""
    return inputs * hidden + hidden**2 + 2 * hidden


def _product(hidden: int, vectors: int) -> Modulation:
    """A product with bias that makes so many vectors."""
    return Modulation(parameters=vectors * hidden * (hidden + 1), products=vectors * hidden)


def _model(
    f: Fields, family: str, layers: Mapping[Layer, int], diffusion: Diffusion, *, outputs: int | None = None
) -> ModelSpec:
    """Kinds of layers in order, each so many times. outputs: values of a token after the last layer; None: as before
    the first one."""
    kinds = tuple(kind for kind, number in layers.items() if number)
    values = outputs or f.count("out_channels", default=diffusion.inputs)
    return ModelSpec(
        name="", family=family, hidden=_hidden(kinds), vocab=values, kinds=kinds, max_positions=_MOST_TOKENS,
        pattern=tuple(i for i, kind in enumerate(kinds) for _ in range(layers[kind])), final_norm=False, norm_bias=True,
        head_bias=True, norm_epsilon=1e-6, activation="gelu_tanh", diffusion=diffusion,
    )  # fmt: skip


def _hidden(kinds: tuple[Layer, ...]) -> int:
    attention, _ = kinds[0].transformer_blocks
    return attention.heads * attention.head_dim
