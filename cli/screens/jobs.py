"""The screen of `plan --jobs-file`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .. import text
from ..console import table

if TYPE_CHECKING:
    from ...planner.studies.jobs import JobsPlan
    from .parts import Part


def jobs_screen(plan: JobsPlan) -> list[Part]:
    """A line per job, when all have ended, and the least time in which they could."""
    rows = [
        [row.name, _numbers(row.nodes), text.duration(row.start_s), text.duration(row.end_s), f"{row.steps:,.0f}",
         text.fixed(row.step_s, 3), row.target, row.layout_id]
        for row in plan.rows
    ]  # fmt: skip
    columns = ["job", "nodes", "starts", "ends", "steps", "step s", "target", "layout"]
    gap = 1 - plan.bound_s / plan.makespan_s
    lines: list[Part] = [f"{len(plan.rows)} jobs on {plan.nodes} nodes of {plan.cluster}", "",
                         table(*columns, rows=rows, right=columns[2:6]), ""]  # fmt: skip
    ended = f"All have ended after {text.duration(plan.makespan_s)}"
    proof = "no schedule is shorter" if gap < 5e-4 else (
        f"no schedule takes less than {text.duration(plan.bound_s)} ({text.percent(gap)} % below)")  # fmt: skip
    lines.append(text.wrapped(f"{ended}; {proof}. They take {text.fixed(plan.gpu_hours, 0)} GPU hours."))
    if plan.one_by_one_s is not None:
        lines.append(text.wrapped(f"One after another, each on all nodes, they end after "
                                  f"{text.duration(plan.one_by_one_s)}."))  # fmt: skip
    return [*lines, ""]


def _numbers(nodes: tuple[int, ...]) -> str:
    """`0-3,6`."""
    runs: list[list[int]] = []
    for node in nodes:
        if runs and node == runs[-1][1] + 1:
            runs[-1][1] = node
        else:
            runs.append([node, node])
    return ",".join(f"{first}-{last}" if last > first else str(first) for first, last in runs)
