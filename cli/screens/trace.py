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
        (str(stage.trace.stage), text.gib(stage.planned_bytes), text.gib(stage.trace.allocated_bytes),
         text.more(stage.difference), stage.trace.doing)
        for stage in traced
    ]  # fmt: skip
    names = ("stage", "planned GiB", "traced GiB", "difference", "peak while")
    parts: list[Part] = ["", "One step of the runtime, traced (allocated)", table(*names, rows=rows, right=names[:-1])]
    for stage in traced:
        if not stage.agrees:
            parts += ["", f"Stage {stage.trace.stage} differs by more than {text.share(TOLERANCE)}, by", _terms(stage)]
    return parts


def _terms(stage: Comparison) -> Part:
    """Buffers of a stage, planned and traced."""
    rows = [
        (name, text.gib(planned), text.gib(traced), text.gib(planned - traced))
        for name, planned, traced in stage.terms
    ]
    names = ("buffer", "planned GiB", "traced GiB", "more")
    return table(*names, rows=rows, right=names[1:])
