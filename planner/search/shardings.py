"""The shardings that a search over some number of ranks can choose from, before the rates of the device are known.

`profile kernels` times these shardings.
"""

from __future__ import annotations

from ...cost_models.layouts import Layout
from ...cost_models.problem import Problem
from ..space.rules import legality
from ..space.tree import Count, Space
from ..targets.base import Target

MOST_TOKENS = 4096  # tokens of a timed micro-batch; time is proportional beyond it


def shardings(problem: Problem, target: Target) -> list[Layout]:
    """Layouts with the smallest and the largest micro-batch for every legal tensor and expert parallelism.

    They have no pipeline if possible. Attention split over cp is not timed, so cp is 1.
    """
    meshes = Space(problem, legality(problem) + target.rules_for(problem.workload)).meshes(Count())
    fields = ("pp", "tp", "ep", "micro_batch", "dp", "cp", "etp", "sequence_parallel", "precision")
    rows = sorted(zip(*(meshes[name].tolist() for name in fields), strict=True))
    by_sharding: dict[tuple[int, int], list[Layout]] = {}
    for row in rows:
        mesh = dict(zip(fields, row, strict=True))
        if mesh["cp"] > 1 or mesh["etp"] > 1 or _is_too_long(problem, mesh["micro_batch"]):
            continue
        by_sharding.setdefault((mesh["tp"], mesh["ep"]), []).append(Layout(**mesh, shard=mesh["dp"]))
    ends = [(min(layouts, key=_size), max(layouts, key=_size)) for layouts in by_sharding.values()]
    return list(dict.fromkeys(layout for pair in ends for layout in pair))


def _is_too_long(problem: Problem, micro_batch: int) -> bool:
    return micro_batch > 1 and micro_batch * problem.workload.seq_len > MOST_TOKENS


def _size(layout: Layout) -> tuple[int, int]:
    return layout.micro_batch, -layout.pp
