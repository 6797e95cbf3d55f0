"""Steps of drawn batches under one rule for degrees, and their numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np


class Step(Protocol):
    """A planned step."""

    @property
    def step_s(self) -> float: ...
    @property
    def degrees(self) -> tuple[int, ...]: ...  # ranks that share a document, ascending
    @property
    def num_micro_batches(self) -> float: ...  # of a rank, in the mean


@dataclass(frozen=True)
class Policy:
    """Steps of the drawn batches under one rule for degrees."""

    name: str  # static, adaptive, per sequence, or a published scheme
    plans: Sequence[Step]

    @property
    def mean_s(self) -> float:
        """Seconds of a step, over the batches."""
        return float(np.mean([plan.step_s for plan in self.plans]))

    @property
    def p95_s(self) -> float:
        """Seconds that 95 % of the steps do not exceed."""
        return float(np.quantile([plan.step_s for plan in self.plans], 0.95))

    @property
    def degrees(self) -> tuple[int, ...]:
        """Degrees of all groups, ascending."""
        return tuple(sorted({degree for plan in self.plans for degree in plan.degrees}))

    @property
    def mean_micro_batches(self) -> float:
        return float(np.mean([plan.num_micro_batches for plan in self.plans]))
