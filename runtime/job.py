"""One training run: model, layout, stages and settings, read from a plan. No torch here.

The launcher and every worker build equal jobs from the plan. Only the plan and the flags pass between them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from ..cost_models.layouts import (
    OFFLOADS,
    OPTIMIZER_ON_HOST,
    PRECISIONS,
    RECOMPUTE_MODES,
    SCHEDULES,
    Layout,
    modules_of,
)
from ..cost_models.problem import Problem
from ..cost_models.schedules.orders import W
from ..cost_models.schedules.simulator import Schedule, make
from ..cost_models.specs.model import ModelSpec
from ..cost_models.specs.stack import StackSpec
from ..cost_models.specs.workload import Images, Lora, Workload
from ..errors import InputError, UnsupportedError
from ..planner.document.candidate import Candidate, Chunk
from ..planner.document.plan import Plan
from ..planner.document.specs import model_of, stack_of, workload_of
from ..planner.targets.meshwright.rules import cannot_train, refusal
from ..planner.targets.meshwright.techniques import exchanging_technique
from .candidate_checks import check_candidate
from .evaluation import Evaluation
from .learning_rate import RateSchedule
from .model.adapters import Adapters
from .parallel.strategies import EMBEDDING, HEAD, Strategies, layer_name, strategies_of

Dtype = Literal["bf16", "fp32", "fp64"]
# Families with factors, norms or blocks that have no field in plans before format 1.3.
_WHOLE_SINCE_1_3 = frozenset({"falcon", "gemma", "gemma2", "gemma3", "gpt_neox", "gpt_oss", "gptj", "granite", "olmo2"})
_WAITING = "the tensors for the delayed weight gradients stay on the GPU"


@dataclass(frozen=True, kw_only=True)
class Job:
    """One training run: model, layout and stages of a plan, and the settings of `launch`."""

    plan_id: str  # first 12 digits of the digest of the plan's request
    choice: int  # number of the plan's candidate, from 1
    model: ModelSpec  # the trained model
    layout: Layout  # of most layers, where parts have their own strategies
    chunks: tuple[Chunk, ...]  # runs of layers, in the order of the model
    stack: StackSpec  # the software stack that priced the plan
    seq_len: int  # tokens of a sequence
    global_batch: int  # sequences per step, over all ranks
    optimizer: str  # adamw or sgd
    dtype: Dtype  # of weights and activations
    predicted_step_s: float | None  # seconds; None where the plan priced something else
    predicted_mfu: float | None = None  # model FLOP/s over the peak of the plan's GPUs, with that step time
    logical_of_rank: tuple[int, ...] | None = None  # by the rank of torchrun; None: the same
    strategies: Strategies | None = None  # None: all parts have the layout; else chunks do not state recomputation
    custom_order: Schedule | None = None  # order of the passes; None: the layout's schedule
    # (name, knobs) of the technique by which replicas exchange; None: they sum their gradients in every step.
    technique: tuple[str, dict[str, float]] | None = None
    lora: Lora | None = None  # adapters; None: all weights train
    lora_alpha: float | None = None  # adapters are scaled by alpha over rank; None: by 1
    steps: int = 10  # of the whole run, including those before a checkpoint
    seed: int = 0  # of weights and of synthetic data
    learning_rate: float = 3e-4  # the largest
    rates: RateSchedule | None = None  # learning rate by step; None: constant
    weight_decay: float = 0.1  # of AdamW
    no_decay: frozenset[str] = frozenset()  # kinds of parameters without it, of weight_decay.KINDS
    clip: float | None = 1.0  # largest norm of the gradient; None: no clipping
    init_from: str | None = None  # Hugging Face folder of the initial weights; None: drawn from the seed
    init_digest: str | None = None  # digest of these weights
    data: str = "synthetic"  # an argument of `data.open_source`
    shuffle: bool = False  # sequences of stored data come in a random order by seed and epoch
    end_token: int | None = None  # token at the end of each document; its target has no loss. None: all targets have
    evaluation: Evaluation | None = None  # on other data; None: none
    images: Images | None = None  # of every sequence; None: text alone
    source_len: int | None = None  # tokens that an encoder reads beside each sequence; None: no encoder
    freezes_tower: bool = False  # layers of the vision tower do not train
    balances_experts: bool = False  # round-robin tokens, about as even as a trained router

    @property
    def world_size(self) -> int:
        return self.layout.num_gpus

    def rate(self, index: int) -> float:
        """Learning rate of step index, from 0."""
        return self.learning_rate if self.rates is None else self.rates.at(index)

    def mfu(self, step_s: float) -> float | None:
        """Model FLOP/s of a step over the peak of the plan's GPUs; None where the plan priced something else."""
        planned = (self.predicted_mfu or 0.0) * (self.predicted_step_s or 0.0)
        return planned / step_s if planned else None

    @property
    def num_micro_batches(self) -> int:
        """Micro-batches per pipeline and step."""
        return self.global_batch // (self.layout.dp * self.layout.micro_batch)

    @property
    def warmup_steps(self) -> int:
        """Steps in which a technique sums gradients before it exchanges less."""
        return round((self.technique[1] if self.technique else {}).get("warmup", 0.0) * self.steps)

    @property
    def num_replicas(self) -> int:
        """Copies of the model, or of one part of its states under ZeRO."""
        return self.layout.dp * self.layout.cp // (self.layout.shard * self.layout.cp if self.layout.zero else 1)

    @property
    def tokens_per_step(self) -> int:
        return self.global_batch * self.seq_len

    @property
    def row_len(self) -> int:
        """Tokens of the inputs of a sequence: those of its source, if any, and its own."""
        return self.seq_len + (self.source_len or 0)

    def tokens_until(self, steps: int) -> int:
        """Tokens of the first `steps` steps together."""
        return steps * self.tokens_per_step

    @property
    def objective(self) -> dict[str, Any]:
        """Settings of an objective other than the next token, as JSON; weights after a step depend on them."""
        return {}

    @property
    def layout_id(self) -> str:
        """The layout id of the plan. A layer-wise layout ends in the digest of its strategies."""
        return str(self.layout) if self.strategies is None else f"{self.layout}-x{self.strategies.digest}"

    @property
    def layouts(self) -> tuple[Layout, ...]:
        """The distinct layouts of the parts of the model."""
        return (self.layout,) if self.strategies is None else self.strategies.distinct

    def strategy(self, part: str) -> Layout:
        """The layout of a part of the model, by its name."""
        return self.layout if self.strategies is None else self.strategies.of(part)

    def parts_of(self, chunk: Chunk) -> list[str]:
        """Names of the parts of a chunk, in order."""
        layers = range(chunk.layers[0], chunk.layers[-1] + 1) if chunk.layers else ()
        return [EMBEDDING] * chunk.embedding + [layer_name(i) for i in layers] + [HEAD] * chunk.head

    def sharding(self, layout: Layout) -> int:
        """The executed ZeRO stage of a layout. Where the stack keeps states whole while a pipeline runs, stages 2
        and 3 hold and move the same as stage 1 (StackSpec.sharded_states)."""
        return min(layout.zero, 1) if layout.pp > 1 and self.stack.is_fsdp2 else layout.zero

    @property
    def adapters(self) -> Adapters | None:
        """The adapters of frozen weights; None where the weights train."""
        return None if self.lora is None else Adapters.of(self.lora, self.lora_alpha)

    @property
    def schedule(self) -> str:
        return SCHEDULES[self.layout.schedule]

    @property
    def devices(self) -> list[int]:
        """Stage of each chunk, in the order of the model."""
        return [chunk.stage for chunk in self.chunks]

    @property
    def order(self) -> Schedule:
        """The order of the passes."""
        if self.custom_order is not None:
            return self.custom_order
        name, vpp = (self.schedule, self.layout.vpp) if self.layout.pp > 1 else ("1f1b", 1)
        return make(name, self.layout.pp, self.num_micro_batches, vpp)

    @property
    def splits_backward(self) -> bool:
        """Whether weight gradients are computed separately from input gradients."""
        return bool((self.order.kind == W).any())

    def check_states(self) -> None:
        """Raises UnsupportedError for a split backward pass with sharded weights or offloaded activations."""
        if self.splits_backward and self.offloads_activations:
            raise UnsupportedError(f"{self.order.name} splits the backward pass: {_WAITING}, not in host memory",
                                   hint="plan again with `--fix offload=none`, or another `--order`")  # fmt: skip
        sharding = max(self.sharding(layout) for layout in self.layouts)
        if self.splits_backward and sharding > 1:
            raise UnsupportedError(
                f"{self.order.name} splits the backward pass: weights and gradients have to stay whole while the "
                f"pipeline runs, and the stack of this plan, {self.stack.name}, shards them (ZeRO {sharding})",
                hint="plan again with `--target meshwright`, or `--fix zero=1`",
            )

    @property
    def offloads_activations(self) -> bool:
        """Whether the activations of layers are offloaded to host memory."""
        return "act" in OFFLOADS[self.layout.offload].split("+")

    @property
    def offloads_states(self) -> bool:
        """Whether the optimizer and its states are in host memory."""
        return self.layout.offload in OPTIMIZER_ON_HOST


