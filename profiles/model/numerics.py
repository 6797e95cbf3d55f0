"""Numerics of a model, beyond its sizes: rotary positions, norm epsilon, activation. No cost depends on them.

Where config.json leaves one out, the default of its family in transformers holds (5.23, `configuration_<family>.py`),
and `ModelSpec.assumed` names it: published models often differ from it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

from ...cost_models.specs.model import ModelSpec
from ...cost_models.specs.rope_scaling import RopeScaling
from ...errors import did_you_mean, nearest
from .fields import Fields
from .rope import rope_fields, rope_theta, with_rope


class _Defaults(NamedTuple):
    rope_theta: float | None = 10_000.0  # None: the family has no rotary positions
    norm_epsilon: float = 1e-6  # of RMSNorm and LayerNorm
    activation: str = "silu"  # as ModelSpec spells it
    rope_scaling: RopeScaling | None = None  # where the config has no block on rotary positions, or null


_FAMILIES: Mapping[str, _Defaults] = {
    "Dream": _Defaults(norm_epsilon=1e-6),
    "arcee": _Defaults(norm_epsilon=1e-5, activation="relu2"),
    "apertus": _Defaults(12_000_000.0, 1e-5, "xielu",
                         RopeScaling(kind="llama3", factor=8.0, original_max_positions=8192)),
    "bamba": _Defaults(norm_epsilon=1e-5),
    "bert": _Defaults(None, 1e-12, "gelu"),
    "bloom": _Defaults(None, 1e-5, "gelu_tanh"),
    "cohere": _Defaults(500_000.0, 1e-5),
    "cohere2": _Defaults(norm_epsilon=1e-5),
    "ernie4_5": _Defaults(500_000.0, 1e-5),
    "ernie4_5_moe": _Defaults(500_000.0, 1e-5),
    "exaone4": _Defaults(norm_epsilon=1e-5),
    "falcon": _Defaults(norm_epsilon=1e-5, activation="gelu"),
    "falcon_h1": _Defaults(norm_epsilon=1e-5),
    "falcon_mamba": _Defaults(None, 1e-5),
    "gemma": _Defaults(activation="gelu_tanh"),
    "gemma2": _Defaults(activation="gelu_tanh"),
    "gemma3": _Defaults(1e6, activation="gelu_tanh"),
    "gemma3_text": _Defaults(1e6, activation="gelu_tanh"),
    "gemma3n": _Defaults(1e6, activation="gelu_tanh"),
    "gemma3n_text": _Defaults(1e6, activation="gelu_tanh"),
    "gemma4": _Defaults(1e6, activation="gelu_tanh"),
    "gemma4_text": _Defaults(1e6, activation="gelu_tanh"),
    "glm": _Defaults(norm_epsilon=1.5625e-7),
    "glm4": _Defaults(norm_epsilon=1.5625e-7),
    "glm4_moe": _Defaults(norm_epsilon=1e-5),
    "glm4_moe_lite": _Defaults(norm_epsilon=1e-5),
    "glm_moe_dsa": _Defaults(norm_epsilon=1e-5),
    "gpt2": _Defaults(None, 1e-5, "gelu_tanh"),
    "gpt_bigcode": _Defaults(None, 1e-5, "gelu_tanh"),
    "gpt_neo": _Defaults(None, 1e-5, "gelu_tanh"),
    "gpt_neox": _Defaults(norm_epsilon=1e-5, activation="gelu"),
    "gpt_oss": _Defaults(150_000.0, 1e-5, "clamped swiglu",
                         RopeScaling(kind="yarn", factor=32.0, original_max_positions=4096, truncate=False)),
    "gptj": _Defaults(norm_epsilon=1e-5, activation="gelu_tanh"),
    "hunyuan_v1_dense": _Defaults(norm_epsilon=1e-5),
    "hunyuan_v1_moe": _Defaults(norm_epsilon=1e-5),
    "hy_v3": _Defaults(11_158_840.0, 1e-5),
    "internlm3": _Defaults(norm_epsilon=1e-5),
    "jamba": _Defaults(None),
    "kimi_linear": _Defaults(None, 1e-5),
    "lfm2": _Defaults(1e6, 1e-5),
    "lfm2_moe": _Defaults(1e6, 1e-5),
    "llada": _Defaults(norm_epsilon=1e-5),
    "llama4": _Defaults(500_000.0, 1e-5),
    "llama4_text": _Defaults(500_000.0, 1e-5),
    "mamba": _Defaults(None, 1e-5),
    "mamba2": _Defaults(None, 1e-5),
    "mimo_v2_flash": _Defaults(5e6, 1e-5),
    "minimax": _Defaults(1e6, 1e-5),
    "minimax_m2": _Defaults(5e6),
    "ministral3": _Defaults(1e6, 1e-5, rope_scaling=RopeScaling(
        kind="yarn", factor=16.0, original_max_positions=16384, mscale=1.0, mscale_all_dim=1.0)),
    "mixtral": _Defaults(1e6, 1e-5),
    "mt5": _Defaults(None, 1e-6, "gelu_tanh"),
    "nemotron": _Defaults(norm_epsilon=1e-5, activation="relu2"),
    "nemotron-nas": _Defaults(norm_epsilon=1e-5),
    "nemotron_h": _Defaults(None, 1e-5, "relu2"),
    "olmo2": _Defaults(norm_epsilon=1e-5),
    "olmo3": _Defaults(500_000.0, 1e-5),
    "olmoe": _Defaults(norm_epsilon=1e-5),
    "opt": _Defaults(None, 1e-5, "relu"),
    "phi": _Defaults(norm_epsilon=1e-5, activation="gelu_tanh"),
    "phi3": _Defaults(norm_epsilon=1e-5),
    "phi4_multimodal": _Defaults(norm_epsilon=1e-5),
    "phimoe": _Defaults(1e6, 1e-5),
    "qwen2_vl": _Defaults(1e6, 1e-5),
    "qwen2_5_vl": _Defaults(1e6, 1e-5),
    "qwen3_vl_moe_text": _Defaults(500_000.0),
    "qwen3_vl_text": _Defaults(500_000.0),
    "roberta": _Defaults(None, 1e-12, "gelu"),
    "rwkv7": _Defaults(None, 1e-5, "relu2"),
    "smollm3": _Defaults(2e6),
    "stablelm": _Defaults(norm_epsilon=1e-5),
    "starcoder2": _Defaults(norm_epsilon=1e-5, activation="gelu_tanh"),
    "step3p5": _Defaults(norm_epsilon=1e-5),
    "t5": _Defaults(None, 1e-6, "relu"),
    "whisper": _Defaults(None, 1e-5, "gelu"),
    "xlm-roberta": _Defaults(None, 1e-12, "gelu"),
}
# Numbers that are in the code of the family, so that its config has none of them.
_FIXED = {"bloom": {"activation"}, "gpt_oss": {"activation"}, "gptj": {"rope_theta"}, "opt": {"norm_epsilon"},
          "whisper": {"norm_epsilon"}}
_EPSILONS = ("rms_norm_eps", "layer_norm_epsilon", "layer_norm_eps", "norm_epsilon", "norm_eps", "layernorm_epsilon")
_ACTIVATIONS = ("hidden_activation", "hidden_act", "activation_function", "activation")
_ACTIVATION_FIELDS: Mapping[str, tuple[str, ...]] = {
    "llada": ("activation_type",),
    "gemma2": ("hidden_activation",), "gemma3": ("hidden_activation",), "gemma3_text": ("hidden_activation",),
    "gemma3n": ("hidden_activation",), "gemma3n_text": ("hidden_activation",),
    "nemotron_h": ("mlp_hidden_act",),
    "mt5": ("feed_forward_proj",),
    "t5": ("feed_forward_proj",),
    "gpt_oss": (),  # its config has silu, but its code clamps gate and input
}  # fmt: skip
# Spellings of transformers and of published tables, where blocks are named after the gate -> that of ModelSpec.
_SPELLINGS = {
    "swish": "silu", "swiglu": "silu", "geglu": "gelu", "gelu_new": "gelu_tanh", "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh", "gelu_python_tanh": "gelu_tanh", "gelu_accurate": "gelu_tanh",
    "gelu_python": "gelu", "squared relu": "relu2", "sqrelu": "relu2", "squared-relu": "relu2",
}  # fmt: skip
# The other activations of transformers (5.23, activations.py), and the gates of gpt-oss in published tables. No target
# computes them, so all targets refuse them by these names.
_OTHERS = ("clamped swiglu", "gelu_10", "hardswish", "laplace", "leaky_relu", "linear", "mish", "prelu", "quick_gelu",
           "relu6", "sigmoid", "sqrtsoftplus", "tanh", "xielu")  # fmt: skip
_ACTIVATION_NAMES = tuple(sorted({"gelu", "gelu_tanh", "relu", "relu2", "silu", *_SPELLINGS, *_OTHERS}))


def with_numerics(f: Fields, model_type: str, spec: ModelSpec) -> ModelSpec:
    """`spec` with the numerics of the config `f` of that type, or its family's defaults."""
    family = _FAMILIES.get(model_type, _Defaults())
    part = rope_fields(f)
    theta = rope_theta(f, part)
    if f.flag("alibi", False):
        family = family._replace(rope_theta=None)
    if part is not None:
        family = family._replace(rope_scaling=None)
    given = {
        "rope_theta": None if family.rope_theta is None else theta,
        "norm_epsilon": f.positive(*_EPSILONS),
        "activation": read_activation(f, *_ACTIVATION_FIELDS.get(model_type, _ACTIVATIONS)),
        "rope_scaling": None,  # `with_rope` reads the block
    }  # fmt: skip
    of_first_releases = model_type == "gemma" or f.get("feed_forward_proj") == "gated-gelu"
    if of_first_releases and given["activation"] == "gelu":
        given["activation"] = "gelu_tanh"  # what the name means in the first configs of both (GemmaConfig, T5Config)
    spec = with_rope(f, part, _filled(spec, given, family, _FIXED.get(model_type, set())))
    if part is not None:
        f.absorb(part)
    return spec


