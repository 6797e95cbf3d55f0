"""The screen of `memory --trace`: planned and traced bytes beside each other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from .. import text
from ..console import table

if TYPE_CHECKING:
    from ...runtime.rehearsal.traced import Comparison
    from .parts import Part


def trace_screen(traced: Sequence[Comparison]) -> list[Part]:
    """A row per stage; where the two disagree, their buffers."""
    from ...runtime.rehearsal.traced import TOLERANCE

    rows = [
        (str(each.trace.stage), text.gib(each.planned_bytes), text.gib(each.trace.allocated_bytes),
         text.more(each.difference), each.trace.doing)
        for each in traced
    ]  # fmt: skip
    names = ("stage", "planned GiB", "traced GiB", "difference", "peak while")
    parts: list[Part] = ["", "One step of the runtime, traced (allocated)", table(*names, rows=rows, right=names[:-1])]
    for each in traced:
        if not each.agrees:
            parts += ["", f"Stage {each.trace.stage} differs by more than {text.share(TOLERANCE)}, by", _terms(each)]
    return parts


def _terms(each: Comparison) -> Part:
    rows = [(name, text.gib(planned), text.gib(held), text.gib(planned - held)) for name, planned, held in each.terms]
    names = ("buffer", "planned GiB", "traced GiB", "more")
    return table(*names, rows=rows, right=names[1:])