def dropped_modules(layout: Layout) -> tuple[str, ...]:
    """Modules of selective recompute; empty under the other modes."""
    return modules_of(layout.recompute_modules) if RECOMPUTE_MODES[layout.recompute] == "selective" else ()


def job_of(plan: Plan, choice: int, name: str = "plan") -> Job:
    """The job of candidate `choice`. Raises InputError with each damaged field, UnsupportedError if it cannot run.

    `name`: the file, for messages.
    """
    if not 1 <= choice <= len(plan.candidates):
        raise InputError(f"{name} has no layout {choice}", hint=f"it has 1 to {len(plan.candidates)}")
    candidate = plan.candidates[choice - 1]
    model, stack = model_of(plan.resolved, name), stack_of(plan.resolved, name)
    workload, layout = workload_of(plan.resolved, name), candidate.to_layout()
    check_candidate(candidate, layout, model, workload, plan, name)
    _check_age(plan, model, name)
    strategies = strategies_of(candidate, layout, model, workload.seq_len, name)
    distinct = strategies.distinct if strategies is not None else (layout,)
    reason = next(filter(None, (unsupported(strategy, model, workload, stack) for strategy in distinct)), None)
    if candidate.spread is not None and candidate.spread.shares is not None:
        reason = f"replicas run {' and '.join(map(str, candidate.spread.shares))} micro-batches, it runs equally many"
    technique = exchanging_technique(workload)
    if strategies is not None and technique is not None:
        reason = f"its layers have strategies of their own, and {technique[0]} needs replicas of the whole model"
    if reason is not None:
        raise _refusal(plan, choice, model, workload, stack, reason)
    job = Job(
        plan_id=plan.request_sha256[:12], choice=choice, model=model, layout=layout, chunks=_chunks(candidate),
        stack=stack, seq_len=workload.seq_len, global_batch=workload.global_batch,
        optimizer=workload.optimizer, dtype="fp32" if PRECISIONS[layout.precision] == "fp32" else "bf16",
        predicted_step_s=candidate.step_s, predicted_mfu=candidate.mfu, images=workload.images,
        logical_of_rank=candidate.placement.logical_of_rank, strategies=strategies, lora=workload.lora,
        freezes_tower=workload.freeze_tower, source_len=workload.source_len, technique=technique,
    )  # fmt: skip
    job.check_states()
    return job


