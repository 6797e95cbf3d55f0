"""Bytes of an optimizer in host memory, and the least of them in any layout."""

from __future__ import annotations

from ..problem import Problem
from .params import total_parameters

# An fp32 gradient beside the states, and half as much again in pinned buffers (DeepSpeed's estimators,
# runtime/zero/stage3.py: 16-18 bytes x 1.5).
HOST_GRADIENT_BYTES, HOST_BUFFER_FACTOR = 4.0, 1.5


def bytes_per_parameter(problem: Problem) -> float:
    """Host bytes per parameter that a rank updates there."""
    return (problem.state_bytes.optimizer + HOST_GRADIENT_BYTES) * HOST_BUFFER_FACTOR


def least_bytes(problem: Problem) -> float:
    """Host bytes per GPU that no layout with its optimizer on the host goes below: a rank updates every parameter.

    0 where some parameters do not train, or where a technique may place states elsewhere.
    """
    work = problem.workload
    trains_all = all(variant.trains == "all" for variant in problem.variants) and not work.freeze_tower
    if not trains_all or work.freeze_language or work.lora is not None or work.techniques:
        return 0.0
    return total_parameters(problem.model) / problem.num_gpus * bytes_per_parameter(problem)
