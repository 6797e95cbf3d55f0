"""Needs of techniques that hide messages of tensor parallelism or of experts."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from .base import Columns, Need

if TYPE_CHECKING:
    from ..problem import Problem


def _tensor_parallel(x: Columns, problem: Problem) -> NDArray[np.bool_]:
    return np.asarray(x["tp"] > 1)


def _within_node(x: Columns, problem: Problem) -> NDArray[np.bool_]:
    return np.asarray((x["tp"] > 1) & (x["tp"] <= problem.domain))


def _expert_parallel(x: Columns, problem: Problem) -> NDArray[np.bool_]:
    return np.asarray(x["ep"] > 1)


def _experts_within_node(x: Columns, problem: Problem) -> NDArray[np.bool_]:
    return np.asarray((x["ep"] > 1) & (x["ep"] * x["etp"] <= problem.domain))


splits_layers = Need(("tp",), _tensor_parallel, "tensor parallelism")
splits_layers_within_node = Need(("tp",), _within_node, "tensor parallelism over GPUs that the fastest link joins")
sends_tokens = Need(("ep",), _expert_parallel, "expert parallelism")
sends_tokens_within_node = Need(("ep", "etp"), _experts_within_node,
                                "expert parallelism over GPUs that the fastest link joins")  # fmt: skip
