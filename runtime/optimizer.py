"""The optimizer of a run, and the clipping of its gradients."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from .failures import RunFailed
from .job import Job

MOMENTUM = 0.9  # of SGD


def build_optimizer(job: Job, parameters: Iterable[Tensor]) -> torch.optim.Optimizer:
    """AdamW (0.9, 0.95, weight decay on all weights or, with `no_decay`, on none) or SGD with momentum 0.9.

    Both are element-wise, so that any slice of a parameter is updated like the whole.
    """
    return optimizer_of(job.optimizer, parameters, job.learning_rate, 0.0 if job.no_decay else job.weight_decay)


def optimizer_of(
    name: str, parameters: Iterable[Tensor], learning_rate: float, weight_decay: float = 0.1
) -> torch.optim.Optimizer:
    """The optimizer of a job, by its name.

    It is fused on GPU and CPU, because the unfused AdamW makes two more tensors of a weight's size.
    """
    how: dict[str, Any] = {"lr": learning_rate, "foreach": False, "fused": True}
    groups = [{"params": list(parameters)}]  # a stage without layers also has no adapters
    if name == "sgd":
        return torch.optim.SGD(groups, momentum=MOMENTUM, **how)
    return torch.optim.AdamW(groups, betas=(0.9, 0.95), weight_decay=weight_decay, **how)


def clip_(gradients: Iterable[Tensor], norm: float, limit: float | None) -> None:
    """Scales gradients down to the norm `limit` if their global norm exceeds it."""
    if limit is not None and norm > limit:
        for gradient in gradients:
            gradient.mul_(limit / norm)


def finite(norm: float, index: int) -> float:
    """The norm of the gradient of step `index` (0, 1, ...).

    Raises RunFailed where it is nan or infinite: an update would make all weights nan, and later saves would replace
    the last checkpoints that can be trained on.
    """
    if not math.isfinite(norm):
        raise RunFailed(f"step {index + 1}: the gradient norm is {norm}; no weight was updated, and nothing is saved",
                        hint="lower `--lr` or add `--warmup N`; with `--checkpoint`, `--resume` goes on from the last "
                        "one")  # fmt: skip
    return norm
