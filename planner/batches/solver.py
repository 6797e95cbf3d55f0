"""HiGHS through PuLP: one thread, so many branch-and-bound nodes, never a limit in seconds: equal programs have equal
answers."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pulp

from ..search.highs import HiGHS


@dataclass(frozen=True)
class Answer:
    """The outcome of a solver: whether variables have values, and the proven bound."""

    status: Literal["solved", "infeasible", "failed"]
    bound: float  # dual bound; -inf where it failed


# A bound needs no better values: programs solved inside the program, and starts from anew, took most of the time.
_BOUND = {"mip_allow_restart": False, "mip_heuristic_run_rins": False, "mip_heuristic_run_rens": False,
          "mip_heuristic_run_root_reduced_cost": False, "mip_detect_symmetry": False}  # fmt: skip


def solve(model: pulp.LpProblem, *, gap: float, nodes: int, for_bound: bool = False) -> Answer:
    """Minimise `model` to a relative `gap`, within `nodes` nodes. for_bound: its values matter less than its bound."""
    options = _BOUND if for_bound else {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # PuLP 4 renames its bundled CBC
        model.solve(HiGHS(msg=False, threads=1, gapRel=gap, mip_max_nodes=nodes, **options))
    if model.status == pulp.LpStatusInfeasible:
        return Answer("infeasible", np.inf)
    bound = float(model.solverModel.getInfo().mip_dual_bound)
    has_values = model.sol_status in (pulp.LpSolutionOptimal, pulp.LpSolutionIntegerFeasible)
    return Answer("solved" if has_values else "failed", bound)
