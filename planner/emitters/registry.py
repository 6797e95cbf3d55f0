"""All targets: one line each."""

from __future__ import annotations

from collections.abc import Sequence

from ...errors import UnknownNameError
from . import accelerate, any_target, deepspeed, megatron, megatron_bridge, meshwright, torchtitan
from .base import Target

TARGETS: dict[str, Target] = {
    module.TARGET.name: module.TARGET
    for module in (meshwright, megatron, megatron_bridge, torchtitan, deepspeed, accelerate, any_target)
}


def able_to_train(techniques: Sequence[str]) -> list[str]:
    """The targets that train by all of them, some knobs perhaps left out."""
    return [each.name for each in TARGETS.values()
            if each.trainer is not None and set(techniques) <= set(each.trainer.techniques)]  # fmt: skip


def target(name: str) -> Target:
    """The target `name`. Raises UnknownNameError."""
    if name not in TARGETS:
        raise UnknownNameError("target", name, TARGETS, see="meshwright show targets")
    return TARGETS[name]
