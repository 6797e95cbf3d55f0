"""Blocks of a model and their activation <-> arguments of pretrain_gpt.py."""

from __future__ import annotations

from collections.abc import Mapping

from ....cost_models.specs.model import FeedForward, MixtureOfExperts, ModelSpec
from ..options import Entry, Facts, NoCounterpartError, Settings
from ..setup import Setup

# Activation -> its arguments, for gated and other blocks. Megatron has one GELU argument. It computes GELU by tanh
# where it fuses biases (fusions/fused_bias_gelu.py), and exactly elsewhere. Both variants are written with this
# argument and read as `gelu`. gpt-oss uses (up + 1) times gate sigmoid(1.702 gate), both clamped to 7
# (core/fusions/fused_bias_geglu.py).
_CLAMPED: Settings = {"--quick-geglu": True, "--activation-func-clamp-value": 7.0, "--glu-linear-offset": 1.0}
GATED_ACTIVATIONS: Mapping[str, Settings] = {"silu": {"--swiglu": True}, "clamped swiglu": _CLAMPED}
PLAIN_ACTIVATIONS: Mapping[str, Settings] = {"gelu": {}, "gelu_tanh": {}, "relu2": {"--squared-relu": True}}

# The kernel of squared ReLU also multiplies by the weights of the experts.
_FUSED_EXPERTS = "--use-fused-weighted-squared-relu"


def blocks(model: ModelSpec) -> tuple[list[FeedForward], list[MixtureOfExperts]]:
    """The distinct dense and routed blocks."""
    distinct = list(dict.fromkeys(model.feed_forwards))
    routed = [block for block in distinct if isinstance(block, MixtureOfExperts)]
    return [block for block in distinct if isinstance(block, FeedForward)], routed


def biased(model: ModelSpec) -> bool:
    """Whether linear layers have biases: attention output, blocks, experts and their router."""
    return model.attentions[0].output_bias or any(block.bias for block in blocks(model)[0])


def _write(setup: Setup) -> Settings:
    model, (dense, routed) = setup.model, blocks(setup.model)
    inner = dense[0].inner if dense else routed[0].expert_inner
    arguments = (GATED_ACTIVATIONS if model.feed_forwards[0].gated else PLAIN_ACTIVATIONS)[model.activation]
    out: Settings = {"--ffn-hidden-size": inner, **arguments}
    if "--squared-relu" in arguments and routed:  # without it experts are not fused (experts.py)
        out[_FUSED_EXPERTS] = True
    # Megatron fuses biases with GELU by default, and rejects the fusion for another function.
    return out | ({"--no-bias-gelu-fusion": True} if "--squared-relu" in arguments and biased(model) else {})


def _read(settings: Settings, facts: Facts) -> Facts:
    known = {"--swiglu": "silu", "--quick-geglu": "quick_gelu", "--squared-relu": "relu2"}
    activation = next((name for argument, name in known.items() if settings.get(argument)), "gelu")
    gated = activation in ("silu", "quick_gelu")
    activation = _clamped(activation, settings)
    hidden = facts.get("model.hidden", 0)
    # Megatron's default: 4 x hidden, or 2/3 of it in multiples of 64 when gated.
    usual = int(4 * hidden * 2 / 3 / 64) * 64 if gated else 4 * hidden
    return {"model.gated_mlp": gated, "model.ffn_hidden": settings.get("--ffn-hidden-size", usual),
            "model.activation": activation}  # fmt: skip


def _clamped(activation: str, settings: Settings) -> str:
    """The activation with its clamp. Raises InputError for a clamp that no plan has."""
    given = {name: settings.get(name) for name in ("--activation-func-clamp-value", "--glu-linear-offset")}
    if not any(given.values()):
        return activation
    if activation == "quick_gelu" and all(value == _CLAMPED[name] for name, value in given.items()):
        return "clamped swiglu"
    name, value = next((name, value) for name, value in given.items() if value)
    known = " ".join(name if value is True else f"{name} {value:g}" for name, value in _CLAMPED.items())
    raise NoCounterpartError(f"{name} {value} has no counterpart in a plan", hint=f"gpt-oss has {known}")


ENTRY = Entry(
    ("model.feed_forward",),
    ("--ffn-hidden-size", "--swiglu", "--quick-geglu", "--squared-relu", _FUSED_EXPERTS, "--no-bias-gelu-fusion",
     "--activation-func-clamp-value", "--glu-linear-offset"),
    _write,
    _read,
)  # fmt: skip
