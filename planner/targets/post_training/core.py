"""Megatron-Core (core_v0.16.1, core/transformer/transformer_config.py) as the trainer of post-training."""

from __future__ import annotations

from ....cost_models.layouts import Layout, modules_of
from ....cost_models.offload_modules import OFFLOAD_MODULES
from ..megatron.options import MODULES
from .limits import RlStep

# Optimizer -> its name there.
OPTIMIZERS = {"adamw": "adam", "adamw-bf16": "adam", "sgd": "sgd"}
# Targets whose layouts Megatron-Core runs; all others are written for FSDP.
CORE = ("megatron", "megatron-bridge", "nemo")


def on_core(step: RlStep) -> bool:
    """Whether Megatron-Core trains, and not FSDP."""
    return step.trainer in CORE


def recomputed(layout: Layout) -> list[str]:
    """`recompute_modules` of selective recomputation; `moe` also runs the shared experts."""
    modules = modules_of(layout.recompute_modules)
    return [MODULES[name] for name in modules if name != "shared" or "moe" not in modules]


def offloaded(layout: Layout) -> list[str]:
    """`offload_modules`, whose saved activations go to the host."""
    return OFFLOAD_MODULES[layout.offload_modules].split("+")
