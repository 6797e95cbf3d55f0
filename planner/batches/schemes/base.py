"""A published scheme for documents of mixed lengths: who gets which ranks, on the batches of a plan."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from ....cost_models.arrays import Array
from ....errors import NoFeasibleLayoutError
from ..costs import GroupCosts
from ..family_choice import best_family, holding
from ..ledger_costs import Family, Priced, families
from ..policy import Policy, Step
from .pipelines import Shape, shapes


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
    _best: dict[tuple[str, int], tuple[Family, GroupCosts]] = field(default_factory=dict)  # of `best`, once it is known

    @cached_property
    def shapes(self) -> tuple[Shape, ...]:
        """The pipelines that the cluster has."""
        return tuple(shapes(self.priced))

    def best(self, algorithm: str, zero: int) -> tuple[Family, GroupCosts]:
        """The tensor parallelism and recomputation that suit the batches best, with the costs of their groups. Raises
        NoFeasibleLayoutError where no groups hold the longest document."""
        if (algorithm, zero) not in self._best:
            able = holding(self.priced, families(self.priced, (algorithm,), zero), self.longest)
            if not able:
                raise NoFeasibleLayoutError(f"no group of GPUs holds a document of {self.longest:,} tokens")
            self._best[algorithm, zero] = best_family(self.priced, able, self.batches)
        return self._best[algorithm, zero]


@dataclass(frozen=True)
class Planned:
    """The steps of a scheme and the layout that they were priced with, by its degrees of parallelism."""

    policy: Policy
    layout: str


@dataclass(frozen=True, kw_only=True)
class Scheme:
    """A scheme, as its authors published it."""

    name: str  # of `--lengths-scheme`
    source: str  # paper or code
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
