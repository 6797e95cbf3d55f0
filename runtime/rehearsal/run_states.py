"""The states of a run after each step, from which the single-process reference takes its next step.

Then every step begins with equal weights in both runs, and no rounding of an earlier step is in its numbers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from ..checkpoint.manifest import folder_name
from ..checkpoint.slices import Piece, load_alone
from .parity import StateDifference


@dataclass
class RunStates:
    """Follows a run that has saved a checkpoint after each of its steps."""

    folder: Path  # of the checkpoints
    differences: list[StateDifference] = field(default_factory=list)  # the largest of each step

    @torch.no_grad()
    def follow(self, step: int, states: Mapping[str, Tensor], moved: Mapping[str, Tensor]) -> None:
        """Compares the states after step `step` (1, 2, ...) with those of the run, and replaces them by the run's.

        states: whole tensors by their names in checkpoints. moved: by such names, the changes that a difference is
        measured against, instead of the tensor. Raises CheckpointException where the checkpoint lacks a tensor.
        """
        of_run = {name: torch.empty_like(tensor) for name, tensor in states.items()}
        load_alone(self.folder / folder_name(step), [Piece(name, tuple(tensor.shape), (0,) * tensor.dim(), tensor)
                                                     for name, tensor in of_run.items()])  # fmt: skip
        every = [StateDifference(name, _relative(of_run[name] - tensor, moved.get(name, tensor)))
                 for name, tensor in states.items()]  # fmt: skip
        self.differences.append(max(every, key=lambda each: each.relative))
        for name, tensor in states.items():
            tensor.copy_(of_run[name])


def _relative(difference: Tensor, against: Tensor) -> float:
    """Ratio of 2-norms. NaN counts as infinite, so that it is the largest."""
    norm, scale = (float(tensor.double().norm()) for tensor in (difference, against))
    ratio = norm / scale if scale else norm
    return ratio if ratio == ratio else float("inf")
