"""The engines that files are written for: one line each."""

from __future__ import annotations

from ....errors import UnsupportedError
from .base import EngineTarget
from .sglang import SGLANG
from .vllm import VLLM

ENGINE_TARGETS: dict[str, EngineTarget] = {target.name: target for target in (VLLM, SGLANG)}


def engine_target(name: str) -> EngineTarget:
    """Raises UnsupportedError for an engine whose files cannot be written."""
    if name not in ENGINE_TARGETS:
        hint = f"these can: {', '.join(ENGINE_TARGETS)}; plan again with `--target vllm`"
        raise UnsupportedError(f"files for {name} cannot be written yet", hint=hint)
    return ENGINE_TARGETS[name]
