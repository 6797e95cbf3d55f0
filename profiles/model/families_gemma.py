"""The generations of Gemma: config.json -> ModelSpec; defaults as in `families.py`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import sqrt
from typing import Any

from ...cost_models.specs.layer_inputs import LayerInputs
from ...cost_models.specs.model import Attention, FeedForward, Layer, MixtureOfExperts, ModelSpec
from .blocks import assemble, attention_of, dense_model, num_layers_of, window_size, windows_of
from .fields import Fields
from .rope import window_rope_theta


def _as_gemma(spec: ModelSpec) -> ModelSpec:
    """All generations scale embeddings by the root of their width, and their norms multiply by 1 + weight."""
    return replace(spec, embedding_scale=sqrt(spec.hidden), unit_offset_norms=True)


def gemma(f: Fields) -> ModelSpec:
    hidden = f.count("hidden_size")
    bias = f.flag("attention_bias", False)
    attention = attention_of(f, hidden, head_dim=256, bias=(bias, bias))
    return _as_gemma(dense_model(f, "gemma", attention, hidden, tied=True))


def _capped(
    f: Fields, attention: Attention, softcaps: tuple[float | None, float | None]
) -> tuple[Attention, float | None]:
    """Scores of Gemma 2 and 3 by a width of their own, with a cap; and the cap of the logits. softcaps: of scores and
    logits where the config has none."""
    scores, logits = (
        f.positive(name) if name in f.data else default
        for name, default in zip(("attn_logit_softcapping", "final_logit_softcapping"), softcaps, strict=True)
    )
    width = f.positive("query_pre_attn_scalar") or 256.0
    scale = None if width == attention.head_dim else width**-0.5
    return replace(attention, score_scale=scale, score_softcap=scores), logits


def gemma2(f: Fields) -> ModelSpec:
    """Norms before and after both blocks; every other layer slides, the first one included."""
    hidden, layers = f.count("hidden_size"), num_layers_of(f)
    bias = f.flag("attention_bias", False)
    attention = attention_of(f, hidden, head_dim=256, bias=(bias, bias))
    attention, softcap = _capped(f, attention, (50.0, 30.0))
    windows = windows_of(f, layers, window_size(f, "sliding_window", 4096), lambda index: index % 2 == 0)
    spec = dense_model(f, "gemma2", attention, hidden, windows=windows, num_norms=4, tied=True)
    return replace(_as_gemma(spec), logit_softcap=softcap)


def gemma3(f: Fields) -> ModelSpec:
    """Five sliding layers, then a full one. Published 4B configs leave out sizes that are the family's defaults."""
    hidden, layers = f.count("hidden_size"), num_layers_of(f)
    bias = f.flag("attention_bias", False)
    attention = attention_of(f, hidden, heads=f.count("num_attention_heads", default=8),
                           kv_heads=f.count("num_key_value_heads", default=4), head_dim=256, bias=(bias, bias),
                           head_norms=True)  # fmt: skip
    attention, softcap = _capped(f, attention, (None, None))
    every = f.count("sliding_window_pattern", "_sliding_window_pattern", default=6)
    windows = windows_of(f, layers, window_size(f, "sliding_window", 4096), lambda index: (index + 1) % every != 0)
    spec = dense_model(f, "gemma3", attention, hidden, windows=windows, num_norms=4, tied=True, vocab=262_208,
                       max_positions=f.count("max_position_embeddings", default=131_072))  # fmt: skip
    return replace(_as_gemma(spec), logit_softcap=softcap, window_rope_theta=window_rope_theta(f, 10_000.0))


# Parts of other models of the generation: field -> what of it has no formula.
_PARTS = {
    "hidden_size_per_layer_input": "embeddings of each layer",
    "num_kv_shared_layers": "keys and values of an earlier layer",
}  # fmt: skip


def _block_of_gemma4(f: Fields) -> tuple[FeedForward | MixtureOfExperts, int]:
    """The feed-forward block and the norms of a layer. Beside experts, the dense block is one that all tokens see; both
    have a norm of their output, the experts one of their input, and the router one with weights."""
    inner = f.count("intermediate_size")
    if not f.flag("enable_moe_block", False):
        return FeedForward(inner=inner), 4
    return MixtureOfExperts(
        experts=f.count("num_experts"), top_k=f.count("top_k_experts"), expert_inner=f.count("moe_intermediate_size"),
        shared_inner=inner, router_factors=True, branch_norms=True,
    ), 7  # fmt: skip


