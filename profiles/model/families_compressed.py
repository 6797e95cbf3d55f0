"""Families of Hugging Face with compressed attention: config.json -> ModelSpec; defaults as in `families.py` (5.24)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Literal

from ...cost_models.layer_kinds.compressed_attention import CompressedAttention
from ...cost_models.specs.model import Layer, MixtureOfExperts, ModelSpec
from .blocks import assemble, num_layers_of, with_balancing
from .fields import Fields

_SLIDING, _SPARSE, _HEAVY = "sliding_attention", "compressed_sparse_attention", "heavily_compressed_attention"
_SCORES: Mapping[str, Literal["softmax", "sigmoid", "sqrtsoftplus"]] = {
    "softmax": "softmax", "sigmoid": "sigmoid", "sqrtsoftplus": "sqrtsoftplus",
}  # fmt: skip
_RATES = {_SPARSE: 4, _HEAVY: 128}
_RATIOS = {0: _SLIDING, 4: _SPARSE, 128: _HEAVY}  # the entries of `compress_ratios`


def deepseek_v4(f: Fields) -> ModelSpec:
    """Layers with a window only, with chosen entries of 4 tokens, and with all entries of 128; experts in all."""
    hidden, layers = f.count("hidden_size"), num_layers_of(f)
    words = _words(f, layers)
    modules = f.count("num_nextn_predict_layers", default=1, minimum=0)
    of_module = _word_of_modules(f, layers, modules)
    mixers = {word: _mixer(f, hidden, word, _rates(f)) for word in dict.fromkeys((*words, *of_module))}
    inner = f.count("moe_intermediate_size")
    scores = f.get("scoring_func") or "sqrtsoftplus"
    if str(scores) not in _SCORES:
        f.problem("scoring_func", f"`{scores}` is none of {', '.join(_SCORES)}")
    moe = MixtureOfExperts(
        experts=f.count("n_routed_experts"), top_k=f.count("num_experts_per_tok"), expert_inner=inner,
        shared_inner=inner, router_scores=_SCORES.get(str(scores), "softmax"),
        router_scale=f.number("routed_scaling_factor", 1.5),
    )  # fmt: skip
    # transformers has one shared expert, and divides the weights of a token by their sum, whatever the config has.
    ignored = ("n_shared_experts", "norm_topk_prob")
    differs = [name for name in ignored if f.has(name) and f.get(name) != 1]
    if f.flag("attention_bias", False) or f.flag("mlp_bias", False):
        f.problem("attention_bias" if f.flag("attention_bias", False) else "mlp_bias", "there is no formula for biases")
    of = {word: Layer(attention=None, mixer=mixer, feed_forward=moe) for word, mixer in mixers.items()}
    kinds = [of[word] for word in words]
    spec = assemble(f, "deepseek_v4", kinds, hidden=hidden, tied=False,
                    max_positions=f.count("max_position_embeddings", default=1_048_576))  # fmt: skip
    distinct = tuple(dict.fromkeys((*spec.kinds, *(of[word] for word in of_module))))
    spec = replace(
        spec, residual_streams=f.count("hc_mult", default=4, minimum=2), kinds=distinct, mtp_layers=modules,
        mtp_pattern=tuple(distinct.index(of[word]) for word in of_module),
        unmodelled=("residual streams mixed around blocks", "compressed attention", "positions of compressed layers",
                    "experts by a hash of the token", "clamped gates of experts", *differs),
    )  # fmt: skip
    return with_balancing(f, spec, moe, layers)


def _words(f: Fields, layers: int) -> list[str]:
    """The kind of each layer: `layer_types`, or `compress_ratios` (which also has the layers of MTP modules), or two
    heavily compressed ones and then both compressed kinds in turn."""
    # Experts by a hash of the token cost what experts by scores do.
    f.words("mlp_layer_types", layers, ("hash_moe", "moe"))
    f.count("num_hash_layers", default=3, minimum=0)
    if (words := f.words("layer_types", layers, (_SLIDING, _SPARSE, _HEAVY))) is not None:
        return words
    ratios = f.get("compress_ratios")
    if ratios is None:
        return [_HEAVY if index < 2 or index % 2 == 0 else _SPARSE for index in range(layers)]
    if not isinstance(ratios, list) or len(ratios) < layers or any(ratio not in _RATIOS for ratio in ratios):
        f.problem("compress_ratios", f"must be a list of 0, 4 or 128 for each of {layers} layers")
        return [_SLIDING] * layers
    return [_RATIOS[ratio] for ratio in ratios[:layers]]


def _word_of_modules(f: Fields, layers: int, modules: int) -> list[str]:
    """The kind of the layer of a prediction module, where `compress_ratios` goes on after the layers of the model: a
    window alone in the published ones. Empty: no other than the last of the model."""
    ratios = f.get("compress_ratios")
    rest = ratios[layers : layers + modules] if isinstance(ratios, list) else []
    if any(ratio not in _RATIOS for ratio in rest):
        return []  # `_words` has named it
    if len(set(rest)) > 1:
        f.problem("compress_ratios", f"prediction modules {', '.join(map(str, rest))} are not the same layers")
    return [_RATIOS[ratio] for ratio in rest[:1]]


def _rates(f: Fields) -> Mapping[str, int]:
    """Tokens of an entry, by the kind of layer."""
    part = f.part("compress_rates") or Fields({})
    old = {_SPARSE: "compress_rate_csa", _HEAVY: "compress_rate_hca"}
    rates = {word: f.count(old[word], default=part.count(word, default=usual)) for word, usual in _RATES.items()}
    part.reject_unknown()
    f.absorb(part)
    return rates


def _mixer(f: Fields, hidden: int, word: str, rates: Mapping[str, int]) -> CompressedAttention:
    heads, head_dim = f.count("num_attention_heads"), f.count("head_dim", default=512)
    groups = f.count("o_groups", default=8)
    if f.sound and heads % groups:
        f.problem("o_groups", f"{groups} groups do not divide {heads} heads")
    if f.count("num_key_value_heads", default=1) != 1:
        f.problem("num_key_value_heads", "must be 1: all heads share a key")
    share = f.positive("partial_rotary_factor") or f.count("qk_rope_head_dim", default=64) / head_dim
    mixer = CompressedAttention(
        heads=heads, head_dim=head_dim, query_rank=f.count("q_lora_rank", default=1024), output_groups=groups,
        output_rank=f.count("o_lora_rank", default=1024), window=f.count("sliding_window", default=128),
        rope_head_dim=max(1, int(head_dim * share)), rate=rates.get(word, 0),
    )  # fmt: skip
    if word != _SPARSE:
        return mixer
    return replace(
        mixer, overlapping=True, index_heads=f.count("index_n_heads", default=64),
        index_head_dim=f.count("index_head_dim", default=128), top_k=f.count("index_topk", default=512),
    )  # fmt: skip
