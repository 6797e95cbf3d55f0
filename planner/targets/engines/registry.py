"""The engines that files are written for, and what starts them: one line each."""

from __future__ import annotations

from ....cost_models.techniques.base import Technique
from ....errors import UnknownNameError, UnsupportedError
from .base import EngineTarget, ServingLauncher
from .dynamo import DYNAMO
from .llm_d import LLM_D
from .scripts import SCRIPTS
from .sglang import SGLANG
from .tensorrt_llm import TENSORRT_LLM
from .vllm import VLLM

ENGINE_TARGETS: dict[str, EngineTarget] = {target.name: target for target in (VLLM, SGLANG, TENSORRT_LLM)}
SERVING_LAUNCHERS: dict[str, ServingLauncher] = {launcher.name: launcher for launcher in (SCRIPTS, DYNAMO, LLM_D)}


def engine_target(name: str) -> EngineTarget:
    """Raises UnsupportedError for an engine whose files cannot be written."""
    if name not in ENGINE_TARGETS:
        hint = f"these can: {', '.join(ENGINE_TARGETS)}; plan again with `--target vllm`"
        raise UnsupportedError(f"files for {name} cannot be written yet", hint=hint)
    return ENGINE_TARGETS[name]


def with_technique(name: str) -> list[str]:
    """The engines that have a technique of serving."""
    return [target.name for target in ENGINE_TARGETS.values() if name in target.techniques]


def about_serving(technique: Technique, engine: str) -> str:
    """The warning on a technique: what runs it, and costs that are not priced."""
    able = with_technique(technique.name)
    if engine in able:
        return f"{technique.name}: {technique.caveat}"
    who = (f"{engine} does not have it, {' and '.join(able)} would" if able else "no engine has it")
    return f"{technique.name} is priced, but {who}: `emit` refuses; {technique.caveat}"


def serving_launcher(name: str) -> ServingLauncher:
    """Raises UnknownNameError."""
    if name not in SERVING_LAUNCHERS:
        raise UnknownNameError("launcher of serving plans", name, SERVING_LAUNCHERS)
    return SERVING_LAUNCHERS[name]
