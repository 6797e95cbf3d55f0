"""All targets: one line each."""

from __future__ import annotations

from ...errors import UnknownNameError
from . import accelerate, any_target, deepspeed, megatron, megatron_bridge, meshwright, torchtitan
from .base import Target

TARGETS: dict[str, Target] = {
    module.TARGET.name: module.TARGET
    for module in (meshwright, megatron, megatron_bridge, torchtitan, deepspeed, accelerate, any_target)
}


def target(name: str) -> Target:
    """The target `name`. Raises UnknownNameError."""
    if name not in TARGETS:
        raise UnknownNameError("target", name, TARGETS, see="meshwright show targets")
    return TARGETS[name]
