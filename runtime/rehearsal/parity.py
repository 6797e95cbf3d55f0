"""Compares a run with the single-process reference, and its memory with the planned memory.

No torch here, because both runs are other processes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from ..job import Job
from .scale_axes import AXES

# Orders of summation differ by about 1e-16 of a gradient. AdamW divides a gradient by its own size + 1e-8, so a tiny
# gradient moves the weight by up to 1e8 times the rounding. Over 54 layouts that train 4 steps as planned, losses
# differ by up to 3e-15 and norms by up to 6e-13 (experts, Gemma; else 1e-15). SGD's tolerances hold.
LOSS_TOLERANCE, NORM_TOLERANCE = 1e-12, 1e-10
# In the plan's dtype, ranks with the products of one process differ from it only by the order of fp32 sums over
# micro-batches and ranks (6e-8 each). A bf16 sum of gradients changes norms by 3e-5 and more. Such a difference may
# round a bf16 weight the other way, which changes later norms by up to 2e-3: the reference takes each step from the
# weights and states of the run, so that no step has the roundings of an earlier one.
PLANNED_DTYPE_TOLERANCE = 1e-6
STATE_TOLERANCE = 1e-4
MEMORY_TOLERANCE = 0.10
LEAST_CHANGE = 0.01


@dataclass(frozen=True)
class Tolerances:
    """Largest relative differences of a step that agrees."""

    loss: float = LOSS_TOLERANCE  # of float64
    norm: float = NORM_TOLERANCE  # of float64
    state: float | None = None  # of a whole tensor; None: states are not compared

    @classmethod
    def of(cls, *, planned_dtype: bool) -> Tolerances:
        """The tolerances of a check. planned_dtype: the check computes in the plan's dtype."""
        return cls(PLANNED_DTYPE_TOLERANCE, PLANNED_DTYPE_TOLERANCE, STATE_TOLERANCE) if planned_dtype else cls()


@dataclass(frozen=True)
class StateDifference:
    """The tensor of the optimizer that a step of the run left farthest from the reference's."""

    name: str  # as in checkpoints: `weights.NAME`, `exp_avg.NAME`, ...
    relative: float  # to the 2-norm of the tensor; of weights, to that of their update


@dataclass(frozen=True)
class Reference:
    """The numbers of the single-process reference."""

    steps: list[tuple[float, float]]  # loss and gradient norm of each
    states: list[StateDifference] | None = None  # of each step, where the reference follows the run


@dataclass(frozen=True)
class StepComparison:
    """One step of both runs; relative differences."""

    step: int  # from 1
    loss: float  # of the run, nats per token
    reference_loss: float  # of one process
    gradient_norm: float  # of the run, before clipping
    reference_norm: float  # of one process
    tolerances: Tolerances
    state: StateDifference | None = None  # after the step; None: states are not compared

    @property
    def loss_difference(self) -> float:
        return _relative(self.loss, self.reference_loss)

    @property
    def norm_difference(self) -> float:
        return _relative(self.gradient_norm, self.reference_norm)

    @property
    def agrees(self) -> bool:
        # The comparisons are false for NaN.
        numbers = self.loss_difference <= self.tolerances.loss and self.norm_difference <= self.tolerances.norm
        limit = self.tolerances.state
        return numbers and (limit is None or (self.state is not None and self.state.relative <= limit))


@dataclass(frozen=True)
class Parity:
    """The comparison of all steps."""

    steps: tuple[StepComparison, ...]  # in order
    tolerances: Tolerances  # of each

    @property
    def agrees(self) -> bool:
        return bool(self.steps) and all(step.agrees for step in self.steps)

    @property
    def first_difference(self) -> StepComparison | None:
        return next((step for step in self.steps if not step.agrees), None)

    @property
    def least_change(self) -> float:
        """The smallest relative change of the loss between steps, which is the sensitivity to a wrong update."""
        losses = [step.reference_loss for step in self.steps]
        return min((_relative(b, a) for a, b in pairwise(losses)), default=0.0)

    def as_dict(self) -> dict[str, Any]:
        return {
            "agrees": self.agrees, "loss_tolerance": self.tolerances.loss,
            "gradient_norm_tolerance": self.tolerances.norm,
            "largest_loss_difference": max((s.loss_difference for s in self.steps), default=None),
            "largest_gradient_norm_difference": max((s.norm_difference for s in self.steps), default=None),
            "state_tolerance": self.tolerances.state,
            "largest_state_difference": max((s.state.relative for s in self.steps if s.state), default=None),
            "least_change_of_loss": self.least_change,
            "reference": [[s.reference_loss, s.reference_norm] for s in self.steps],
        }  # fmt: skip


def not_exercised(planned: Job, rehearsed: Job, verdict: Parity, *, as_trained: bool) -> list[str]:
    """Parts of the planned training that the check did not run, a few words each.

    as_trained: the check used the plan's optimizer and clipping.
    """
    same = planned.dtype == rehearsed.dtype
    missing = [] if same else [f"{planned.dtype} (the check: {rehearsed.dtype})"]
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


def compare(
    steps: Sequence[tuple[float, float]], reference: Sequence[tuple[float, float]],
    states: Sequence[StateDifference] | None = None,
) -> Parity:  # fmt: skip
    """Compares (loss, gradient norm) of each step of the run and of the reference.

    states: of each step, where the reference followed the run in the plan's dtype. None: both computed in float64.
    """
    tolerances = Tolerances.of(planned_dtype=states is not None)
    followed: Sequence[StateDifference | None] = [None] * len(steps) if states is None else states
    rows = enumerate(zip(steps, reference, followed, strict=True), 1)
    compared = (StepComparison(i, a[0], b[0], a[1], b[1], tolerances, state) for i, (a, b, state) in rows)
    return Parity(tuple(compared), tolerances)


def makes_products_of_one_process(job: Job) -> bool:
    """Whether ranks compute the same products as one process, so that only sums over ranks have another order.

    tp, cp, ep and etp split products or their inputs. Tied embeddings on one stage sum their two gradients in bf16.
    """
    layout = job.layout
    apart = job.model.tied_embeddings and layout.pp > 1
    return max(layout.tp, layout.cp, layout.ep, layout.etp) == 1 and not apart


@dataclass(frozen=True)
class StageMemory:
    """Bytes of a stage: on the fullest of its ranks, and by the planner's formulas."""

    stage: int  # from 0
    measured_bytes: int  # of its fullest rank
    predicted_bytes: float  # by the planner, all buffers

    @property
    def difference(self) -> float:
        """(predicted - measured) / measured."""
        return self.predicted_bytes / self.measured_bytes - 1.0

    @property
    def within(self) -> bool:
        return abs(self.difference) <= MEMORY_TOLERANCE


def compare_memory(peak_bytes: Sequence[int], predicted: Sequence[float]) -> list[StageMemory]:
    """One row per stage. The ranks of a stage are consecutive."""
    if not peak_bytes:
        return []
    per_stage = len(peak_bytes) // len(predicted)
    return [
        StageMemory(stage, max(peak_bytes[stage * per_stage : (stage + 1) * per_stage]), value)
        for stage, value in enumerate(predicted)
    ]
