"""Technique: a variant of training or of serving, written as a change of quantities or of what software can do.

One technique is one file and one line in `registry`. Its file holds the mechanism (what is sent, how often, what is
kept); the seconds come out of `step` as for every layout. Knobs at `neutral` change nothing, which a test shows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from ...errors import InputError

if TYPE_CHECKING:
    from ..problem import Problem
    from ..quantities.ledger import Ledger
    from ..serving.pool import Pool
    from ..specs.stack import StackSpec

Knobs = Mapping[str, float]
Group = Literal[
    "less communication", "memory", "overlap", "pipelines", "long context", "faults", "quality",
    "serving: overlap", "serving: prompts and answers", "serving: memory", "serving: speculation", "serving: devices",
    "serving: images",
]  # fmt: skip
Applied = tuple[tuple[str, tuple[tuple[str, float], ...]], ...]  # (technique, (knob, value)...)..., hashable
Columns = Mapping[str, NDArray[np.int64]]
Allows = Callable[[Columns, "Problem"], NDArray[np.bool_]]


@dataclass(frozen=True, slots=True)
class Knob:
    """A number that a technique takes."""

    name: str  # as users write it
    default: float
    low: float  # least value
    high: float  # greatest value
    text: str  # its meaning, for help
    whole: bool = True  # no fractions
    least_above_0: float = 0.0  # of one that 0 turns off: its least value otherwise

    def holds(self, value: float) -> bool:
        """Whether it may have this value."""
        if not self.low <= value <= self.high or 0 < value < self.least_above_0:
            return False
        return not self.whole or value == int(value)

    @property
    def bounds(self) -> str:
        """Its least and greatest value, in words."""
        return f"{f'0 or {self.least_above_0:g}' if self.least_above_0 else f'{self.low:g}'} to {self.high:g}"


@dataclass(frozen=True, slots=True)
class Need:
    """A condition on the layouts that a technique trains."""

    fields: tuple[str, ...]  # that `allows` reads
    allows: Allows  # True where a layout passes
    text: str  # `... needs TEXT`


@dataclass(frozen=True, slots=True)
class PoolNeed:
    """A condition on the instances of an engine that a technique serves by."""

    allows: Callable[[Pool, Knobs], NDArray[np.bool_]]  # [n] True where an instance passes
    text: str  # `... needs TEXT`
    # Both sides, in numbers, of a bound that the request sets on knobs, and the knobs that it allows.
    numbers: Callable[[Pool, Knobs], str] | None = None

    def described(self, pool: Pool, knobs: Knobs) -> str:
        """The text, with the numbers where it has any."""
        return self.text if self.numbers is None else f"{self.text}: {self.numbers(pool, knobs)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Serves:
    """A technique of serving: a change of what an engine computes, moves and holds, in prefill and in decode."""

    on_pool: Callable[[Pool, Knobs], Pool]  # the same instances with other quantities
    needs: tuple[PoolNeed, ...] = ()  # of an instance
    across_nodes: bool = False  # tensor parallelism may span nodes
    only_costs: bool = False  # no instance is better by it, whatever its knobs: `all` leaves it out


# What a technique may choose, and no other beside it.
EXCHANGE, SHARERS, PLACE = "how replicas exchange", "the ranks that share weights and gradients", "where the states are"
RING = "what ranks of context parallelism send round"
TP_OVERLAP, EP_OVERLAP = "what hides messages of tensor parallelism", "what hides messages of experts"
PHASES, PROPOSER = "how prompts and answers share a GPU", "what proposes tokens"
HOME = "where tokens meet their experts"
WEIGHTS = "the bytes of weights"


_T = TypeVar("_T")


def _unchanged(what: _T, knobs: Knobs) -> _T:
    return what


@dataclass(frozen=True, slots=True, kw_only=True)
class Technique:
    """Another way to train or to serve, as a change of the quantities of a layout or of an instance, or of what the
    software hides and sends."""

    name: str  # as users write it
    group: Group
    title: str  # one line
    paper: str  # authors, year, title, arXiv number
    bibtex: str  # of the paper
    knobs: tuple[Knob, ...]  # its numbers
    neutral: Knobs  # knobs that change nothing
    caveat: str  # cost that no price shows
    trains: bool = True  # by `rewrite` and `on_stack`
    serves: Serves | None = None  # None: it is of training alone
    needs: tuple[Need, ...] = ()  # of a layout that trains
    rewrite: Callable[[Ledger, Knobs], Ledger] = _unchanged  # (ledger, knobs) -> the same layouts with other quantities
    on_stack: Callable[[StackSpec, Knobs], StackSpec] = _unchanged  # (software, knobs) -> what it then can do
    chooses: tuple[str, ...] = ()  # of those above; it excludes all that choose the same
    zero: int | None = None  # the ZeRO stage that `needs` leaves to several ranks, None: any; it excludes other stages
    excludes: Mapping[str, str] = field(default_factory=dict)  # further technique that it cannot go with -> reason
    order: int = 0  # of its rewrite, or of `on_pool`, among several; of one order they give the same in any
    keeps_weights: bool = True  # GPUs hold at least their share of the weights; bounds rely on it
    only_costs: bool = False  # no step of the same work is shorter by it, whatever its knobs: `all` leaves it out
    least_work: Callable[[Knobs], float] | None = None  # least share of the layers' work that is left, for bounds
    # Of training it changes `Ledger.traffic` alone, and of that not what shard groups scatter; its needs read no knobs:
    # searches share the bounds of cheapest_exchange.py.
    only_traffic: bool = False
    fills_by_layers: bool = False  # only layers fill a pipeline, not the ends of the model; bounds rely on it

    def exclusion(self, other: Technique) -> str | None:
        """Why no run has both; None if it can."""
        for one, two in ((self, other), (other, self)):
            if two.name in one.excludes:
                return one.excludes[two.name]
        if both := next((choice for choice in self.chooses if choice in other.chooses), None):
            return f"both choose {both}"
        if self.zero is not None and other.zero is not None and self.zero != other.zero:
            stages = (f"ZeRO-{stage}" if stage else "no ZeRO" for stage in (self.zero, other.zero))
            return f"{self.name} needs {next(stages)}, {other.name} {next(stages)}"
        return None

    def settings(self, given: Mapping[str, float]) -> dict[str, float]:
        """All knobs, defaults where none is given. Raises InputError naming the knob and its range."""
        known = {knob.name: knob for knob in self.knobs}
        if unknown := [name for name in given if name not in known]:
            raise InputError(f"{self.name} has no knob `{unknown[0]}`", hint=f"its knobs: {', '.join(known)}")
        for name, value in given.items():
            knob = known[name]
            if not knob.holds(value):
                whole = "a whole number " if knob.whole else ""
                raise InputError(f"{self.name}: {name} is {value:g}, must be {whole}in {knob.bounds}", hint=knob.text)
        return {knob.name: float(given.get(knob.name, knob.default)) for knob in self.knobs}
