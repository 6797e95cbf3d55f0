"""Whether a run trained the same model as the single-process reference, and used the memory that was planned.

No torch here: both runs are other processes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from ..job import Job
from .scale_axes import AXES

# Orders of summation differ by some 1e-16 of a gradient. AdamW divides a gradient by its own size + 1e-8: where it is
# next to nothing, the weight moves by up to 1e8 times as much as the rounding. Of 54 layouts that train 4 steps as
# planned, losses differ by up to 3e-15 and norms by up to 6e-13 (experts, Gemma; else 1e-15): SGD's tolerances hold.
LOSS_TOLERANCE, NORM_TOLERANCE = 1e-12, 1e-10
MEMORY_TOLERANCE = 0.10
LEAST_CHANGE = 0.01


@dataclass(frozen=True)
class StepComparison:
    """One step of both runs; relative differences."""

    step: int  # from 1
    loss: float  # of the run, nats per token
    reference_loss: float  # of one process
    gradient_norm: float  # of the run, before clipping
    reference_norm: float  # of one process

    @property
    def loss_difference(self) -> float:
        return _relative(self.loss, self.reference_loss)

    @property
    def norm_difference(self) -> float:
        return _relative(self.gradient_norm, self.reference_norm)

    @property
    def agrees(self) -> bool:
        # Written so that a NaN does not agree.
        return self.loss_difference <= LOSS_TOLERANCE and self.norm_difference <= NORM_TOLERANCE


@dataclass(frozen=True)
class Parity:
    """The comparison of all steps."""

    steps: tuple[StepComparison, ...]  # in order

    @property
    def agrees(self) -> bool:
        return bool(self.steps) and all(step.agrees for step in self.steps)

    @property
    def first_difference(self) -> StepComparison | None:
        return next((step for step in self.steps if not step.agrees), None)

    @property
    def least_change(self) -> float:
        """The smallest relative change of the loss from one step to the next: how much a wrong update would show."""
        losses = [step.reference_loss for step in self.steps]
        return min((_relative(b, a) for a, b in pairwise(losses)), default=0.0)

    def as_dict(self) -> dict[str, Any]:
        return {
            "agrees": self.agrees, "loss_tolerance": LOSS_TOLERANCE, "gradient_norm_tolerance": NORM_TOLERANCE,
            "largest_loss_difference": max((s.loss_difference for s in self.steps), default=None),
            "largest_gradient_norm_difference": max((s.norm_difference for s in self.steps), default=None),
            "least_change_of_loss": self.least_change,
            "reference": [[s.reference_loss, s.reference_norm] for s in self.steps],
        }  # fmt: skip


def not_exercised(planned: Job, rehearsed: Job, verdict: Parity, *, as_trained: bool) -> list[str]:
    """Parts of the planned training that the check did not run, a few words each. as_trained: it had the plan's
    optimizer and clipping."""
    missing = [f"{planned.dtype} (the check: {rehearsed.dtype})"]
    if not as_trained:
        missing.insert(0, f"{planned.optimizer} and clipping (the check: sgd)")
    elif rehearsed.clip is not None and all(step.reference_norm <= rehearsed.clip for step in verdict.steps):
        missing.insert(0, f"clipping (no gradient of the check has a norm over {rehearsed.clip:g})")
    if rehearsed.steps == 1:
        missing.append("updates of the weights (one step)")
    for axis in AXES:
        before, after = getattr(planned.layout, axis), getattr(rehearsed.layout, axis)
        if before > after:
            missing.append(f"{axis} of {before} (the check: {after})")
    return [*missing, "kernels and messages of GPUs"]


def _relative(value: float, reference: float) -> float:
    return abs(value - reference) / abs(reference) if reference else abs(value)


def compare(steps: Sequence[tuple[float, float]], reference: Sequence[tuple[float, float]]) -> Parity:
    """(loss, gradient norm) of each step of the run and of the reference."""
    pairs = zip(steps, reference, strict=True)
    return Parity(tuple(StepComparison(i, a[0], b[0], a[1], b[1]) for i, (a, b) in enumerate(pairs, 1)))


@dataclass(frozen=True)
class StageMemory:
    """Bytes of a stage: the fullest of its ranks, and what the planner's formulas say."""

    stage: int  # from 0
    measured_bytes: int  # of its fullest rank
    predicted_bytes: float  # of the planner, all buffers

    @property
    def difference(self) -> float:
        """(predicted - measured) / measured."""
        return self.predicted_bytes / self.measured_bytes - 1.0

    @property
    def within(self) -> bool:
        return abs(self.difference) <= MEMORY_TOLERANCE


def compare_memory(peak_bytes: Sequence[int], predicted: Sequence[float]) -> list[StageMemory]:
    """One row per stage; ranks of a stage follow one another."""
    if not peak_bytes:
        return []
    per_stage = len(peak_bytes) // len(predicted)
    return [
        StageMemory(stage, max(peak_bytes[stage * per_stage : (stage + 1) * per_stage]), value)
        for stage, value in enumerate(predicted)
    ]
