"""Fused kernels that pretrain_gpt.py has on by itself, and classes of Megatron-Bridge only where a field says so.

GPTModelProvider leaves activations and rotary positions in separate kernels, which save more tensors than planned.
MLAModelProvider takes its defaults from MLATransformerConfig: it also leaves weight gradients in kernels of their own,
and keeps what a pipeline stage has sent. GPTModelProvider and HybridModelProvider fuse the loss.
Read in Megatron-Bridge 51885cf1, models/{gpt_provider,mla_provider,hybrid/hybrid_provider}.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..megatron.feed_forward import GATED_ACTIVATIONS
from ..options import Entry, Facts, Settings
from ..setup import Setup
from . import vision
from .vision_classes import BY_NAME

_ACTIVATION, _DROPOUT, _ROPE, _GRADIENTS, _LOSS, _OUTPUTS = (f"model.{name}" for name in (
    "bias_activation_fusion", "bias_dropout_fusion", "apply_rope_fusion", "gradient_accumulation_fusion",
    "cross_entropy_loss_fusion", "deallocate_pipeline_outputs"))  # fmt: skip
_FUSES_LOSS = ("GPTModelProvider", "HybridModelProvider", *BY_NAME)


def _fuses_activation(setup: Setup) -> bool:
    """Gated functions of the core, and GELU with biases (core/transformer/transformer_config.py)."""
    block = setup.model.feed_forwards[0]
    if block.gated:
        return setup.model.activation in GATED_ACTIVATIONS
    return setup.model.activation.startswith("gelu") and bool(getattr(block, "bias", False))


def _has_rope(setup: Setup) -> bool:
    """Rotary positions, but for YaRN of plain attention, which no fused kernel has (training/arguments.py), and for
    those of images (models/qwen_vl/modelling_qwen3_vl/rope.py)."""
    model, scaling = setup.model, setup.model.trained_scaling
    if vision.sees(setup):
        return False
    yarn = scaling is not None and scaling.kind == "yarn" and not model.attentions[0].is_mla
    return any(attention.rotary for attention in model.attentions) and not model.learned_positions and not yarn


def _write(setup: Setup) -> Settings:
    fused = {
        _ACTIVATION: _fuses_activation(setup), _DROPOUT: True, _ROPE: _has_rope(setup),
        _GRADIENTS: setup.layout.zero < 2, _OUTPUTS: setup.layout.pp > 1,
    }  # fmt: skip
    out: Settings = {name: True for name, on in fused.items() if on}
    return out | ({_LOSS: False} if setup.switches.get("cross_entropy") == "parallel" else {})


def _read(settings: Settings, facts: Facts) -> Facts:
    return {}


ENTRY = Entry(("stack",), (_ACTIVATION, _DROPOUT, _ROPE, _GRADIENTS, _OUTPUTS, _LOSS), _write, _read)


def defaults(settings: Mapping[str, Any]) -> Settings:
    """Arguments of pretrain_gpt.py for the fusions of the class that no field overrides."""
    fuses = settings.get("model") in (None, *_FUSES_LOSS) and _LOSS not in settings
    return {"--cross-entropy-loss-fusion": True} if fuses else {}