def gemma4(f: Fields) -> ModelSpec:
    """Full layers have wider heads, fewer of keys, and may take values out of the projection of keys; norms of queries,
    keys and values, the latter without weights (5.24). Norms multiply by their weight, unlike before."""
    hidden, layers, bias = f.count("hidden_size"), num_layers_of(f), f.flag("attention_bias", False)
    given = {"hidden_size_per_layer_input": f.count("hidden_size_per_layer_input", default=256, minimum=0),
             "num_kv_shared_layers": f.count("num_kv_shared_layers", default=0, minimum=0)}  # fmt: skip
    for name, value in given.items():
        if value:
            f.problem(name, f"there is no formula for {_PARTS[name]}", "0: the model has none")
    if f.get("use_bidirectional_attention") == "all":
        f.problem("use_bidirectional_attention", "must be null or vision: text is read from left to right")
    short = attention_of(f, hidden, head_dim=256, bias=(bias, bias), head_norms=True)
    short = replace(short, window=f.count("sliding_window", default=512), score_scale=1.0, value_norm=True)
    joined, width = f.flag("attention_k_eq_v", False), f.count("global_head_dim", default=512)
    groups = f.count("num_global_key_value_heads", default=short.kv_heads) if joined else short.kv_heads
    if f.sound and short.heads % groups:
        f.problem("num_global_key_value_heads", f"{short.heads} heads are not divisible by {groups} key/value heads")
    full = replace(short, window=None, head_dim=width, value_head_dim=width, norm_parameters=2 * width,
                   kv_heads=groups, values_from_keys=joined)  # fmt: skip
    words = f.words("layer_types", layers, ("sliding_attention", "full_attention"))
    slides = [(index + 1) % 6 != 0 for index in range(layers)] if words is None else [w[0] == "s" for w in words]
    slides[-1] = False  # whatever the config has
    block, norms = _block_of_gemma4(f)
    kinds = [Layer(attention=short if sliding else full, feed_forward=block, num_norms=norms) for sliding in slides]
    spec = assemble(f, "gemma4", kinds, hidden=hidden, tied=True,
                    max_positions=f.count("max_position_embeddings", default=131_072))  # fmt: skip
    return replace(
        spec, embedding_scale=sqrt(hidden), logit_softcap=f.positive("final_logit_softcapping"),
        window_rope_theta=window_rope_theta(f, 10_000.0), partial_rotary_factor=0.25,
        unmodelled=("proportional positions", "factors of layers"),
    )  # fmt: skip


def _by_layer(
    f: Fields, name: str, layers: int, default: Callable[[int], Any], allows: Callable[[Any], bool], words: str
) -> list[Any]:
    """A value for each layer: a list, one number for all, or the default of its place."""
    value = f.get(name)
    if value is None:
        return [default(index) for index in range(layers)]
    values = value if isinstance(value, list) else [value] * layers
    if len(values) != layers:
        f.problem(name, f"has {len(values)} entries for {layers} layers")
    elif bad := [index for index, entry in enumerate(values) if isinstance(entry, bool) or not allows(entry)]:
        f.problem(name, f"layer {bad[0]} has {values[bad[0]]!r}, which is not {words}")
    else:
        return values
    return [default(index) for index in range(layers)]


def _slides_of_gemma3n(f: Fields, layers: int, shared: int) -> list[bool]:
    """Layers with a window. The last `shared` ones take keys of the last layer of their kind before them."""
    words = f.words("layer_types", layers, ("sliding_attention", "full_attention"))
    slides = [(index + 1) % 5 != 0 for index in range(layers)] if words is None else [w[0] == "s" for w in words]
    makers, takers = set(slides[: layers - shared]), set(slides[layers - shared :])
    if f.sound and shared and not takers <= makers:
        kind = "sliding" if True in takers - makers else "full"
        f.problem("num_kv_shared_layers", f"the {layers - shared} layers before the last {shared} have no {kind} "
                  "attention whose keys and values these could take")  # fmt: skip
    return slides


def gemma3n(f: Fields) -> ModelSpec:
    """Defaults of Gemma3nTextConfig (5.24). Norms multiply by their weight; queries, keys and values are normed, the
    latter without weights. A width for each layer, since one training gives models of several (MatFormer, arXiv
    2310.07707)."""
    hidden, layers, bias = f.count("hidden_size"), num_layers_of(f), f.flag("attention_bias", False)
    own = attention_of(f, hidden, heads=f.count("num_attention_heads", default=8),
                       kv_heads=f.count("num_key_value_heads", default=2), head_dim=256, bias=(bias, bias),
                       head_norms=True)  # fmt: skip
    own = replace(own, score_scale=1.0, value_norm=True)
    taken = replace(own, takes_keys=True, value_norm=False, norm_parameters=own.head_dim)
    shared = f.count("num_kv_shared_layers", default=min(15, layers - 1), minimum=0, maximum=layers - 1)
    window = f.count("sliding_window", default=512)
    widths = _by_layer(f, "intermediate_size", layers, lambda index: 16_384,
                       lambda n: isinstance(n, int) and n > 0, "a whole number above 0")  # fmt: skip
    shares = _by_layer(f, "activation_sparsity_pattern", layers, lambda index: 0.95 * (layers > 10 > index),
                       lambda s: isinstance(s, int | float) and 0 <= s < 1, "a share from 0 to below 1")  # fmt: skip
    rank = f.count("laurel_rank", default=64)
    kinds = [
        Layer(attention=replace(own if index < layers - shared else taken, window=window if slides else None),
              feed_forward=FeedForward(inner=widths[index], sparsity=float(shares[index])), num_norms=4,
              augmented_rank=rank)
        for index, slides in enumerate(_slides_of_gemma3n(f, layers, shared))
    ]  # fmt: skip
    spec = assemble(f, "gemma3n", kinds, hidden=hidden, tied=True, vocab=262_400,
                    max_positions=f.count("max_position_embeddings", default=32_768))  # fmt: skip
    return replace(
        spec, embedding_scale=sqrt(hidden), window_rope_theta=window_rope_theta(f, 10_000.0),
        logit_softcap=f.positive("final_logit_softcapping") if "final_logit_softcapping" in f.data else 30.0,
        residual_streams=f.count("altup_num_inputs", default=4, minimum=2), alternates=True,
        layer_inputs=LayerInputs(rows=f.count("vocab_size_per_layer_input", default=262_144),
                                 width=f.count("hidden_size_per_layer_input", default=256)),
    )  # fmt: skip
