"""Plan <-> the model in MaxText's YAML: by its name, or by its sizes.

MaxText e591f30c (2026-08-22), src/maxtext: configs/base.yml (defaults), models/llama2.py, qwen2.py and qwen3.py (the
blocks that are written), layers/attentions.py (init_rotary_embedding, biases), layers/embeddings.py (the scaling of
Llama 3.1), layers/nnx_decoders.py (normalize_embedding_logits).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ....cost_models.specs.model import Attention, FeedForward, ModelSpec
from ....cost_models.specs.rope_scaling import RopeScaling
from ....profiles.model.load import load_model, model_names
from ..options import Entry, Facts, NoCounterpartError, Settings
from ..setup import Setup

# Blocks of decoder layers that are those of Llama, perhaps with experts, latent attention or norms of queries and keys;
# GPT-3's have biases everywhere, LayerNorm and learned positions.
_GPT3 = "gpt3"
_BLOCKS = ("llama2", "mistral", "mixtral", "qwen2", "qwen3", "qwen3_moe", "deepseek", _GPT3)
# configs/models/gpt3-*.yml: name -> (layers, width, heads, elements of a head, rows of the vocabulary).
_GPT3_SIZES = {"gpt3-6b": (48, 3072, 12, 256, 32768), "gpt3-22b": (48, 6144, 24, 256, 32768),
               "gpt3-175b": (96, 12288, 96, 128, 50304)}  # fmt: skip
_GPT3_POSITIONS = 16384
_ATTENTIONS = ("global", "mla")
HIDDEN, LAYERS, VOCAB, INNER = "base_emb_dim", "base_num_decoder_layers", "vocab_size", "base_mlp_dim"
HEADS, KV_HEADS, HEAD_DIM = "base_num_query_heads", "base_num_kv_heads", "head_dim"
EPSILON, THETA, ROPE = "normalization_layer_epsilon", "rope_max_timescale", "rope_type"
_SCALED = "rope_use_scale"  # of llama3.1
LEARNED = "trainable_position_size"  # rows of a table of positions, -1 for none
_BIAS, _QK_NORM, _ACTIVATIONS = "attention_bias", "use_qk_norm", "mlp_activations"
_TIED, _NORMALISED = "logits_via_embedding", "normalize_embedding_logits"
IOTA = "use_iota_embed"
# base.yml
DEFAULTS: Mapping[str, int | float] = {
    HIDDEN: 2048, HEADS: 16, KV_HEADS: 16, INNER: 7168, LAYERS: 16, HEAD_DIM: 128, VOCAB: 32000, EPSILON: 1e-5,
    THETA: 10_000,
}  # fmt: skip
_LATENT = ("q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
EXPERTS = ("num_experts", "num_experts_per_tok", "base_moe_mlp_dim", "shared_experts", "first_num_dense_layers",
            "n_routing_groups", "topk_routing_group", "routed_score_func", "routed_bias", "routed_scaling_factor",
            "sparse_matmul")  # fmt: skip
# LLaMARotaryEmbedding: its numbers are constants.
LLAMA31 = RopeScaling(kind="llama3", factor=8.0, original_max_positions=8192)


def _described(settings: Settings) -> bool:
    """Whether sizes describe the model, beside those of base.yml."""
    named = (settings.get("model_name") or "default") != "default"
    return not named and not _other_base(settings) and any(name in settings for name in (*DEFAULTS, *_LATENT, *EXPERTS))


def _other_base(settings: Settings) -> str:
    """The file that a file builds on, "" for base.yml."""
    base = str(settings.get("base_config") or "base.yml").rpartition("/")[2]
    return "" if base == "base.yml" else base


# Sizes of a model that is named instead.
OF_MODEL = frozenset({*DEFAULTS, *_LATENT, *EXPERTS, "decoder_block", _BIAS, _QK_NORM, _ACTIVATIONS, _TIED, _NORMALISED,
                      ROPE, _SCALED, LEARNED, "use_post_attn_norm", "use_post_ffw_norm"})  # fmt: skip


def twin_of(data: Settings) -> ModelSpec | None:
    """The model of the catalogue of the family and the sizes of a file whose decoder_block is not read by its sizes."""
    block = str(data.get("decoder_block") or "")
    if not _described(data) or not block or block in _BLOCKS:
        return None
    sizes = tuple(data.get(name) or DEFAULTS[name] for name in (LAYERS, HIDDEN, HEADS, KV_HEADS, HEAD_DIM, INNER))
    specs = (load_model(name)[0] for name in model_names())
    return next((spec for spec in specs if spec.family.startswith(block) and _sizes(spec) == sizes), None)


def _sizes(spec: ModelSpec) -> tuple[int, ...]:
    """Layers, width, heads, heads of keys, elements of a head and width of the blocks; () for a model without these."""
    block = spec.feed_forwards[0] if spec.feed_forwards else None
    if not spec.attentions or not isinstance(block, FeedForward):
        return ()
    attention = spec.attentions[0]
    return (spec.num_layers, spec.hidden, attention.heads, attention.kv_heads, attention.head_dim, block.inner)


def _given(settings: Settings, option: str) -> Any:
    return settings.get(option) or DEFAULTS[option]


def _entry(field: str, options: tuple[str, ...], write: Callable[[Setup], Settings],
           read: Callable[[Settings, Facts], Facts]) -> Entry:  # fmt: skip
    """An entry that is read where sizes describe the model."""
    return Entry(
        (field,), options, write, lambda settings, facts: read(settings, facts) if _described(settings) else {}
    )


def _same(field: str, option: str, get: Callable[[Setup], Any], fact: str = "") -> Entry:
    """A field under one option, always written. fact: its name in the explicit form."""
    return _entry(field, (option,), lambda setup: {option: get(setup)},
                  lambda settings, facts: {fact or field: _given(settings, option)})  # fmt: skip


def _attention_of(setup: Setup) -> Attention:
    return setup.model.attentions[0]


def _embedding_read(settings: Settings, facts: Facts) -> Facts:
    if not settings.get(IOTA):
        return {}
    return {"notes": [*facts.get("notes", []), "use_iota_embed: priced as a lookup of rows, not as a product"]}


def _inner(setup: Setup) -> int:
    block = setup.model.feed_forwards[0]
    return block.inner if isinstance(block, FeedForward) else 0


def _name_read(settings: Settings, facts: Facts) -> Facts:
    if base := _other_base(settings):
        raise NoCounterpartError(f"base_config: the rest is in {base}: give it as a further FILE")
    if (kind := settings.get("attention_type") or "global") not in _ATTENTIONS:
        raise NoCounterpartError(f"attention_type `{kind}` has windows or chunks that are not read")
    name = settings.get("model_name") or "default"
    sizes = [size for size in (*DEFAULTS, *_LATENT, *EXPERTS) if size in settings]
    if name != "default" and settings.get("override_model_config") and sizes:
        raise NoCounterpartError(f"override_model_config: {sizes[0]} is another than that of {name}")
    if name in _GPT3_SIZES:
        layers, hidden, heads, width, vocab = _GPT3_SIZES[name]
        return {"model.layers": layers, "model.hidden": hidden, "model.heads": heads, "model.head_dim": width,
                "model.vocab": vocab, "model.ffn_hidden": 4 * hidden, "model.gated_mlp": False, "model.bias": True,
                "model.learned_positions": _GPT3_POSITIONS, "model.tied_embeddings": True,
                "model.norm_epsilon": DEFAULTS[EPSILON]}  # fmt: skip
    return {} if name == "default" else {"model_name": name}


def _block_write(setup: Setup) -> Settings:
    attention = _attention_of(setup)
    return {"decoder_block": "qwen3" if attention.norm_parameters else "qwen2" if attention.qkv_bias else "llama2"}


def _block_read(settings: Settings, facts: Facts) -> Facts:
    if (block := settings.get("decoder_block") or "llama2") not in _BLOCKS:
        raise NoCounterpartError(f"decoder_block `{block}` is not read by its sizes: give model_name",
                                 hint=f"known: {', '.join(_BLOCKS)}")  # fmt: skip
    return {}


def _is_gpt3(settings: Settings) -> bool:
    return settings.get("decoder_block") == _GPT3


def _attention_write(setup: Setup) -> Settings:
    attention = _attention_of(setup)
    return {HEADS: attention.heads, KV_HEADS: attention.kv_heads, HEAD_DIM: attention.head_dim,
            _BIAS: attention.qkv_bias, _QK_NORM: attention.norm_parameters > 0}  # fmt: skip


def _attention_read(settings: Settings, facts: Facts) -> Facts:
    biases = {"model.bias": True} if _is_gpt3(settings) else {"model.qkv_bias": bool(settings.get(_BIAS))}
    out: Facts = {"model.heads": _given(settings, HEADS), **biases}
    if settings.get("attention_type") == "mla":
        latent = {"kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128}
        return out | {"model.mla": latent | {name: settings[name] for name in _LATENT if settings.get(name)}}
    width = _given(settings, HEAD_DIM)
    norms = {"model.qk_norm": 2 * width} if settings.get(_QK_NORM) else {}
    return out | {"model.kv_heads": _given(settings, KV_HEADS), "model.head_dim": width, **norms}


def _feed_forward_read(settings: Settings, facts: Facts) -> Facts:
    gated = len(settings.get(_ACTIVATIONS) or ("silu", "linear")) > 1
    return {"model.ffn_hidden": _given(settings, INNER), "model.gated_mlp": gated}


def _rope_write(setup: Setup) -> Settings:
    stretched = {ROPE: "llama3.1"} if setup.model.trained_scaling is not None else {}
    return {THETA: setup.model.rope_theta, **stretched}


def _rope_read(settings: Settings, facts: Facts) -> Facts:
    learned = max(settings.get(LEARNED) or 0, 0)
    if bool(learned) != _is_gpt3(settings):
        raise NoCounterpartError(f"{LEARNED} `{learned}`: learned positions are read with decoder_block {_GPT3} alone")
    if learned:
        return {"model.learned_positions": learned}
    out: Facts = {"model.rope_theta": _given(settings, THETA)}
    kind = settings.get(ROPE) or "default"
    if kind == "default" or (kind == "llama3.1" and settings.get(_SCALED) is False):
        return out
    if kind == "llama3.1":
        return out | {"model.rope_scaling": {
            "type": LLAMA31.kind, "factor": LLAMA31.factor, "low_freq_factor": LLAMA31.low_freq_factor,
            "high_freq_factor": LLAMA31.high_freq_factor,
            "original_max_position_embeddings": LLAMA31.original_max_positions}}  # fmt: skip
    note = f"{ROPE} {kind}: its scaling is not read, positions are taken as those of rope_theta"
    return out | {"notes": [*facts.get("notes", []), note]}


def _tied_write(setup: Setup) -> Settings:
    """Logits of a shared table are divided by the root of the width unless that is switched off."""
    tied = setup.model.tied_embeddings
    return {_TIED: tied, **({_NORMALISED: False} if tied else {})}


def _experts_read(settings: Settings, facts: Facts) -> Facts:
    experts = settings.get("num_experts") or 1
    if experts == 1:
        return {}
    if settings.get("sparse_matmul") is False and (settings.get("capacity_factor") or -1) <= 0:
        raise NoCounterpartError("sparse_matmul is off: every expert computes every token")
    inner = settings.get("base_moe_mlp_dim") or -1
    dense = settings.get("first_num_dense_layers") or 0
    out: Facts = {
        "experts": experts, "topk": settings.get("num_experts_per_tok") or 1,
        "expert_ffn": inner if inner > 0 else facts["model.ffn_hidden"], "shared": settings.get("shared_experts") or 0,
        "router_scores": (scores := settings.get("routed_score_func") or "softmax"),
        "router_normalised": settings.get("decoder_block") != "deepseek" or scores == "sigmoid",
        "choice_bias": bool(settings.get("routed_bias")), "router_scale": settings.get("routed_scaling_factor") or 1.0,
    }  # fmt: skip
    if dense:
        out["moe_layers"] = facts["model.layers"] - dense
    if (groups := settings.get("n_routing_groups") or -1) > 1:
        out |= {"groups": groups, "top_groups": settings.get("topk_routing_group")}
    return {"model.moe": out}


def _modules_read(settings: Settings, facts: Facts) -> Facts:
    return {"model.mtp_layers": modules} if (modules := settings.get("mtp_num_layers")) else {}


MODEL = (
    Entry(("model_name",), ("model_name", "base_config", "override_model_config", "attention_type"),
          lambda setup: {"base_config": "base.yml", "model_name": "default"}, _name_read),
    _entry("model.kinds", ("decoder_block",), _block_write, _block_read),
    _same("model.layers", LAYERS, lambda setup: setup.model.num_layers),
    _same("model.hidden", HIDDEN, lambda setup: setup.model.hidden),
    _entry("model.attention", (HEADS, KV_HEADS, HEAD_DIM, _BIAS, _QK_NORM, *_LATENT), _attention_write,
           _attention_read),
    _entry("model.feed_forward", (INNER, _ACTIVATIONS), lambda setup: {INNER: _inner(setup)}, _feed_forward_read),
    _same("model.vocab", VOCAB, lambda setup: setup.model.vocab),
    _same("model.norm_epsilon", EPSILON, lambda setup: setup.model.norm_epsilon),
    _entry("model.positions", (THETA, ROPE, _SCALED, LEARNED), _rope_write, _rope_read),
    _entry("model.max_positions", ("max_target_length",), lambda setup: {},
           lambda settings, facts: {"model.max_positions": facts["workload.seq_len"]}),
    _entry("model.tied_embeddings", (_TIED, _NORMALISED), _tied_write,
           lambda settings, facts: {"model.tied_embeddings": bool(settings.get(_TIED))}),
    _entry("model.moe", EXPERTS, lambda setup: {}, _experts_read),
    _entry("model.mtp_layers", ("mtp_num_layers",), lambda setup: {}, _modules_read),
    Entry((), (IOTA,), lambda setup: {}, _embedding_read),
)  # fmt: skip
