"""A plan for documents of mixed lengths in numbers: lengths, degrees, and the seconds that groups wait for the slowest
one of their micro-batch.

Seconds are those of the plan: its costs, on the batches of its sampler plan. Nothing is searched and no catalogue is
read. The plans of a single degree follow from the costs by a rule (planner/batches/one_degree.py).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ...cost_models.arrays import Array
from ...errors import InputError
from ..batches import one_degree
from ..batches.batch_plan import BatchPlan, Group
from ..batches.costs import GroupCosts
from ..batches.degree_rules import RULES
from ..document.lengths_plan import CostsPart, LengthsPlan
from ..document.sampler_plan import SamplerBatch
from ..studies.base import Part

_SHORTEST_BIN = 1024  # tokens: no row for shorter documents


class LengthLoad(Part):
    """Documents of a range of lengths."""

    longest: int  # tokens; the shorter ones are in the row before
    documents: float  # share of all documents
    tokens: float  # share of all tokens
    degrees: tuple[int, ...]  # on which the per-sequence plans train them, ascending


class DegreeLoad(Part):
    """Groups of one degree in the per-sequence plans."""

    degree: int
    groups: float  # of a step, mean
    documents: float  # of a step, mean
    tokens: float  # share of all tokens
    busy_s: float  # of a group, mean
    waits_s: float  # of a group for the slowest of its micro-batch, mean
    slowest: float  # share of the micro-batches whose slowest group has this degree


class PolicyIdle(Part):
    """Work and waiting under one rule for degrees."""

    name: str  # static, adaptive or per sequence
    idle: float  # share of the rank-seconds of micro-batches that have no work
    waits_s: float  # of a rank in a step, mean


class GroupLoad(Part):
    """A group in its micro-batch."""

    degree: int
    first_rank: int
    documents: int
    tokens: int
    longest: int  # tokens of its longest document
    busy_s: float
    waits_s: float  # for the slowest group


class MicroBatchLoad(Part):
    """A micro-batch: it ends with its slowest group."""

    seconds: float
    free_ranks: int  # without a group
    groups: tuple[GroupLoad, ...]


class StepLoad(Part):
    """The per-sequence plan of one batch."""

    number: int  # from 1
    seconds: float
    tokens: int
    micro_batches: tuple[MicroBatchLoad, ...]


class LengthsExplanation(Part):
    """See the module."""

    policies: tuple[PolicyIdle, ...]
    lengths: tuple[LengthLoad, ...]
    degrees: tuple[DegreeLoad, ...]
    step: StepLoad


def explain_lengths(plan: LengthsPlan, batches: Sequence[SamplerBatch], step: int = 1) -> LengthsExplanation:
    """The plan and its batches; `step` (from 1) is shown group by group. Raises InputError where there is none."""
    if not 1 <= step <= len(batches):
        raise InputError(f"the plan has no step {step}", hint=f"it has 1 to {len(batches)}")
    own = _costs(plan, plan.costs)
    own = RULES[plan.rule].costs(own, plan.rule_tokens) if plan.rule_tokens else own
    steps = [_Step(batch, own) for batch in batches]
    return LengthsExplanation(
        policies=tuple(_policies(plan, batches, own)), lengths=tuple(_lengths(steps, plan.longest)),
        degrees=tuple(_degrees(steps)), step=_step(step, steps[step - 1]),
    )  # fmt: skip


def _costs(plan: LengthsPlan, part: CostsPart) -> GroupCosts:
    return GroupCosts(
        num_ranks=part.ranks or plan.ranks, degrees=np.array(part.degrees, dtype=np.int64),
        rank_tokens=part.rank_tokens or plan.rank_tokens,
        grid=np.array(part.grid), token_s=np.array(part.token_s), micro_batch_s=part.micro_batch_s,
        once_s=part.once_s,
    )  # fmt: skip


@dataclass(frozen=True)
class _Busy:
    """A group with its seconds and those of the slowest group beside it."""

    group: Group
    first_rank: int
    busy_s: float
    makespan_s: float

    @property
    def waits_s(self) -> float:
        return self.makespan_s - self.busy_s


class _Step:
    """A batch of the sampler plan, with the seconds of its groups."""

    def __init__(self, batch: SamplerBatch, costs: GroupCosts) -> None:
        self.costs, self.lengths = costs, np.array(batch.lengths, dtype=np.float64)
        seconds = costs.seconds(self.lengths)
        self.micro_batches = [
            _busy([(Group(group.cp, group.seqs), group.ranks[0]) for group in groups], seconds, costs)
            for groups in batch.microbatches
        ]

    @property
    def groups(self) -> Iterator[_Busy]:
        return (busy for groups in self.micro_batches for busy in groups)

    def tokens(self, busy: _Busy) -> int:
        return int(self.lengths[list(busy.group.sequences)].sum())

    @property
    def seconds(self) -> float:
        makespans_s = sum(groups[0].makespan_s for groups in self.micro_batches)
        return makespans_s + len(self.micro_batches) * self.costs.micro_batch_s + self.costs.once_s


def _busy(placed: Sequence[tuple[Group, int]], seconds: Array, costs: GroupCosts) -> list[_Busy]:
    """The groups of a micro-batch. placed: (group, its first rank); seconds: [k, D] of documents on each degree."""
    column = {int(degree): at for at, degree in enumerate(costs.degrees)}
    busy = [float(seconds[list(group.sequences), column[group.degree]].sum()) for group, _ in placed]
    return [_Busy(group, first, busy_s, max(busy)) for (group, first), busy_s in zip(placed, busy, strict=True)]


def _policies(plan: LengthsPlan, batches: Sequence[SamplerBatch], own: GroupCosts) -> Iterator[PolicyIdle]:
    """own: costs of the per-sequence plans."""
    lengths = [np.array(batch.lengths, dtype=np.float64) for batch in batches]
    one, each = plan.policy("static"), plan.policy("adaptive")
    of_one, of_each = (_costs(plan, policy.costs or plan.costs) for policy in (one, each))
    planned = [tuple(tuple(Group(group.cp, group.seqs) for group in groups) for groups in batch.microbatches)
               for batch in batches]  # fmt: skip
    static = (one_degree.with_degree(of_batch, of_one, one.degrees[0]) for of_batch in lengths)
    yield _idle("static", [batch.micro_batches for batch in static if batch is not None], lengths, of_one)
    adaptive: list[BatchPlan] = [one_degree.adaptive(of_batch, of_each) for of_batch in lengths]
    yield _idle("adaptive", [batch.micro_batches for batch in adaptive], lengths, of_each)
    yield _idle("per sequence", planned, lengths, own)


def _idle(
    name: str, plans: Iterable[tuple[tuple[Group, ...], ...]], lengths: Sequence[Array], costs: GroupCosts
) -> PolicyIdle:
    """plans: the micro-batches of each batch."""
    waits, there, num = 0.0, 0.0, 0
    for micro_batches, of_batch in zip(plans, lengths, strict=True):
        seconds, num = costs.seconds(of_batch), num + 1
        for groups in micro_batches:
            busy = _busy([(group, 0) for group in groups], seconds, costs)
            rank_s = costs.num_ranks * busy[0].makespan_s
            there += rank_s
            waits += rank_s - sum(each.group.degree * each.busy_s for each in busy)
    return PolicyIdle(name=name, idle=waits / there, waits_s=waits / costs.num_ranks / num)


def _lengths(steps: Sequence[_Step], longest: int) -> Iterator[LengthLoad]:
    degrees = dict[int, set[int]]()
    documents, tokens = dict[int, int](), dict[int, float]()
    for step in steps:
        for busy in step.groups:
            for length in step.lengths[list(busy.group.sequences)].tolist():
                edge = 1 << max(math.ceil(math.log2(length)), _SHORTEST_BIN.bit_length() - 1)
                documents[edge] = documents.get(edge, 0) + 1
                tokens[edge] = tokens.get(edge, 0.0) + length
                degrees.setdefault(edge, set()).add(busy.group.degree)
    for edge in sorted(documents):
        yield LengthLoad(
            longest=min(edge, longest), documents=documents[edge] / sum(documents.values()),
            tokens=tokens[edge] / sum(tokens.values()), degrees=tuple(sorted(degrees[edge])),
        )  # fmt: skip


def _degrees(steps: Sequence[_Step]) -> Iterator[DegreeLoad]:
    groups = [(step, busy) for step in steps for busy in step.groups]
    total = sum(float(step.lengths.sum()) for step in steps)
    num_micro_batches = sum(len(step.micro_batches) for step in steps)
    slowest = [min(busy, key=lambda each: each.waits_s).group.degree for step in steps for busy in step.micro_batches]
    for degree in sorted({busy.group.degree for _, busy in groups}):
        inside = [(step, busy) for step, busy in groups if busy.group.degree == degree]
        yield DegreeLoad(
            degree=degree, groups=len(inside) / len(steps),
            tokens=sum(step.tokens(busy) for step, busy in inside) / total,
            documents=sum(len(busy.group.sequences) for _, busy in inside) / len(steps),
            busy_s=float(np.mean([busy.busy_s for _, busy in inside])),
            waits_s=float(np.mean([busy.waits_s for _, busy in inside])),
            slowest=slowest.count(degree) / num_micro_batches,
        )  # fmt: skip


def _step(number: int, step: _Step) -> StepLoad:
    return StepLoad(
        number=number, seconds=step.seconds, tokens=int(step.lengths.sum()),
        micro_batches=tuple(_micro_batch(step, groups) for groups in step.micro_batches),
    )  # fmt: skip


def _micro_batch(step: _Step, groups: Sequence[_Busy]) -> MicroBatchLoad:
    return MicroBatchLoad(
        seconds=groups[0].makespan_s, free_ranks=step.costs.num_ranks - sum(busy.group.degree for busy in groups),
        groups=tuple(
            GroupLoad(degree=busy.group.degree, first_rank=busy.first_rank, documents=len(busy.group.sequences),
                      tokens=step.tokens(busy), longest=int(step.lengths[list(busy.group.sequences)].max()),
                      busy_s=busy.busy_s, waits_s=busy.waits_s)
            for busy in groups
        ),
    )  # fmt: skip
