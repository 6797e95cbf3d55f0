"""What a target is: the software that will run a plan, and which layouts it can execute."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ...cost_models.layouts import (
    Layouts,
    encode,
)
from ...cost_models.tables import Problem
from ..constraints import Columns, Mask, Rule


@dataclass(frozen=True)
class Target:
    """One target: its default software stack and the rules its layouts obey. `source`: where these were read."""

    name: str
    summary: str
    stack: str
    source: str
    rules: tuple[Rule, ...] = ()

    def supports(self, columns: Layouts, problem: Problem) -> tuple[Mask, list[str | None]]:
        """Which layouts the target can execute, and for each that it cannot, the first reason."""
        reasons: list[str | None] = [None] * len(columns)
        mask = np.ones(len(columns), dtype=bool)
        for rule in self.rules:
            ok = rule.allows(columns, problem)
            for row in np.flatnonzero(mask & ~ok).tolist():
                reasons[row] = rule.explain(columns.layout(row), problem)
            mask &= ok
        return mask, reasons


def only(target: str, field: str, values: Sequence[object], message: str) -> Rule:
    """The rule that `field` takes only one of `values`."""
    codes = [encode(field, value) for value in values]

    def allows(columns: Columns, problem: Problem) -> Mask:
        return np.asarray(np.isin(columns[field], codes))

    return Rule(f"{target}: {field}", (field,), allows, message)
