"""Options of Megatron-LM's pretrain_gpt.py that set a switch. Megatron-Bridge and NeMo have a field for each of them
(planner/targets/megatron_bridge/fields.py, planner/targets/nemo/fields.py)."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from .base import Options

_TARGETS = ("megatron", "megatron-bridge")
_NEMO = "nemo"


def of_megatron(
    values: Mapping[str, Options], *before: Mapping[str, Options], nemo: Collection[str] | None = None
) -> dict[str, Mapping[str, tuple[Options, ...]]]:
    """The same options for all targets that configure Megatron Core.

    before: those of older releases, newest first. nemo: the values that NeMo trains with (None: all).
    """
    every = {value: (options, *(older[value] for older in before)) for value, options in values.items()}
    trained = {value: options for value, options in every.items() if nemo is None or value in nemo}
    return {**dict.fromkeys(_TARGETS, every), _NEMO: trained}