def explicit_numerics(f: Fields, spec: ModelSpec) -> ModelSpec:
    """The same for the explicit form.

    Defaults: base 10,000 where positions are not learned, epsilon 1e-5, SiLU for gates, else GELU.
    """
    gated = all(block.gated for block in spec.feed_forwards[:1])
    # An explicit null: neither rotary nor learned positions, as with ALiBi.
    none = bool(spec.learned_positions) or ("rope_theta" in f.data and not f.has("rope_theta"))
    given = {
        "rope_theta": f.positive("rope_theta"), "norm_epsilon": f.positive("norm_epsilon"),
        "activation": read_activation(f, "activation"),
    }  # fmt: skip
    defaults = _Defaults(None if none else 10_000.0, 1e-5, "silu" if gated else "gelu")
    part = f.part("rope_scaling")
    spec = with_rope(f, part, _filled(spec, given, defaults, set()))
    if part is not None:
        part.reject_unknown()
        f.absorb(part)
    return spec


def _filled(spec: ModelSpec, given: Mapping[str, float | str | None], family: _Defaults, fixed: set[str]) -> ModelSpec:
    """`spec` with the numbers that are given, else with the family's. fixed: what its code sets (not assumed)."""
    missing = [name for name, value in given.items() if value is None]
    values = {**family._asdict(), **{name: value for name, value in given.items() if value is not None}}
    assumed = tuple(name for name in missing if values[name] is not None and name not in fixed)
    return replace(spec, assumed=assumed, **values)


def read_activation(f: Fields, *names: str) -> str | None:
    """The first of `names` that is there, as ModelSpec spells it; None: there is none."""
    name = next((spelling for spelling in names if f.has(spelling)), None)
    if name is None:
        return None
    value = f.get(name)
    if not isinstance(value, str):
        f.problem(name, f"must be the name of a function, is {value!r}")
        return None
    # Tables add a remark in brackets; T5 names the whole block.
    word = value.lower().partition(" (")[0].removeprefix("gated-")
    if word not in _ACTIVATION_NAMES:
        guess, known = did_you_mean(nearest(word, _ACTIVATION_NAMES)), f"known: {', '.join(_ACTIVATION_NAMES)}"
        f.problem(name, f"`{value}` is no known activation", f"{guess} {known}".strip())
    return _SPELLINGS.get(word, word)
