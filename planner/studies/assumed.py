"""Assumptions of studies: numbers that no file of facts holds, each with its source, and those that the user gives."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from ...cost_models import units
from ...errors import InputError, UnknownNameError
from .base import Part, Question

Known = Mapping[str, tuple[str, str]]  # name -> (usual value, its source); a value that is empty is not known


class Assumption(Part):
    """A number that no file of facts holds."""

    name: str
    value: float  # in base units of `dimension`
    dimension: str
    source: str  # of the usual value; `given` where the user gave it


def assumptions(
    question: Question, known: Known, dimensions: Mapping[str, units.Dimension], optional: Collection[str] = ()
) -> tuple[Assumption, ...]:
    """Those of a study, in its order. dimensions: those that are no seconds. optional: left out unless given.

    Raises UnknownNameError for one that there is not, InputError for a value without a unit or not above zero.
    """
    for name in question.assume:
        if name not in known:
            raise UnknownNameError("assumption", name, known)
    out = []
    for name, (usual, source) in known.items():
        if name in optional and name not in question.assume:
            continue
        dimension, text = dimensions.get(name, "s"), question.assume.get(name, usual)
        try:
            value = units.parse(text, dimension)
        except InputError as error:
            raise InputError(f"--assume {name}: {error.message}", hint=error.hint) from None
        if value <= 0:
            raise InputError(f"--assume {name}: must be more than 0, is {text}")
        out.append(Assumption(name=name, value=value, dimension=dimension,
                              source="given" if name in question.assume else source))  # fmt: skip
    return tuple(out)
