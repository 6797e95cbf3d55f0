"""Dynamic context parallelism of verl: a degree for every answer.

verl 0.9.1 (PyPI): `_check_dcp_unsupported_features` of workers/engine/megatron and the groups that engines of a process
share, McoreEngineConfig; its page on dynamic context parallelism (verl-project/verl@1fb4d93e). The reference takes the
options of the actor (its YAML).
"""

from __future__ import annotations

from collections.abc import Mapping

from ....errors import FieldProblem
from ..post_training.core import on_core
from ..post_training.limits import RlStep
from .options import DYNAMIC, OVERRIDES, TOKENS

_ENGINE, _MODEL = "actor_rollout_ref.actor.megatron.", "actor_rollout_ref.model."
_OPTION = f"{_ENGINE}{DYNAMIC}"
# Option -> its values beside which it runs.
_NEEDS: dict[str, tuple[object, ...]] = {
    f"{_ENGINE}virtual_pipeline_model_parallel_size": (None, 1),
    f"{_ENGINE}use_remove_padding": (True,),
    f"{_ENGINE}pad_to_length": (False,),
    f"{_ENGINE}use_megatron_fsdp": (False,),
    f"{_ENGINE}override_transformer_config.fp8": (None, False),
    f"{_MODEL}use_fused_kernels": (False,),
    f"{_MODEL}mtp.enable": (False,),
    "critic.megatron.dynamic_context_parallel": (False,),  # a value model
}
NOTE = (f"{DYNAMIC} needs a Megatron-Core that has NVIDIA/Megatron-LM#5154 (d2e7ec5b); a reference takes it from the "
        "actor")  # fmt: skip


def reasons(step: RlStep) -> list[str]:
    """Why no answer of a step has a degree of its own."""
    out = [] if on_core(step) else [f"{step.trainer}: only Megatron-Core gives answers degrees of their own"]
    if "critic" in step.models:
        out.append(f"{step.algorithm}: a critic is a value model, which {DYNAMIC} does not train, and one process "
                   "holds both")  # fmt: skip
    return out


def conflicts(files: Mapping[str, str]) -> list[FieldProblem]:
    """Options of edited files that verl refuses beside it, or that it needs."""
    given, _ = OVERRIDES.read(files.get(OVERRIDES.file, ""))
    if _OPTION not in given or given[_OPTION].value is not True:
        return []
    line = given[_OPTION].line
    refused = {name: given[name] for name, able in _NEEDS.items() if name in given and given[name].value not in able}
    out = [FieldProblem(f"{OVERRIDES.shown(it.value)} does not run with {DYNAMIC}", file=OVERRIDES.file, line=it.line,
                        field=name, hint="leave it out") for name, it in refused.items()]  # fmt: skip
    tokens = given.get(f"{_ENGINE}{TOKENS}")
    if tokens is None or type(tokens.value) is not int or tokens.value < 1:
        out.append(FieldProblem(f"needs {TOKENS}, a whole number from 1", file=OVERRIDES.file, field=_OPTION,
                                line=line if tokens is None else tokens.line))  # fmt: skip
    return out
