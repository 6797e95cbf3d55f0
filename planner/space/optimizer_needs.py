"""Requirements of an optimizer on a layout, in every framework."""

from __future__ import annotations

import numpy as np

from ...cost_models.layouts import OPTIMIZER_ON_HOST
from ...cost_models.problem import Problem
from ...cost_models.techniques.base import Need

# Muon updates whole matrices, by products that take a GPU.
_MUON = (
    Need(("zero",), lambda x, problem: np.asarray(x["zero"] <= 1), "whole weights and gradients (z0 or z1)"),
    Need(("offload",), lambda x, problem: ~np.isin(x["offload"], OPTIMIZER_ON_HOST), "its states on the GPU"),
)


def optimizer_needs(problem: Problem) -> tuple[Need, ...]:
    return _MUON if problem.workload.optimizer == "muon" else ()
