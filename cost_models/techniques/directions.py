"""Training by the slope of the loss along random directions (zeroth order): what such techniques share."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ..layouts import OFFLOADS, RECOMPUTE_MODES
from .base import Columns, Knobs, Need

if TYPE_CHECKING:
    from ..problem import Problem
    from ..specs.stack import StackSpec

_NONE, _HERE = RECOMPUTE_MODES.index("none"), OFFLOADS.index("none")


def without_gradients(stack: StackSpec, knobs: Knobs) -> StackSpec:
    return replace(stack, differentiates=False) if knobs["on"] else stack


def _all_at_once(x: Columns, problem: Problem) -> NDArray[np.bool_]:
    workload = problem.workload
    whole = workload.lora is None and workload.trains_layers is None
    whole = whole and not (workload.freeze_tower or workload.freeze_language or workload.reference)
    return np.asarray((x["pp"] == 1) & (x["recompute"] == _NONE) & (x["offload"] == _HERE) & whole)


# Pipelines of forward passes alone have no schedule here; they keep no activations to recompute or to offload.
ALL_WEIGHTS = Need(
    ("pp", "recompute", "offload"), _all_at_once,
    "all weights to train, without adapters or a reference, no pipeline, and nothing that is recomputed or offloaded",
)  # fmt: skip
_PIPELINE, _BACKWARD = "one changes a pipeline, the other trains without one", "one needs a backward pass"
# Further technique that none of them goes with -> reason.
NO_GRADIENTS = {**dict.fromkeys(("vocabulary-parallel", "skippipe", "gnnpipe"), _PIPELINE),
                **dict.fromkeys(("partitioned-checkpoints", "cxl"), _BACKWARD)}  # fmt: skip
