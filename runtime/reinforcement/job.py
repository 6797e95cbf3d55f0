"""A run of GRPO, DAPO, PPO or DPO, read from the plan of a step of post-training. No torch here."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal

from ...cost_models.layouts import PRECISIONS, Layout, parse
from ...cost_models.quantities.even_stages import chunk_sizes
from ...cost_models.quantities.stages import devices_of
from ...cost_models.specs.model import ModelSpec
from ...cost_models.specs.variants import valued
from ...errors import FieldProblem, InputError, UnsupportedError
from ...planner.document.candidate import Chunk
from ...planner.document.rl_plan import RlCall, RlCandidate, RlPlan
from ...planner.document.specs import model_of, part, stack_of
from ..checkpoint.manifest import model_fields
from ..job import Job

Algorithm = Literal["grpo", "dapo", "ppo", "dpo"]
Role = Literal["policy", "critic", "reference", "reward"]
END = 0  # the token that ends an answer
SYNC = "new weights"  # their move to the engine, as reports name it
KL_COEFFICIENT = 0.04  # GRPO (arXiv 2402.03300, section 4.2)
# Calls without which no step runs.
CALLS: Mapping[Algorithm, tuple[str, ...]] = {
    "grpo": ("generate", "train"), "dapo": ("generate", "train"),
    "ppo": ("generate", "values", "train-critic", "train"), "dpo": ("reference", "train"),
}  # fmt: skip
_NUMBERS = ("algorithm", "prompts", "samples", "answer_len", "updates", "lag")  # on which the weights of a step depend
VALUED: tuple[Role, ...] = ("critic", "reward")  # models that give values in place of logits


@dataclass(frozen=True)
class Place:
    """A call on its ranks."""

    name: str  # of the call
    first: int  # rank of the world
    layout: Layout
    role: Role = "policy"  # of the model

    @property
    def ranks(self) -> range:
        return range(self.first, self.first + self.layout.num_gpus)


@dataclass(frozen=True)
class PlannedCall:
    """A call as planned, on the GPUs of the plan."""

    name: str
    gpus: int
    seconds: float  # with the models that move for it
    moves_s: float = 0.0  # of them, for these models
    micro_batch_tokens: int = 0  # of packed answers, where it trains


@dataclass(frozen=True, kw_only=True)
class RlJob(Job):
    """The job of the training call, and the calls around it.

    seq_len: tokens of a prompt and an answer, without the last one; global_batch: answers of an update.
    """

    algorithm: Algorithm
    prompts: int  # of a step
    samples: int  # answers to each
    answer_len: int  # tokens of the longest answer
    updates: int  # optimizer steps on the answers of a step
    lag: int  # steps between the weights that generate answers and those that train on them
    train: Place
    engine: Place | None  # generates; dp: its instances; None: pairs of answers are given
    scores: tuple[Place, ...] = ()  # `reward`, `reference`, `values` and `logprobs`
    train_critic: Place | None = None
    models: Mapping[Role, ModelSpec] = field(default_factory=dict)  # critic and reward model
    planned: tuple[PlannedCall, ...] = field(default=())
    planned_sync_s: float = 0.0  # new weights to the engine
    planned_step_s: float = 0.0  # with data, rewards and logs

    @property
    def trains(self) -> tuple[Place, ...]:
        """The training calls, in their order."""
        return (self.train,) if self.train_critic is None else (self.train_critic, self.train)

    @property
    def places(self) -> tuple[Place, ...]:
        engine = () if self.engine is None else (self.engine,)
        return *engine, *self.scores, *self.trains

    @property
    def world_size(self) -> int:
        return max(place.ranks.stop for place in self.places)

    @property
    def answers(self) -> int:
        """Answers of a step."""
        return self.prompts * self.samples

    @property
    def prompt_len(self) -> int:
        return self.seq_len + 1 - self.answer_len

    @property
    def objective(self) -> dict[str, Any]:
        numbers = {name: getattr(self, name) for name in _NUMBERS}
        calls = ", ".join(place.name for place in self.places)
        # The frozen copy has the initial weights, which are in no checkpoint.
        frozen = {"init_digest": self.init_digest} if self.init_digest is not None else {}
        return {**numbers, "calls": calls, **{role: model_fields(model) for role, model in self.models.items()},
                **frozen}  # fmt: skip

    def training(self, place: Place) -> RlJob:
        """The job of a training call. Each model starts from weights of its own."""
        if place == self.train:
            return self
        model = self.models[place.role]
        return replace(self, model=model, layout=place.layout, chunks=chunks_of(place.layout, model),
                       seed=self.seed + 1 + VALUED.index(place.role))  # fmt: skip

    def replica(self, place: Place) -> Job:
        """The job of a copy of a model that generates or scores all answers of a step: in one micro-batch, or in parts
        of a micro-batch of training where pairs are given, because such runs have their planned size."""
        rows, model = self.answers // place.layout.dp, self.models.get(place.role)
        layout = replace(place.layout, micro_batch=rows if self.engine else math.gcd(rows, self.layout.micro_batch))
        values = {each.name: getattr(self, each.name) for each in fields(Job)}
        if model is not None:
            values |= {"model": model, "seed": self.seed + 1 + VALUED.index(place.role)}
        values |= {"layout": layout, "chunks": chunks_of(layout, values["model"]), "global_batch": self.answers}
        return Job(**values)


def chunks_of(layout: Layout, model: ModelSpec) -> tuple[Chunk, ...]:
    """Layers over stages as even as possible."""
    devices = devices_of(layout)
    sizes = chunk_sizes(model.num_layers, len(devices))
    return tuple(_chunks(layout, devices, sizes))


def _chunks(layout: Layout, devices: Sequence[int], sizes: Sequence[int]) -> Iterator[Chunk]:
    start, full = 0, layout.recompute == 2
    for index, (device, size) in enumerate(zip(devices, sizes, strict=True)):
        yield Chunk(stage=device, chunk=list(devices[:index]).count(device), embedding=index == 0,
                    layers=(start, start + size - 1) if size else (), head=index == len(devices) - 1, gpu="",
                    recompute_layers=(min(size, layout.recompute_layers) or size) if full else 0)  # fmt: skip
        start += size


def rl_job(plan: RlPlan, choice: int, path: Path) -> RlJob:
    """The job of placement `choice` of a plan in the file `path`.

    Raises InputError for a damaged field, UnsupportedError for a graph of calls that cannot run.
    """
    name = path.name
    if not 1 <= choice <= len(plan.candidates):
        raise InputError(f"{name} has no placement {choice}", hint=f"it has 1 to {len(plan.candidates)}")
    candidate, work = plan.candidates[choice - 1], part(plan.request, "workload", name)
    calls, algorithm = {call.name: call for call in candidate.calls}, work["algorithm"]
    _check_runs(calls, name)
    if missing := [each for each in CALLS[algorithm] if each not in calls]:
        raise InputError.of([FieldProblem("missing", file=name, field=f"candidates.{choice - 1}.calls.{each}",
                                          hint="plan again") for each in missing])  # fmt: skip
    if "stack" not in plan.resolved:
        raise UnsupportedError(f"{name} is of format {plan.format_version}, which does not hold the software stack",
                               hint="plan again")  # fmt: skip
    model, models = _models(plan, calls, name)
    answers = part(plan.resolved, "answers", name)
    allowed = work.get("output_max") if algorithm == "dpo" else None  # given answers may be longer than random ones
    length, layout = int(allowed or answers["longest"]), _layout(calls["train"], name)
    return RlJob(
        plan_id=plan.request_sha256[:12], choice=choice, model=model, layout=layout, chunks=chunks_of(layout, model),
        stack=stack_of(plan.resolved, name), seq_len=work["input"] + length - 1, dtype=_dtype(layout),
        global_batch=answers["per_step"] // work["updates"], optimizer=work["optimizer"],
        predicted_step_s=None, algorithm=algorithm, prompts=work["prompts"], updates=work["updates"],
        samples=answers["per_step"] // work["prompts"], answer_len=length, lag=candidate.lag,
        train=Place("train", calls["train"].first_gpu, layout), engine=_engine(calls.get("generate")),
        scores=tuple(_place(call, name) for call in candidate.calls if call.kind == "infer"),
        train_critic=_place(calls["train-critic"], name) if algorithm == "ppo" else None, models=models,
        planned=tuple(_planned(candidate)), planned_sync_s=candidate.sync_s, planned_step_s=candidate.step_s,
    )  # fmt: skip


def _models(plan: RlPlan, calls: Mapping[str, RlCall], name: str) -> tuple[ModelSpec, dict[Role, ModelSpec]]:
    """The policy, and the models that give values in place of logits. Raises UnsupportedError for one that does not run
    here."""
    documents, roles = part(plan.resolved, "models", name), {call.role for call in calls.values()}
    policy = model_of({"model": documents.get("policy")}, name)
    models = {role: valued(model_of({"model": documents.get(role)}, name)) for role in VALUED if role in roles}
    for role, model in (("policy", policy), *models.items()):
        if model.mixers:
            raise UnsupportedError(f"{name}: the {role}, {model.name}, has layers with a state, which calls here do "
                                   "not keep", hint="a model of attention layers")  # fmt: skip
        if model.vocab < policy.vocab:
            raise UnsupportedError(f"{name}: the {role}, {model.name}, reads {model.vocab:,} tokens, and "
                                   f"{policy.name} generates {policy.vocab:,}", hint=f"a {role} with the same "
                                   "vocabulary")  # fmt: skip
    return policy, models


def _check_runs(calls: Mapping[str, RlCall], name: str) -> None:
    """Raises UnsupportedError for a step that plans have and no rank runs."""
    if any(call.rank_tokens for call in calls.values()):
        raise UnsupportedError(f"{name}: answers with degrees of their own are planned, and not run here",
                               hint="`meshwright emit --to verl`, or plan without `--lengths-rule`")  # fmt: skip


def _dtype(layout: Layout) -> Literal["bf16", "fp32"]:
    return "fp32" if PRECISIONS[layout.precision] == "fp32" else "bf16"


def _planned(candidate: RlCandidate) -> Iterator[PlannedCall]:
    for call in candidate.calls:
        packed = (call.layout or {}).get("micro_batch", 0) * (call.seq_len or 0)
        yield PlannedCall(call.name, call.gpus, call.end_s - call.start_s, call.moves_s, packed)


def _layout(call: RlCall, name: str) -> Layout:
    if call.layout_id is None:
        raise InputError.of([FieldProblem("missing", file=name, field=f"candidates.calls.{call.name}.layout_id")])
    return parse(call.layout_id)


def _place(call: RlCall, name: str) -> Place:
    return Place(call.name, call.first_gpu, _layout(call, name), call.role)


def _engine(call: RlCall | None) -> Place | None:
    """Instances are data parallel; those with a part of the attention's sequences each are, too."""
    if call is None:
        return None
    engine = call.engine
    if engine is None:
        raise RuntimeError("a generating call without an engine")
    dp = engine.instances * engine.attention_dp
    layout = Layout(tp=engine.tp, sequence_parallel=int(engine.tp > 1), pp=engine.pp, dp=dp, ep=engine.ep, shard=dp)
    return Place(call.name, call.first_gpu, layout)
