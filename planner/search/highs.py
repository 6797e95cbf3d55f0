"""HiGHS through PuLP, for integer programs that a limit in nodes may end."""

from __future__ import annotations

import numpy as np
import pulp


class HiGHS(pulp.HiGHS):  # type: ignore[misc]
    """HiGHS. PuLP 3.3 does not know the status of a search that its node limit ended."""

    def findSolutionValues(self, lp: pulp.LpProblem) -> tuple[int, int]:
        try:
            status: tuple[int, int] = super().findSolutionValues(lp)
        except KeyError:  # by then the values are assigned
            has_values = np.isfinite(lp.solverModel.getInfo().objective_function_value)
            if has_values:
                return pulp.LpStatusOptimal, pulp.LpSolutionIntegerFeasible
            return pulp.LpStatusNotSolved, pulp.LpSolutionNoSolutionFound
        return status
