"""A scheme for documents of mixed lengths: who gets which ranks, on the batches of a plan."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal, TypeVar

from ....cost_models.arrays import Array
from ....errors import NoFeasibleLayoutError
from ..family_choice import Candidate
from ..ledger_costs import Family, Priced, families, ledger_costs
from ..policy import Policy, Step
from .pipelines import Shape, shapes

C = TypeVar("C")
_SAMPLE = 2  # batches on which all choices of a scheme are compared
_FINALISTS = 6  # choices that are compared on all batches


@dataclass(frozen=True)
class SchemeStep:
    """A step that is no list of groups side by side."""

    step_s: float
    degrees: tuple[int, ...]  # ranks that share a document, ascending
    num_micro_batches: float  # of a rank, in the mean


@dataclass(frozen=True, eq=False)
class Subject:
    """The batches that every scheme plans, and what prices depend on."""

    priced: Priced
    batches: Sequence[Array]  # [batch][document] tokens
    longest: int  # tokens of the longest document that a run may meet
    _candidates: dict[tuple[str, int], list[Candidate]] = field(default_factory=dict)  # once they are priced

    @cached_property
    def shapes(self) -> tuple[Shape, ...]:
        """The pipelines that the cluster has."""
        return tuple(shapes(self.priced))

    def candidates(self, algorithm: str, zero: int) -> list[Candidate]:
        """Every tensor parallelism and recomputation whose groups hold the longest document. Raises
        NoFeasibleLayoutError where there is none."""
        if (algorithm, zero) not in self._candidates:
            compared = families(self.priced, (algorithm,), (zero,))
            priced = [(family, costs) for family in compared if (costs := ledger_costs(self.priced, family))]
            self._candidates[algorithm, zero] = [each for each in priced if each[1].longest >= self.longest]
        if not self._candidates[algorithm, zero]:
            raise NoFeasibleLayoutError(f"no group of GPUs holds a document of {self.longest:,} tokens")
        return self._candidates[algorithm, zero]

    def fastest(
        self, choices: Iterable[C], steps: Callable[[C, Sequence[Array]], Sequence[Step]]
    ) -> tuple[C, Sequence[Step]]:
        """The choice with the shortest steps, of those that are best on the first batches, and these steps.
        steps(choice, batches): a step per batch."""
        first = sorted(choices, key=lambda choice: _total_s(steps(choice, self.batches[:_SAMPLE])))
        planned = ((choice, steps(choice, self.batches)) for choice in first[:_FINALISTS])
        return min(planned, key=lambda each: _total_s(each[1]))


def _total_s(steps: Sequence[Step]) -> float:
    return sum(step.step_s for step in steps)


@dataclass(frozen=True)
class Planned:
    """The steps of a scheme and the layout that they were priced with, by its degrees of parallelism."""

    policy: Policy
    layout: str


@dataclass(frozen=True, kw_only=True)
class Scheme:
    """A scheme, as far as its rule is known here."""

    name: str  # of `--lengths-scheme`
    source: str  # paper or code
    basis: Literal["code", "paper", "summary"]  # of the rule here; after a summary of the paper it is simplified
    rule: str  # for degrees, a few words
    run: Callable[[Subject], tuple[str, Sequence[Step]]]  # words for its layout, and a step per batch

    def plan(self, subject: Subject) -> Planned:
        """Its steps on the batches of `subject`. Raises NoFeasibleLayoutError for a document that is too long."""
        layout, steps = self.run(subject)
        return Planned(Policy(self.name, tuple(steps)), layout)


def words_of(family: Family) -> str:
    """`tp2, ring, ZeRO-1, full recomputation`, or `tp4 pp2, ZeRO-1, no recomputation`."""
    recompute = "no" if family.recompute == "none" else family.recompute
    ranks = f"tp{family.tp} pp{family.pp}" if family.pp > 1 else f"tp{family.tp}, {family.cp_algorithm}"
    return f"{ranks}, ZeRO-{family.zero}, {recompute} recomputation"
