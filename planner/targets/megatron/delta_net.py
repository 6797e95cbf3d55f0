"""Layers of gated DeltaNet in the place of attention (Qwen3-Next) <-> arguments of pretrain_gpt.py.

Read in Megatron-LM core_v0.16.1 to d98e8a64: core/models/gpt/experimental_attention_variant_module_specs.py,
core/ssm/gated_delta_net, core/transformer/transformer_config.py, gpt_builders.py.
"""

from __future__ import annotations

from ....cost_models.layer_kinds.gated_delta_net import GatedDeltaNet
from ....cost_models.specs.model import Layer, ModelSpec
from ....errors import InputError
from ..option_lists import OptionList, is_before
from ..options import Entry, Facts, NoCounterpartError, Settings
from ..setup import Setup
from .layer_patterns import pattern_text, read_pattern

VARIANT, FREQUENCY = "--experimental-attention-variant", "--linear-attention-freq"
# The second is the name from 0.20 on. That release also accepts the first.
_NAMES = ("gated_delta_net", "gdn")
# The sizes of a mixer: field -> its argument, and the default of TransformerConfig.
_SIZES = {
    "key_heads": ("--linear-num-key-heads", 16), "value_heads": ("--linear-num-value-heads", 32),
    "key_head_dim": ("--linear-key-head-dim", 128), "value_head_dim": ("--linear-value-head-dim", 128),
    "conv_kernel": ("--linear-conv-kernel-dim", 4),
}  # fmt: skip


def replaces_attention(kind: Layer) -> bool:
    """Whether a layer equals a transformer layer except for its attention."""
    return isinstance(kind.mixer, GatedDeltaNet) and kind.attention is None and kind.feed_forward is not None


def has_delta_nets(model: ModelSpec) -> bool:
    return any(map(replaces_attention, model.kinds))


def cannot_replace(model: ModelSpec, options: OptionList | None) -> list[str]:
    """One sentence per reason why the gated DeltaNet layers of a model cannot be written as arguments."""
    if not has_delta_nets(model):
        return []
    last = model.kinds[model.pattern[-1]]
    reasons = {
        "model.kinds: pretrain_gpt.py has gated DeltaNet beside layers of attention, not alone": not model.attentions,
        "model.kinds.mixer: all layers of gated DeltaNet have the same sizes": len(set(model.mixers)) > 1,
        f"model.activation: gated DeltaNet takes silu, not {model.activation}": model.activation != "silu",
        "model.mtp_layers: a prediction module has attention before Megatron-LM 0.19, and the last layer has none":
            model.mtp_layers > 0 and last.attention is None and is_before(options, "megatron", "0.19"),
    }  # fmt: skip
    return [text for text, applies in reasons.items() if applies]


def cannot_run(setup: Setup, options: OptionList | None) -> list[tuple[tuple[str, ...], str]]:
    """(fields, sentence) per feature that the core lacks in its first releases with gated DeltaNet."""
    layout, text = setup.layout, "gated DeltaNet {} before Megatron-LM {}"
    reasons = {
        (("cp",), text.format(f"is not split over cp {layout.cp}", "0.18")):
            layout.cp > 1 and is_before(options, "megatron", "0.18"),
        (("ep_overlap",), text.format("has no weight gradients apart (backward_dw)", "0.17")):
            layout.ep_overlap > 0 and is_before(options, "megatron", "0.17"),
    }  # fmt: skip
    return [reason for reason, applies in reasons.items() if applies and has_delta_nets(setup.model)]


def _write(setup: Setup) -> Settings:
    model = setup.model
    if not has_delta_nets(model):
        return {}
    (mixer,) = set(model.mixers)
    linear = [int(replaces_attention(model.kinds[kind])) for kind in model.pattern]
    sizes = {argument: getattr(mixer, size) for size, (argument, _) in _SIZES.items()}
    return {VARIANT: _NAMES[0], FREQUENCY: _frequency(linear), **sizes}


def _frequency(linear: list[int]) -> str:
    """N where every N-th layer is attention, or else the pattern."""
    every = linear.index(0) + 1
    regular = [int((index + 1) % every > 0) for index in range(len(linear))]
    return str(every) if linear == regular else pattern_text(linear)


def _read_frequency(value: object, layers: int) -> list[int]:
    """The 0/1 of every layer, 1 where it is linear. Raises InputError for an invalid frequency."""
    if not str(value).isdigit():
        return read_pattern(FREQUENCY, value, layers)
    if not int(str(value)):
        raise InputError(f"{FREQUENCY} 0 is no frequency", hint="4: every fourth layer is attention")
    return [int((index + 1) % int(str(value)) > 0) for index in range(layers)]


def _read(settings: Settings, facts: Facts) -> Facts:
    if (variant := settings.get(VARIANT)) is None:
        return {}
    if variant not in _NAMES:
        raise NoCounterpartError(
            f"{VARIANT} {variant} has no counterpart in a plan", hint=f"known: {', '.join(_NAMES)}"
        )
    if FREQUENCY not in settings:
        raise InputError(f"{VARIANT} {variant} needs {FREQUENCY}", hint="4: every fourth layer is attention")
    layers = facts.get("model.layers", 0)
    linear = _read_frequency(settings[FREQUENCY], layers)
    routed = [0] * layers
    if settings.get("--num-experts"):
        routed = read_pattern("--moe-layer-freq", settings.get("--moe-layer-freq", 1), layers)
    name = GatedDeltaNet.kind
    out: Facts = {"model.pattern": [f"{name if is_linear else 'attention'}+{'experts' if is_routed else 'mlp'}"
                                    for is_linear, is_routed in zip(linear, routed, strict=True)]}  # fmt: skip
    if any(linear):
        sizes = {size: settings.get(argument, usual) for size, (argument, usual) in _SIZES.items()}
        out["model.mixers"] = {name: {"kind": name, **sizes}}
    return out


ENTRY = Entry(("model.pattern", "model.mixers"), (VARIANT, FREQUENCY, *(argument for argument, _ in _SIZES.values())),
              _write, _read)  # fmt: skip
