"""Switches of the optimizer."""

from __future__ import annotations

from ...cost_models.layouts import Layout
from .base import Switch, of


def _shares_states(layout: Layout) -> bool:
    return layout.zero > 0


LAYER_WISE_LAYOUT = Switch(
    name="layer_wise_layout",
    meaning="buffers of gradients are ordered by the rank that updates a matrix, so that gradients are scattered",
    values=("on", "off"),
    changes=lambda stack, value: {"layer_wise_layout": value == "on"},
    source="Megatron-LM d98e8a64, training/training.py (wrap_model_chunks_with_ddp), which Megatron-Bridge lacks",
    concerns=lambda problem: problem.workload.optimizer == "muon",
    subject="training with muon",
    applies=_shares_states,
    options={**of("megatron", {"on": {}, "off": {"--no-use-layer-wise-param-layout": True}}),
             **of("megatron-bridge", {"off": {}})},
    choices=lambda situation: ("on", "off"),
)  # fmt: skip
