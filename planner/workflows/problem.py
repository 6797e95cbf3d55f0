"""The problem of a plan of post-training: models, work, cluster, and the limits of the framework."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal

from ...cost_models.serving.pool import MEMORY_SHARE
from ...cost_models.serving.rollout import AnswerLengths, Rollout
from ...cost_models.specs.cluster import ClusterSpec
from ...cost_models.specs.model import ModelSpec
from ...cost_models.specs.variants import valued
from ..batches.one_degree import best_fit
from ..request.reinforcement import RlWorkload
from ..request.resolve import Resolved
from ..serving.instance import InstanceLayout
from ..space.rules import Rule
from ..switches.base import Settings
from ..switches.registry import SWITCHES
from ..targets.post_training.base import RlTarget
from ..targets.post_training.core import PLAIN
from ..targets.post_training.limits import LayoutLimit, RlStep
from .graph import Role
from .software import Software

_SEQUENCE_UNIT = 128  # tokens that packed sequences are rounded up to, so that tp and cp divide them
# Significant bits of the number of packed sequences: by 3 they are short, and by 1 all smaller powers of two divide it.
_BATCH_BITS = (3, 1)

# Kind of call -> degrees that are given: fields of a layout that trains or scores, axes of an engine.
Fixed = Mapping[Literal["train", "infer", "generate"], Mapping[str, int]]


@dataclass(frozen=True)
class RlProblem:
    """Models, work, and the whole cluster as a request to train on it."""

    resolved: Resolved  # of the policy, on all GPUs
    work: RlWorkload
    engine: str
    models: Mapping[Role, ModelSpec]
    target: RlTarget | None = None  # None: no framework limits the placements
    stays: bool = False  # models that train never leave their GPUs
    fixed: Fixed = field(default_factory=dict)
    software: Software | None = None  # that runs the calls; None: the trainer and the engine, as they are named
    switches: Settings = field(default_factory=lambda: PLAIN)  # that its trainer sets
    ray_engine: bool = False  # as `RlTarget.ray_engine`
    part: LayoutLimit | None = None  # of the layouts that train; None: all
    # Of a run as it was: tokens that a packed sequence holds at most, and the share of a GPU's memory for the engine.
    row_tokens: int | None = None
    memory_share: float = MEMORY_SHARE

    @property
    def weights(self) -> str:
        """Number format of an engine's weights."""
        return self.work.precision if self.work.precision == "fp8" else "bf16"

    @property
    def step(self) -> RlStep:
        """As frameworks limit it."""
        work = self.work
        return RlStep(
            models={str(role): model for role, model in self.models.items()}, algorithm=work.algorithm,
            prompts=work.prompts, samples=work.samples_per_prompt, updates=work.updates, optimizer=work.optimizer,
            trainer=self.resolved.target.name, engine=self.engine,
        )  # fmt: skip

    @property
    def layout_rules(self) -> tuple[Rule, ...]:
        """Rules of the framework for layouts that train."""
        if self.software is not None:
            return self.software.training_rules
        if self.target is None:
            return ()
        part = () if self.part is None else (self.part,)
        limits = self.target.limits.layouts(self.step, not self.stays)
        return tuple(it.rule(self.target.name) for it in (*limits, *part))

    @property
    def parts(self) -> tuple[RlProblem, ...]:
        """One for each part of the layouts whose weights take as much memory of an engine on the same GPUs, and leave
        it some; this one where weights leave them."""
        staying = () if self.target is None else self.target.limits.staying(self.step, self.cluster.num_gpus)
        if not staying:
            return (self,)
        memory_bytes = self.cluster.groups[0].gpu.memory_bytes
        return tuple(replace(self, part=part, memory_share=self.memory_share - stay / memory_bytes)
                     for part, stay in staying if stay < self.memory_share * memory_bytes)  # fmt: skip

    def by_train(self, role: Role) -> bool:
        """Whether a model that does not train scores by the layout of the policy."""
        if self.target is None or not self.target.limits.scores_by_train:
            return False
        return self.models[role] in (self.models["policy"], valued(self.models["policy"]))

    @property
    def trainer_rules(self) -> tuple[Rule, ...]:
        """Rules of the trainer, but for those that the framework replaces."""
        replaced = self.target.limits.without if self.target is not None else frozenset[str]()
        return tuple(it for it in self.resolved.target_rules if it.name not in replaced)

    @property
    def joint(self) -> tuple[str, ...]:
        """Fields in which the layouts of critic and policy are equal."""
        return self.target.limits.joint(self.step) if self.target is not None else ()

    def starts(self, instance: InstanceLayout, number: float, lag: int) -> bool:
        """Whether the framework starts so many of these instances of the engine."""
        if self.software is not None:
            return bool(self.fixed) or self.software.generates(self.models["policy"], instance, number)
        return self.target is None or not self.target.limits.engine(instance, lag)

    @property
    def cluster(self) -> ClusterSpec:
        return self.resolved.cluster

    @cached_property
    def lengths(self) -> AnswerLengths:
        """Lengths of answers; without output_max they end where the model has no more positions."""
        work, positions = self.work, self.models["policy"].max_positions
        largest = work.output_max or (positions - work.input if positions else None)
        return AnswerLengths.of(work.output, work.output_p90, largest)

    @property
    def rollout(self) -> Rollout:
        work = self.work
        return Rollout(prompts=work.prompts, samples=work.samples_per_prompt, prompt=work.input, lengths=self.lengths)

    @property
    def longest(self) -> int:
        """Tokens of the longest answer with its prompt."""
        return math.ceil(self.work.input + self.lengths.longest(self.work.answers))

    @property
    def longest_allowed(self) -> int:
        """Tokens of the longest answer that the engine does not stop, with its prompt."""
        return self.work.input + (self.work.output_max or math.ceil(self.lengths.longest(self.work.answers)))

    def packings(self, answers: int, gpus: int) -> list[tuple[int, int]]:
        """Ways to pack so many answers that train on so many GPUs: sequences, and tokens of each, which hold the
        longest answer. One where degrees are given, or other software runs the calls: of a run as it was."""
        if self.row_tokens is not None:
            return [self._filled(answers, gpus, self.row_tokens)]
        mean = self.work.input + self.lengths.mean
        # A sequence of the longest answer holds so many of the mean length.
        most = max(answers // math.ceil(self.longest / mean), 1)
        numbers = [most - most % 2 ** max(most.bit_length() - bits, 0) for bits in _BATCH_BITS]
        tokens = {sequences: max(answers * mean / sequences, self.longest) for sequences in numbers}
        out = [(sequences, math.ceil(each / _SEQUENCE_UNIT) * _SEQUENCE_UNIT) for sequences, each in tokens.items()]
        return out[:1] if self.fixed or self.software is not None else out

    def _filled(self, answers: int, gpus: int, room: int) -> tuple[int, int]:
        """Whole answers fill sequences of `room` tokens, as many on each copy of the model; stages need all equally
        long (NVIDIA-NeMo/RL@5fb58893, BatchedDataDict.shard_by_batch_size)."""
        given = self.fixed.get("train", {})
        copies = gpus // math.prod(given.get(axis, 1) for axis in ("tp", "pp", "cp"))
        lengths = self.work.input + self.lengths.evenly(answers)
        sequences = math.ceil(len(best_fit(lengths, room)) / copies) * copies
        tokens = room if given.get("pp", 1) > 1 else float(lengths.sum()) / sequences
        return sequences, math.ceil(tokens / _SEQUENCE_UNIT) * _SEQUENCE_UNIT

    def on(self, role: Role, gpus: int, answers: int, packing: tuple[int, int] | None = None) -> Resolved:
        """Training a model on so many answers, packed in the first way or in another."""
        sequences, seq_len = packing or self.packings(answers, gpus)[0]
        whole = self.work.input + self.lengths.tokens
        workload = replace(self.resolved.workload, seq_len=seq_len, global_batch=sequences,
                           mean_len=float(whole.mean()), mean_square_len=float((whole**2).mean()))  # fmt: skip
        cluster = part_of(self.cluster, gpus)
        asked = replace(self.resolved, model=self.models[role], cluster=cluster, workload=workload)
        return as_set(asked.switched(), self.switches)


def as_set(resolved: Resolved, switches: Settings) -> Resolved:
    """The request with the switches that a framework of post-training sets for its trainer."""
    concerned = {name: value for name, value in switches.items() if SWITCHES[name].concerns(resolved.problem)}
    return resolved.under(replace(resolved.switches, settings={**resolved.switches.settings, **concerned}))


def part_of(cluster: ClusterSpec, gpus: int) -> ClusterSpec:
    """So many neighbouring GPUs of a cluster whose nodes are all alike."""
    group = cluster.groups[0]
    per_node = min(group.gpus_per_node, gpus)
    wider = [i for i, level in enumerate(cluster.levels) if level.size >= gpus]
    levels = cluster.levels[: wider[0] + 1] if wider else cluster.levels
    return replace(cluster, groups=(replace(group, num_nodes=gpus // per_node, gpus_per_node=per_node),), levels=levels)
