"""A framework of post-training as a target, and the placement that its files are written for."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from ....cost_models.layouts import Layout
from ....cost_models.serving.pool import MEMORY_SHARE, WORKING_BYTES
from ....cost_models.specs.cluster import capability_of
from ....cost_models.specs.stack import StackSpec
from ....errors import FieldProblem, InputError
from ...document.rl_plan import EngineLayout, RlCall, RlCandidate, RlPlan
from ...document.specs import hub_name, model_of, stack_of
from ...switches.base import Settings
from .core import PLAIN
from .limits import Limits, RlStep

if TYPE_CHECKING:
    from .option_file import OptionFile


class Updates(Protocol):
    """The updates of a step of post-training, as a request has them."""

    @property
    def updates(self) -> int: ...

    @property
    def lag(self) -> int: ...

    @property
    def scores_first(self) -> bool: ...


@dataclass(frozen=True, kw_only=True)
class RlSetup(RlStep):
    """One placement of a plan, unpacked."""

    plan_id: str  # the first 12 digits of the digest of the request
    tool: str  # `meshwright 1.2.3`
    candidate: RlCandidate
    names: Mapping[str, str]  # by role: on the Hugging Face Hub, or in the catalogue
    prompt_tokens: int
    answer_tokens: int  # of the longest
    gpus_per_node: int
    gpu: str
    gpu_memory_bytes: float
    capability: float | None  # of CUDA; None for a GPU without one
    stack: StackSpec
    target: str | None  # framework that it was planned for; None: any

    @property
    def num_gpus(self) -> int:
        """GPUs of the cluster."""
        return max(call.first_gpu + call.gpus for call in self.candidate.calls)

    @property
    def calls(self) -> Mapping[str, RlCall]:
        """The calls by name."""
        return {call.name: call for call in self.candidate.calls}

    @property
    def train(self) -> RlCall:
        """The call that trains the policy."""
        return self.calls["train"]

    @property
    def generate(self) -> RlCall | None:
        """The call that generates; None where answers are given."""
        return self.calls.get("generate")

    @property
    def rollout(self) -> EngineLayout | None:
        """The instances that generate; None where answers are given."""
        return self.generate.engine if self.generate is not None else None

    @property
    def nodes(self) -> str:
        """`4 x 8 h100-sxm-80gb`."""
        per_node = min(self.gpus_per_node, self.num_gpus)
        return f"{self.num_gpus // per_node} x {per_node} {self.gpu}"

    @property
    def trains_on_policy(self) -> bool:
        """Whether answers train once the weights that generated them, and nobody scores them before."""
        return "logprobs" not in self.calls and self.updates == 1 and not self.candidate.lag

    @property
    def static_share(self) -> float:
        """Share of a GPU's memory for weights and cache of an engine, without its buffers."""
        return round(MEMORY_SHARE - WORKING_BYTES / self.gpu_memory_bytes, 3)

    def packed_tokens(self, call: RlCall) -> int:
        """Tokens of a micro-batch of a call that trains; the longest answer fits."""
        planned = layout_of(call).micro_batch * (call.seq_len or 0)
        return max(planned, self.prompt_tokens + self.answer_tokens)

    def pool(self, call: RlCall) -> tuple[int, int]:
        """Nodes of a call, and its GPUs on each."""
        per_node = math.gcd(call.gpus, self.gpus_per_node) if call.gpus > self.gpus_per_node else call.gpus
        return call.gpus // per_node, per_node

    def leaves(self, role: str) -> bool:
        """Whether a model goes to host memory while another call has its GPUs."""
        home = next((it for it in self.candidate.calls if it.role == role and it.kind == "train"),
                    next(it for it in self.candidate.calls if it.role == role and it.kind != "generate"))  # fmt: skip
        return any(role not in it.resident_bytes for it in self.candidate.calls
                   if (it.role != role or it.kind == "generate") and it.first_gpu < home.first_gpu + home.gpus
                   and home.first_gpu < it.first_gpu + it.gpus)  # fmt: skip

    @classmethod
    def of(cls, plan: RlPlan, choice: int, name: str) -> RlSetup:
        """Placement `choice` of a plan. name: its file. Raises InputError."""
        from ...._version import __version__

        work, resolved = plan.request["workload"], plan.resolved
        answers = resolved["answers"]
        models = {role: model_of({"model": data}, name) for role, data in resolved["models"].items()}
        group = resolved["cluster"]["groups"][0]
        candidate = plan.candidate(choice)
        if any(call.kind == "train" and call.seq_len is None for call in candidate.calls):
            raise InputError(f"{name}: an older version wrote it, without the lengths of packed sequences",
                             hint="plan again")  # fmt: skip
        return cls(
            plan_id=plan.request_sha256[:12], tool=f"meshwright {__version__}", candidate=candidate, models=models,
            names={role: hub_name(data) for role, data in resolved["models"].items()},
            algorithm=work["algorithm"], prompts=work["prompts"], samples=answers["per_step"] // work["prompts"],
            updates=work["updates"], prompt_tokens=work["input"],
            answer_tokens=work["output_max"] or math.ceil(answers["longest"]), optimizer=work["optimizer"],
            trainer=resolved["trainer"], engine=resolved["engine"], gpus_per_node=group["gpus_per_node"],
            gpu=group["gpu"]["name"], gpu_memory_bytes=group["gpu"]["memory_bytes"],
            capability=capability_of(str(group["gpu"].get("arch", ""))), stack=stack_of(resolved, name),
            target=plan.request.get("target"),
        )  # fmt: skip


def layout_of(call: RlCall) -> Layout:
    """The layout of a call that trains or scores."""
    return Layout.from_dict(call.layout or {})


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
