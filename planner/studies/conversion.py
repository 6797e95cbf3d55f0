"""Conversion: states moved from the plan's layout to another of the same GPUs."""

from __future__ import annotations

from ...cost_models.layouts import parse
from ...errors import InputError, UnknownNameError
from ..evaluation.conversion import Gathering, moved
from ..space.rules import violations
from .base import Part, Question, Result

_ARGUMENT = "to"


class Way(Part):
    """A way to gather what is sent."""

    name: str
    gather_s: float  # before messages, and after them
    message_s: float
    total_s: float

    @classmethod
    def of(cls, gathering: Gathering) -> Way:
        return cls(name=gathering.name, gather_s=gathering.gather_s, message_s=gathering.message_s,
                   total_s=gathering.total_s)  # fmt: skip


class Conversion(Result):
    """The fullest GPU of the layout that the plan's becomes."""

    to: str  # its id
    received_bytes: float
    cut_bytes: float  # of them, what lies in runs
    run_bytes: float  # the shortest run; 0: none is cut
    runs: float
    ways: tuple[Way, ...]

    @property
    def table(self) -> tuple[Way, ...]:
        return self.ways


def run(question: Question) -> Conversion:
    """Raises InputError without a layout, and for one that is not legal; UnknownNameError for another assumption;
    UnsupportedError for states in a store."""
    for name in question.assume:
        if name != _ARGUMENT:
            raise UnknownNameError("assumption", name, (_ARGUMENT,))
    if _ARGUMENT not in question.assume:
        raise InputError("no layout to convert to", hint="`--assume to=tp8-dp4-mbs1-z1-rfull`; `plan` lists some")
    base, new = question.base, parse(question.assume[_ARGUMENT])
    if problems := violations(new, base.problem):
        raise InputError("\n".join(f"--assume to: {problem}" for problem in problems),
                         hint="a layout of the same GPUs")  # fmt: skip
    states = moved(base, question.layout.layout, new)
    return Conversion(
        **question.common_fields("conversion"), to=str(new), received_bytes=states.received_bytes,
        cut_bytes=states.cut_bytes, run_bytes=states.run_bytes, runs=states.runs,
        ways=(Way.of(states.by_kernels), Way.of(states.by_copies)),
    )  # fmt: skip