def _check_age(plan: Plan, model: ModelSpec, name: str) -> None:
    """Raises UnsupportedError for a model that plans of an older format hold only in part."""
    minor = int(plan.format_version.partition(".")[2] or 0)
    if minor < 3 and model.family in _WHOLE_SINCE_1_3:
        raise UnsupportedError(
            f"{name} is of format {plan.format_version}, which does not hold all that {model.family} computes",
            hint="plan again",
        )


def _chunks(candidate: Candidate) -> tuple[Chunk, ...]:
    plain = candidate.layerwise is None
    return tuple(chunk if plain else chunk.model_copy(update={"recompute_layers": 0}) for chunk in candidate.stages)


def unsupported(layout: Layout, model: ModelSpec, workload: Workload, stack: StackSpec) -> str | None:
    """Why this runtime cannot execute the layout (the first reason), or None."""
    problem = Problem(model, workload, stack, layout.num_gpus, layout.num_gpus)  # no rule asks for nodes
    return refusal(layout, problem)


def _refusal(
    plan: Plan, choice: int, model: ModelSpec, workload: Workload, stack: StackSpec, reason: str
) -> UnsupportedError:
    uniform = [c for c in plan.candidates if c.layerwise is None]
    runnable = [c for c in uniform if unsupported(c.to_layout(), model, workload, stack) is None]
    if cannot_train(model, workload) is not None:
        hint = "plan for a framework that trains it; `--target any` also plans it"
    elif runnable:
        best = min(runnable, key=lambda c: c.step_s)
        what = f"{best.layout_id}, {best.step_s:.3g} s"
        hint = f"`--choice {best.choice}` is the best one in this plan that it runs: {what}"
    else:
        hint = "plan again with `--target meshwright`"
    layout_id = plan.candidates[choice - 1].layout_id
    return UnsupportedError(f"layout {choice}, {layout_id}, cannot be launched: {reason}", hint=hint)
