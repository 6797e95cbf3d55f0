"""What a model computes beyond its sizes: rotary base, norm epsilon, activation. No cost depends on them.

Where config.json leaves one out, the default of its family in transformers holds (5.23, `configuration_<family>.py`),
and `ModelSpec.assumed` names it: published models often differ from it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

from ..cost_models.specs import ModelSpec
from .model_fields import Fields


class _Defaults(NamedTuple):
    rope_theta: float | None = 10_000.0  # None: the family has no rotary positions
    norm_epsilon: float = 1e-6
    activation: str = "silu"


_FAMILIES: Mapping[str, _Defaults] = {
    "bloom": _Defaults(None, 1e-5, "gelu_tanh"),
    "falcon": _Defaults(norm_epsilon=1e-5, activation="gelu"),
    "gemma": _Defaults(activation="gelu_tanh"),
    "gemma2": _Defaults(activation="gelu_tanh"),
    "gemma3": _Defaults(1e6, activation="gelu_tanh"),
    "gemma3_text": _Defaults(1e6, activation="gelu_tanh"),
    "gpt2": _Defaults(None, 1e-5, "gelu_tanh"),
    "gpt_neox": _Defaults(norm_epsilon=1e-5, activation="gelu"),
    "gpt_oss": _Defaults(150_000.0, 1e-5),
    "gptj": _Defaults(norm_epsilon=1e-5, activation="gelu_tanh"),
    "llama4": _Defaults(500_000.0, 1e-5),
    "llama4_text": _Defaults(500_000.0, 1e-5),
    "mixtral": _Defaults(1e6, 1e-5),
    "olmo2": _Defaults(norm_epsilon=1e-5),
    "opt": _Defaults(None, 1e-5, "relu"),
    "phi3": _Defaults(norm_epsilon=1e-5),
    "qwen2_vl": _Defaults(1e6, 1e-5),
    "qwen2_5_vl": _Defaults(1e6, 1e-5),
    "qwen3_vl_moe_text": _Defaults(500_000.0),
    "qwen3_vl_text": _Defaults(500_000.0),
    "starcoder2": _Defaults(norm_epsilon=1e-5, activation="gelu_tanh"),
}
# Not in the config because the family's code says them.
_FIXED = {"bloom": {"activation"}, "gptj": {"rope_theta"}, "opt": {"norm_epsilon"}}
_EPSILONS = ("rms_norm_eps", "layer_norm_epsilon", "layer_norm_eps", "norm_epsilon", "norm_eps")
_ACTIVATIONS = ("hidden_activation", "hidden_act", "activation_function", "activation")
# Spellings of transformers and of published tables, where blocks are named after the gate -> that of ModelSpec.
_SPELLINGS = {
    "swish": "silu", "swiglu": "silu", "geglu": "gelu", "gelu_new": "gelu_tanh", "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh", "squared relu": "relu2", "squared-relu": "relu2",
}  # fmt: skip


def with_numerics(f: Fields, model_type: str, spec: ModelSpec) -> ModelSpec:
    """`spec` with what the config `f` of that type says about the three, or its family's defaults."""
    family = _FAMILIES.get(model_type, _Defaults())
    theta = _rope_theta(f)
    if f.flag("alibi", False):
        family = family._replace(rope_theta=None)
    found = {
        "rope_theta": None if family.rope_theta is None else theta,
        "norm_epsilon": _positive(f, *_EPSILONS), "activation": _activation(f, *_ACTIVATIONS),
    }  # fmt: skip
    return _filled(spec, found, family, _FIXED.get(model_type, set()))


def own_numerics(f: Fields, spec: ModelSpec) -> ModelSpec:
    """The same for our own form. Defaults: 10,000 where positions are not learned, 1e-5, SiLU for gates, else GELU."""
    gated = spec.kinds[0].feed_forward.gated
    # An explicit null: neither rotary nor learned positions, as with ALiBi.
    none = bool(spec.learned_positions) or ("rope_theta" in f.data and not f.has("rope_theta"))
    found = {
        "rope_theta": _positive(f, "rope_theta"), "norm_epsilon": _positive(f, "norm_epsilon"),
        "activation": _activation(f, "activation"),
    }  # fmt: skip
    return _filled(spec, found, _Defaults(None if none else 10_000.0, 1e-5, "silu" if gated else "gelu"), set())


def _filled(
    spec: ModelSpec, found: Mapping[str, float | str | None], family: _Defaults, fixed: set[str]
) -> ModelSpec:
    missing = [name for name, value in found.items() if value is None]
    values = {**family._asdict(), **{name: value for name, value in found.items() if value is not None}}
    assumed = tuple(name for name in missing if values[name] is not None and name not in fixed)
    return replace(spec, assumed=assumed, **values)


def _positive(f: Fields, *names: str) -> float | None:
    name = next((each for each in names if f.has(each)), None)
    if name is None:
        return None
    value = f.number(name, 1.0)
    if not 0.0 < value < float("inf"):
        f.problem(name, f"must be more than 0 and finite, is {value:g}")
    return value


def _activation(f: Fields, *names: str) -> str | None:
    name = next((each for each in names if f.has(each)), None)
    if name is None:
        return None
    value = f.get(name)
    if not isinstance(value, str):
        f.problem(name, f"must be the name of a function, is {value!r}")
        return None
    return _SPELLINGS.get(value.lower(), value.lower())


def _rope_theta(f: Fields) -> float | None:
    """Of the layers that see all tokens, where windowed ones have another."""
    nested = f.part("rope_parameters")
    if nested is not None:
        nested = nested.part("full_attention") or nested
        if nested.has("rope_theta"):
            found = _positive(nested, "rope_theta")
            f.absorb(nested)
            return found
    return _positive(f, "rope_theta", "rotary_emb_base")
