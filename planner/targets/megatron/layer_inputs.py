"""Inputs of recomputed layers on the host, and in parts over the ranks of tensor parallelism (the technique
partitioned-checkpoints).

Megatron-LM d98e8a64, training/arguments.py (its conditions) and core/tensor_parallel/random.py; older releases and
forks have it as --distribute-checkpointed-activations (kojimano/Megatron-DeepSpeed-ABCI a3fbb95e,
megatron/mpu/random.py), and DeepSpeed as --partition-activations (deepspeed 0.19, CheckpointFunction), which only its
own recomputation obeys, as it does --checkpoint-in-cpu.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ....cost_models.problem import Problem
from ....cost_models.techniques.partitioned_checkpoints import TECHNIQUE
from ....errors import FieldProblem
from ..argv import Arguments
from ..cpu_offload import FACT
from ..options import Entry, Facts, Settings
from ..setup import Setup
from . import deepspeed_experts

OPTION = "--distribute-saved-activations"
OLDER, OF_DEEPSPEED = "--distribute-checkpointed-activations", "--partition-activations"
_OBEYS = "--deepspeed-activation-checkpointing"
ON_HOST = "--checkpoint-in-cpu"


def modernise(arguments: Arguments) -> None:
    """Renames the older option and that of DeepSpeed, which have no effect on one rank, and drops those that only
    DeepSpeed's own recomputation obeys where Megatron's runs."""
    given = arguments.settings
    older, of_deepspeed = given.pop(OLDER, False), given.pop(OF_DEEPSPEED, False)
    recomputes = given.get("--recompute-granularity") == "full"
    if not (given.get(_OBEYS) and recomputes):
        given.pop(ON_HOST, None)
    elif given.get(ON_HOST):
        arguments.notes.append(f"{ON_HOST}: priced as copies beside the layers, for which DeepSpeed waits")
    old = OLDER if older else OF_DEEPSPEED if of_deepspeed and given.get(_OBEYS) and recomputes else ""
    if old and given.get("--tensor-model-parallel-size", 1) > 1:
        given[OPTION] = True
        arguments.lines.setdefault(OPTION, arguments.lines.get(old, 0))
        arguments.files.setdefault(OPTION, arguments.files.get(old, ""))
    arguments.problems += [FieldProblem(text, name, arguments.files.get(name, ""), arguments.lines.get(name, 0))
                           for name, text in conflicts(given)]  # fmt: skip


def conflicts(settings: Settings) -> list[tuple[str, str]]:
    """The assertions of validate_args and TransformerConfig that the settings break: (option, reason)."""
    if not settings.get(OPTION):
        return []
    reasons = {
        "needs --tensor-model-parallel-size above 1": settings.get("--tensor-model-parallel-size", 1) == 1,
        "needs --recompute-granularity full": settings.get("--recompute-granularity") != "full",
        "cannot be given together with --sequence-parallel": settings.get("--sequence-parallel", False),
    }
    return [(OPTION, text) for text, applies in reasons.items() if applies]


def _write(setup: Setup) -> Settings:
    shared = any(name == TECHNIQUE.name and dict(knobs)["on"] for name, knobs in setup.workload.techniques)
    return {OPTION: True} if shared else {}


def _read(settings: Settings, facts: Facts) -> Facts:
    shared: Facts = {TECHNIQUE.name: {}} if settings.get(OPTION) else {}
    chosen = shared | deepspeed_experts.techniques(settings)
    return {FACT: chosen} if chosen else {}


ENTRY = Entry((FACT,), (OPTION, deepspeed_experts.DROPS), _write, _read)
# For the techniques of a trainer: its needs are those of the technique.
CAN: Mapping[str, Callable[[Problem, Mapping[str, float]], str | None]] = {
    TECHNIQUE.name: lambda problem, knobs: None
}  # fmt: skip
