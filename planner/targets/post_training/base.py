"""A framework of post-training as a target, and what its refusals and notes have in common with others."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from ....errors import FieldProblem
from ...switches.base import Settings
from .core import CORE, PLAIN
from .limits import Limits, RlStep
from .option_file import OptionFile
from .setup import RlSetup, layout_of


class Updates(Protocol):
    """The updates of a step of post-training, as a request has them."""

    @property
    def updates(self) -> int: ...

    @property
    def lag(self) -> int: ...

    @property
    def scores_first(self) -> bool: ...


def set_by(target: RlTarget | None, trainer: str) -> Settings:
    """Switches that a framework sets for its trainer; None: those of no framework."""
    if trainer in CORE:
        return target.core if target is not None else PLAIN
    return target.fsdp if target is not None else {}


def of_train(setup: RlSetup, framework: str) -> list[str]:
    """A note for each call that scores by another layout than that of `train`, by which the framework runs it."""
    return [f"{call.name}: {framework} runs it by the layout of train, {setup.train.layout_id}, not by {call.layout_id}"
            for call in setup.candidate.calls if call.kind == "infer" and call.layout_id != setup.train.layout_id]


def scores_first(framework: str) -> str:
    """A note for a plan without the call `logprobs`, which the framework makes all the same."""
    return (f"{framework} scores the answers by the policy first, which the plan does not price: "
            "`--set workload.old_logprobs=true` does")  # fmt: skip


def without_prediction(setup: RlSetup, framework: str) -> list[str]:
    """A note for a model with prediction modules, which the framework leaves out."""
    modules = setup.models["policy"].mtp_layers
    return [f"{framework} trains without the prediction modules of the model, and the plan prices {modules}"
            ] if modules else []  # fmt: skip


def misplaced(setup: RlSetup, framework: str) -> list[str]:
    """Calls that are not where frameworks run them: on all GPUs of the trainer, and an engine there or beside them."""
    train, lag = setup.train, setup.candidate.lag
    return [f"{call.name} is on GPUs {call.first_gpu}-{call.first_gpu + call.gpus - 1}, train on "
            f"{train.first_gpu}-{train.first_gpu + train.gpus - 1}: {framework} has them on the same"
            for call in setup.candidate.calls
            if (call.kind != "generate" or not lag) and (call.first_gpu, call.gpus) != (train.first_gpu, train.gpus)]


def _unlike_critic(setup: RlSetup, joint: tuple[str, ...]) -> list[str]:
    """A critic that differs from the policy in fields that they have in common."""
    critic = setup.calls.get("train-critic")
    if critic is None:
        return []
    one, other = layout_of(setup.train), layout_of(critic)
    if all(getattr(one, name) == getattr(other, name) for name in joint):
        return []
    return [f"train-critic: {critic.layout_id} has other degrees than train, {setup.train.layout_id}: one process "
            "holds both, and is initialised once"]


@dataclass(frozen=True, kw_only=True)
class RlTarget:
    """A framework that files are written for."""

    name: str
    framework: str
    release: str  # whose options these are
    files: Callable[[RlSetup, tuple[str, ...]], dict[str, str]]  # (placement, header lines) -> name -> text
    limits: Limits
    engines: tuple[str, ...]  # that it starts; the first where a request names none
    notes: Callable[[RlSetup], list[str]]  # manual steps for the user, and what differs from the plan
    option_file: OptionFile
    next_step: str  # the command that starts it
    trainer: str = "megatron"  # that trains where a request names none
    # Whether the policy scores the answers of a step before its first update, where a request does not set it.
    scores_first: Callable[[Updates], bool] = lambda work: work.scores_first
    # Why it cannot run a placement whose calls, each by itself, it runs.
    whole: Callable[[RlSetup], list[str]] = lambda setup: []
    core: Settings = field(default_factory=lambda: PLAIN)  # switches of Megatron-Core, as it trains
    fsdp: Settings = field(default_factory=dict)  # those of its other trainer, FSDP
    # Whether Ray runs the workers of an engine on several GPUs: vLLM 0.17.1 then schedules an iteration after the one
    # before it, not beside it (vllm/config/vllm.py, executor_supports_async_sched).
    ray_engine: bool = False
    # Edited files -> options that it refuses beside one another.
    conflicts: Callable[[Mapping[str, str]], list[FieldProblem]] = lambda files: []
    # Option that no plan writes -> its effect on the step, "" for none.
    judged: Callable[[str], str] = lambda option: ""

    def __str__(self) -> str:
        return f"{self.framework} {self.release}"

    def cannot_run(self, step: RlStep, lag: int) -> list[str]:
        """Why it runs no placement of a step."""
        known = f"{step.engine}: {self.framework} generates with {', '.join(self.engines)}"
        return ([] if step.engine in self.engines else [known]) + self.limits.step(step, lag)

    def without_degrees(self, step: RlStep) -> list[str]:
        """Why no answer of a step has a degree of its own; empty: each has."""
        if self.limits.by_answer is None:
            return [f"{self.framework} has one context-parallel degree for all answers"]
        return self.limits.by_answer(step)

    def refusals(self, setup: RlSetup) -> list[str]:
        """Why it cannot run a placement; empty: it can."""
        lag, engine = setup.candidate.lag, setup.rollout
        if out := self.cannot_run(setup, lag):
            return out
        out = misplaced(setup, self.framework)
        if setup.train.rank_tokens:
            out += [f"train: {text}" for text in self.without_degrees(setup)]
        out += [f"generate: {text}" for text in (self.limits.engine(engine, lag) if engine is not None else ())]
        for call in setup.candidate.calls:
            if call.kind == "train":
                layout = layout_of(call)
                limits = self.limits.layouts(setup, setup.leaves(call.role))
                out += [f"{call.name}: {it.explain(layout)}" for it in limits if it.broken_by(layout)]
        return out + _unlike_critic(setup, self.limits.joint(setup)) + self.whole(setup)
