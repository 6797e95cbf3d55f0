"""The explicit form of a model: its sizes field by field, instead of the config.json of a known family."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ...cost_models.quantities.params import total_parameters
from ...cost_models.specs.model import Attention, FeedForward, Layer, Mixer, MixtureOfExperts, ModelSpec
from ...cost_models.specs.vision import VisionTower
from ..io.document import LineOf, no_line
from .explicit_experts import chosen_layers, read_experts
from .explicit_pattern import read_layers, read_mixers, read_pattern
from .explicit_stacks import parts_of_ends, read_stacks
from .fields import Fields
from .numerics import explicit_numerics
from .vision import read_tower

_MAX_LAYERS = 10_000
# Notes on a model in published tables; no cost depends on them.
_NOTES = ("name", "family", "seq_len", "source")
# Families whose factors, norms or parallel blocks these fields do not describe.
_NOT_DESCRIBED = frozenset({"falcon", "gemma", "gemma2", "gemma3", "gpt_neox", "gptj", "granite", "muse_glimmer",
                            "olmo2"})  # fmt: skip


def read_explicit_form(
    data: Mapping[str, Any], name: str, source: str = "", *, file: str = "", line: LineOf = no_line
) -> tuple[ModelSpec, list[str]]:
    """The model that these fields describe, and warnings.

    Needed: hidden, layers, heads, vocab, max_positions (or seq_len), ffn_hidden (unless every layer has experts).
    Optional: kv_heads (heads), head_dim (hidden / heads), gated_mlp (true), tied_embeddings (false), biases: qkv_bias,
    output_bias, ffn_bias, norm_bias, or all four by `bias`; qk_norm (elements), learned_positions (true or rows),
    rope_theta (10,000; null: no rotary positions), rope_scaling {type, factor, ...} as in config.json,
    no_rope_layer_interval (0; every layer of that number is without them, which is in no price),
    moe_aux_loss_coeff (0: no balancing loss), moe_aux_loss_per_sequence (false),
    partial_rotary_factor (1), norm_epsilon (1e-5), activation (silu where gated, else gelu),
    num_norms, unit_offset_norms (false), final_norm, embedding_norm, head_bias, dropout, mtp_layers, mtp_shared,
    sliding_window with window_layers (how many, or which), sink_attention, output_gate (false), `moe` {experts, topk,
    expert_ffn, ...} (explicit_experts.py), `mla` {kv_lora_rank, q_lora_rank, qk_nope_head_dim, qk_rope_head_dim,
    v_head_dim}, `mixers` with `pattern` and `mtp_pattern` (explicit_pattern.py),
    encoders (explicit_stacks.py), and `tower` {model_type, vision_config, ...}, a vision tower in the words of a
    config.json (vision.py).
    params_b, where given, is compared with the sum (warning beyond 5 %).
    Raises InputError with all problems, unknown fields included.
    """
    f = Fields(data, file=file, line=line)
    spec = explicit_numerics(f, _model(f))
    f.number("params_b", 0.0)
    f.reject_unknown(_NOTES)
    f.finish()
    spec = replace(spec, name=name, source=source)
    warnings = []
    stated, actual = f.number("params_b", 0.0), total_parameters(spec) / 1e9
    if stated and abs(actual / stated - 1) > 0.05:
        warnings.append(f"{spec.name}: these fields make {actual:.2f} B parameters, params_b says {stated:g} B")
    return spec, warnings


def _model(f: Fields) -> ModelSpec:
    hidden, num_layers = f.count("hidden"), f.count("layers", maximum=_MAX_LAYERS)
    positions = f.count("max_positions", "seq_len")
    bias = f.flag("bias", False)
    norm_bias = f.flag("norm_bias", bias)
    layers, of_mtp = _layers(f, hidden, num_layers, bias, norm_bias)
    layers, encoder = read_stacks(f, layers)
    kinds = tuple(dict.fromkeys((*layers, *of_mtp)))
    family = str(f.data.get("family", "own"))
    learned = f.get("learned_positions")
    if isinstance(learned, bool):
        rows = positions if learned else 0
    else:
        rows = f.count("learned_positions", default=0, minimum=0)
    return ModelSpec(
        name="",
        family=family,
        hidden=hidden,
        vocab=f.count("vocab"),
        kinds=kinds,
        pattern=tuple(kinds.index(layer) for layer in layers),
        max_positions=positions,
        tied_embeddings=f.flag("tied_embeddings", False),
        learned_positions=rows,
        embedding_norm=f.flag("embedding_norm", False),
        final_norm=f.flag("final_norm", True),
        norm_bias=norm_bias,
        unit_offset_norms=f.flag("unit_offset_norms", False),
        head_bias=f.flag("head_bias", False),
        mtp_layers=f.count("mtp_layers", default=0, minimum=0),
        mtp_pattern=tuple(kinds.index(layer) for layer in of_mtp),
        mtp_shared=f.flag("mtp_shared", False),
        dropout=f.flag("dropout", False),
        moe_aux_loss_coeff=f.number("moe_aux_loss_coeff", 0.0),
        moe_aux_loss_per_sequence=f.flag("moe_aux_loss_per_sequence", False),
        unmodelled=_unmodelled(f, family),
        encoder=encoder,
        tower=_tower(f),
        **parts_of_ends(f),
    )


def _tower(f: Fields) -> VisionTower | None:
    """The vision tower of a `config.json` whose language model the other fields describe."""
    part = f.part("tower")
    if part is None:
        return None
    tower = read_tower(part)
    if tower is None:
        part.problem("model_type", f"`{part.get('model_type')}` with a vision_config is no tower that has formulas")
    f.absorb(part)
    return tower


def _layers(
    f: Fields, hidden: int, num_layers: int, bias: bool, norm_bias: bool
) -> tuple[list[Layer], list[Layer]]:  # fmt: skip
    """One layer after the other; those of equal shape are equal. And those of a prediction module, where it has others
    than the last one of the model."""
    num_norms = f.count("num_norms", default=2, minimum=0)
    if f.has("pattern") or f.has("mixers"):
        norms = Layer(attention=None, feed_forward=None, num_norms=num_norms, norm_bias=norm_bias)
        return _patterned(f, hidden, num_layers, bias, norms)
    attention = _attention(f, hidden, bias)
    windows = _windows(f, num_layers)
    routed = read_experts(f, num_layers)
    gated = f.flag("gated_mlp", True)
    dense = None
    if len(routed) < num_layers or f.has("ffn_hidden"):
        dense = FeedForward(inner=f.count("ffn_hidden"), gated=gated, bias=f.flag("ffn_bias", bias))
    windowed = {window: replace(attention, window=window) for window in {None, *windows.values()}}
    layers = []
    for index in range(num_layers):
        block = routed.get(index) or dense or FeedForward(inner=1)
        seen = windowed[windows.get(index)]
        layers.append(Layer(attention=seen, feed_forward=block, num_norms=num_norms, norm_bias=norm_bias))
    if f.has("mtp_pattern"):
        f.problem("mtp_pattern", "goes with `pattern`: without one, a module is a layer as the last of the model")
    return layers, []


def _unmodelled(f: Fields, family: str) -> tuple[str, ...]:
    """The settings that change results and have no field in a ModelSpec."""
    without = f.count("no_rope_layer_interval", default=0, minimum=0)
    return ((f"family {family}",) if family in _NOT_DESCRIBED else ()) + (("no_rope_layers",) if without else ())


def _patterned(
    f: Fields, hidden: int, num_layers: int, bias: bool, norms: Layer
) -> tuple[list[Layer], list[Layer]]:  # fmt: skip
    """Layers as `pattern` has them, and those of `mtp_pattern`."""
    words = f.get("pattern")
    blocks: dict[str, Attention | Mixer | FeedForward | MixtureOfExperts] = dict(read_mixers(f))
    if isinstance(words, list) and any("attention" in str(word).split("+") for word in words):
        rotary = "rope_theta" not in f.data or f.has("rope_theta")  # an explicit null: attention without positions
        blocks["attention"] = replace(_attention(f, hidden, bias), rotary=rotary)
    if f.has("ffn_hidden"):
        gated = f.flag("gated_mlp", True)
        blocks["mlp"] = FeedForward(inner=f.count("ffn_hidden"), gated=gated, bias=f.flag("ffn_bias", bias))
    if (routed := read_experts(f, num_layers)) and isinstance(f.data.get("moe"), Mapping):
        blocks["experts"] = next(iter(routed.values()))
        if isinstance(f.data["moe"].get("experts"), list):
            f.problem("moe", "experts lists numbers, and all layers of `pattern` have as many", "give one number")
        if "moe_layers" in f.data["moe"]:
            f.problem("moe", "moe_layers repeats `pattern`", "leave it out")
    layers, windows = read_pattern(f, num_layers, blocks, norms), _windows(f, num_layers)
    windowed = [
        layer if layer.attention is None
        else replace(layer, attention=replace(layer.attention, window=windows.get(index)))
        for index, layer in enumerate(layers)
    ]  # fmt: skip
    return windowed, read_layers(f, "mtp_pattern", blocks, norms) if f.has("mtp_pattern") else []


def _attention(f: Fields, hidden: int, bias: bool) -> Attention:
    heads = f.count("heads")
    kv_heads = f.count("kv_heads", default=heads)
    head_dim = f.count("head_dim", default=max(1, hidden // heads))
    if f.sound and heads % kv_heads:
        f.problem("kv_heads", f"{heads} heads are not divisible by {kv_heads} key/value heads")
    if f.sound and not (f.has("head_dim") or f.has("mla")) and hidden % heads:
        f.problem("heads", f"hidden {hidden} is not divisible by {heads} heads, and no head_dim is given")
    qkv_bias, output_bias = f.flag("qkv_bias", bias), f.flag("output_bias", bias)
    sinks = heads if f.flag("sink_attention", False) else 0
    norms = f.count("qk_norm", default=0, minimum=0)
    attention = Attention(
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        value_head_dim=head_dim,
        qkv_bias=qkv_bias,
        output_bias=output_bias,
        norm_parameters=norms,
        sink_parameters=sinks,
        output_gate=f.flag("output_gate", False),
    )
    mla = f.part("mla")
    return attention if mla is None else _latent_attention(f, mla, attention)


def _latent_attention(f: Fields, mla: Fields, plain: Attention) -> Attention:
    """`plain` with the low-rank projections of multi-head latent attention."""
    q_rank, kv_rank = mla.optional_count("q_lora_rank"), mla.count("kv_lora_rank")
    rope = mla.count("qk_rope_head_dim")
    latent = replace(
        plain,
        kv_heads=plain.heads,
        head_dim=mla.count("qk_nope_head_dim") + rope,  # head_dim beside `mla` is the nope part in published tables
        value_head_dim=mla.count("v_head_dim"),
        norm_parameters=plain.norm_parameters or (q_rank or 0) + kv_rank,
        q_lora_rank=q_rank,
        kv_lora_rank=kv_rank,
        rope_head_dim=rope,
    )
    mla.reject_unknown()
    f.absorb(mla)
    return latent


def _windows(f: Fields, num_layers: int) -> dict[int, int]:
    """Layer -> window. A number of window_layers is spread evenly, the first layer included (as gpt-oss alternates)."""
    size = f.optional_count("sliding_window")
    chosen = chosen_layers(f, "window_layers", num_layers)
    if size is None:
        return {}
    if isinstance(chosen, int):
        chosen = [i for i in range(num_layers) if -(-(i + 1) * chosen // num_layers) > -(-i * chosen // num_layers)]
    return dict.fromkeys(chosen, size)
