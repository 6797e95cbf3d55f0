"""What a technique is: another way to train, written as a change of the ledger's quantities.

One technique is one file and one line in `registry`. Its file holds the mechanism (what is sent, how often, what is
kept); the seconds come out of `step` as for every layout. Knobs at `neutral` change nothing, which a test shows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ...errors import InputError

if TYPE_CHECKING:
    from ..problem import Problem
    from ..quantities.ledger import Ledger

Knobs = Mapping[str, float]
Applied = tuple[tuple[str, tuple[tuple[str, float], ...]], ...]  # (technique, (knob, value)...)..., hashable
Columns = Mapping[str, NDArray[np.int64]]
Allows = Callable[[Columns, "Problem"], NDArray[np.bool_]]


@dataclass(frozen=True, slots=True)
class Knob:
    """A number of a technique in [low, high], and what it is. `whole`: no fractions."""

    name: str
    default: float
    low: float
    high: float
    text: str
    whole: bool = True


@dataclass(frozen=True, slots=True)
class Need:
    """What a technique asks of a layout: the fields that `allows` reads, and the words (`... needs TEXT`)."""

    fields: tuple[str, ...]
    allows: Allows
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Technique:
    """rewrite(ledger, knobs): the same layouts with other quantities, the same ones where the knobs are `neutral`.

    caveat: what it costs that no price shows. excludes: other techniques that it cannot go with, and why. order: of its
    rewrite among several. Bounds rely on the rest: keeps_weights: GPUs hold at least their share of the weights;
    fills_by_layers: only layers fill a pipeline, not what its ends do.
    """

    name: str
    title: str
    paper: str
    bibtex: str
    knobs: tuple[Knob, ...]
    neutral: Knobs
    needs: tuple[Need, ...]
    rewrite: Callable[[Ledger, Knobs], Ledger]
    caveat: str
    excludes: Mapping[str, str] = field(default_factory=dict)
    order: int = 0
    keeps_weights: bool = True
    fills_by_layers: bool = False

    def settings(self, given: Mapping[str, float]) -> dict[str, float]:
        """All knobs, defaults where none is given. Raises InputError naming the knob and its range."""
        known = {knob.name: knob for knob in self.knobs}
        if unknown := [name for name in given if name not in known]:
            raise InputError(f"{self.name} has no knob `{unknown[0]}`", hint=f"its knobs: {', '.join(known)}")
        for name, value in given.items():
            knob = known[name]
            if not knob.low <= value <= knob.high or (knob.whole and value != int(value)):
                whole = "a whole number " if knob.whole else ""
                raise InputError(
                    f"{self.name}: {name} is {value:g}, must be {whole}in {knob.low:g} to {knob.high:g}", hint=knob.text
                )
        return {knob.name: float(given.get(knob.name, knob.default)) for knob in self.knobs}
