"""A run of GRPO or DAPO, read from the plan of a step of post-training. No torch here."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Literal

from ...cost_models.layouts import PRECISIONS, Layout, parse
from ...cost_models.quantities.even_stages import chunk_sizes
from ...cost_models.quantities.stages import devices_of
from ...cost_models.specs.model import ModelSpec
from ...errors import FieldProblem, InputError, UnsupportedError
from ...planner.document.candidate import Chunk
from ...planner.document.objective import CLIP_HIGH
from ...planner.document.rl_plan import RlCall, RlCandidate, RlPlan
from ...planner.document.specs import model_of, part, stack_of
from ..job import Job

Algorithm = Literal["grpo", "dapo"]
END = 0  # the token that ends an answer
SYNC = "new weights"  # their move to the engine, as reports name it
KL_COEFFICIENT = 0.04  # GRPO (arXiv 2402.03300, section 4.2)


@dataclass(frozen=True)
class Place:
    """A call on its ranks."""

    name: str  # of the call
    first: int  # rank of the world
    layout: Layout

    @property
    def ranks(self) -> range:
        return range(self.first, self.first + self.layout.num_gpus)


@dataclass(frozen=True)
class PlannedCall:
    """A call as planned, on the GPUs of the plan."""

    name: str
    gpus: int
    seconds: float  # with the models that move for it


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
    engine: Place  # generates; dp: its instances
    scores: tuple[Place, ...] = ()  # `reference` and `logprobs`
    planned: tuple[PlannedCall, ...] = field(default=())
    planned_sync_s: float = 0.0  # new weights to the engine
    planned_step_s: float = 0.0  # with data, rewards and logs

    @property
    def places(self) -> tuple[Place, ...]:
        return self.engine, *self.scores, self.train

    @property
    def world_size(self) -> int:
        return max(place.ranks.stop for place in self.places)

    @property
    def answers(self) -> int:
        """Of a step."""
        return self.prompts * self.samples

    @property
    def prompt_len(self) -> int:
        return self.seq_len + 1 - self.answer_len

    def replica(self, place: Place) -> Job:
        """The job of a copy of the model that generates or scores all answers of a step in one micro-batch."""
        layout = replace(place.layout, micro_batch=self.answers // place.layout.dp)
        values = {each.name: getattr(self, each.name) for each in fields(Job)}
        values |= {"layout": layout, "chunks": chunks_of(layout, self.model), "global_batch": self.answers}
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
    _check_runs(calls, algorithm, name)
    if missing := [each for each in ("generate", "train") if each not in calls]:
        raise InputError.of([FieldProblem("missing", file=name, field=f"candidates.{choice - 1}.calls.{each}",
                                          hint="plan again") for each in missing])  # fmt: skip
    if "stack" not in plan.resolved:
        raise UnsupportedError(f"{name} is of format {plan.format_version}, which does not hold the software stack",
                               hint="plan again")  # fmt: skip
    model = model_of({"model": part(plan.resolved, "models", name).get("policy")}, name)
    if model.mixers:
        raise UnsupportedError(f"{name}: {model.name} has layers with a state, which generation here does not keep",
                               hint="a model of attention layers")  # fmt: skip
    answers = part(plan.resolved, "answers", name)
    length, layout = int(answers["longest"]), _layout(calls["train"], name)
    return RlJob(
        plan_id=plan.request_sha256[:12], choice=choice, model=model, layout=layout, chunks=chunks_of(layout, model),
        stack=stack_of(plan.resolved, name), seq_len=work["input"] + length - 1, dtype=_dtype(layout),
        global_batch=answers["per_step"] // work["updates"], optimizer=work["optimizer"],
        predicted_step_s=None, algorithm=algorithm, prompts=work["prompts"], updates=work["updates"],
        samples=answers["per_step"] // work["prompts"], answer_len=length, lag=candidate.lag,
        train=Place("train", calls["train"].first_gpu, layout), engine=_engine(calls["generate"]),
        scores=tuple(Place(call.name, call.first_gpu, _layout(call, name))
                     for call in candidate.calls if call.kind == "infer"),
        planned=tuple(_planned(candidate)), planned_sync_s=candidate.sync_s, planned_step_s=candidate.step_s,
    )  # fmt: skip


def _check_runs(calls: Mapping[str, RlCall], algorithm: str, name: str) -> None:
    """Raises UnsupportedError for a step that plans have and no rank runs."""
    if algorithm not in CLIP_HIGH or "reward" in calls:
        what = f"{algorithm} with a reward model" if algorithm in CLIP_HIGH else algorithm
        raise UnsupportedError(f"{name}: {what} is planned, and not run here", hint="`--workload grpo` or dapo, with "
                               "rewards by a rule")  # fmt: skip
    if any(call.rank_tokens for call in calls.values()):
        raise UnsupportedError(f"{name}: answers with degrees of their own are planned, and not run here",
                               hint="`meshwright emit --to verl`, or plan without `--lengths-rule`")  # fmt: skip


def _dtype(layout: Layout) -> Literal["bf16", "fp32"]:
    return "fp32" if PRECISIONS[layout.precision] == "fp32" else "bf16"


def _planned(candidate: RlCandidate) -> Iterator[PlannedCall]:
    for call in candidate.calls:
        yield PlannedCall(call.name, call.gpus, call.end_s - call.start_s)


def _layout(call: RlCall, name: str) -> Layout:
    if call.layout_id is None:
        raise InputError.of([FieldProblem("missing", file=name, field=f"candidates.calls.{call.name}.layout_id")])
    return parse(call.layout_id)


def _engine(call: RlCall) -> Place:
    """Instances are data parallel; those with a part of the attention's sequences each are, too."""
    engine = call.engine
    if engine is None:
        raise RuntimeError("a generating call without an engine")
    dp = engine.instances * engine.attention_dp
    layout = Layout(tp=engine.tp, sequence_parallel=int(engine.tp > 1), pp=engine.pp, dp=dp, ep=engine.ep, shard=dp)
    return Place(call.name, call.first_gpu, layout)
