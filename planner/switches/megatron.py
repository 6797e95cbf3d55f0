"""Options of Megatron-LM's pretrain_gpt.py that set a switch. Megatron-Bridge has a field for each of them
(planner/targets/megatron_bridge/fields.py)."""

from __future__ import annotations

from collections.abc import Mapping

from .base import Options, of

_TARGETS = ("megatron", "megatron-bridge")


def of_megatron(
    values: Mapping[str, Options], *before: Mapping[str, Options]
) -> dict[str, Mapping[str, tuple[Options, ...]]]:
    """The same options for both targets that configure Megatron Core. before: those of older releases, newest first."""
    if not before:
        return {name: options for target in _TARGETS for name, options in of(target, values).items()}
    every = {value: (options, *(older[value] for older in before)) for value, options in values.items()}
    return dict.fromkeys(_TARGETS, every)
