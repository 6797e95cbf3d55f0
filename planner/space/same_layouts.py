"""Whether two targets run the same layouts. A search for one then also holds for the other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from .counting import LayoutCounts, category_grid, distinct_rows
from .rules import Rule
from .tree import MESH_FIELDS, Columns, Count, Space, allowed, cross, select


def same_layouts(one: Space, other: Space) -> bool:
    """Whether two spaces of one problem have the same legal layouts: the same meshes, and the same options below them.

    Rules are compared by the layouts that they allow, because each target has its own rules.
    """
    if one.problem != other.problem or dict(one.switches) != dict(other.switches):
        return False
    meshes, others = one.meshes(Count()), other.meshes(Count())
    if any(not np.array_equal(meshes[name], others[name]) for name in MESH_FIELDS):
        return False
    mine, theirs = LayoutCounts(one, meshes).level_rules, LayoutCounts(other, meshes).level_rules
    return all(_agree(one, meshes, level, mine[level], theirs[level]) for level in mine)


def _agree(space: Space, meshes: Columns, level: str, mine: Sequence[Rule], theirs: Sequence[Rule]) -> bool:
    """Whether both sets of rules allow the same options of `level` on every mesh."""
    read = set(MESH_FIELDS) & {"pp", "dp", "cp"}.union(*(rule.fields for rule in (*mine, *theirs)))
    rows, _ = distinct_rows(meshes, read)
    return all(np.array_equal(allowed(mine, columns, space.problem), allowed(theirs, columns, space.problem))
               for columns in _options(space, rows, level))  # fmt: skip


def _options(space: Space, rows: Columns, level: str) -> Iterator[Columns]:
    """`rows` crossed with every option of `level`. Rows with the same list of options are crossed together."""
    if level == "joint":
        yield cross(rows, category_grid())
        return
    depends = ("dp", "cp") if level == "state" else ("pp",)
    _, which = distinct_rows(rows, set(depends))
    for index in range(int(which.max()) + 1):
        alike = select(rows, which == index)
        values = [int(alike[name][0]) for name in depends]
        if level == "state":
            for zero in sorted(set(space.states(values[0] * values[1])["zero"].tolist())):
                shards = np.array(space.shards(values[0], values[1], zero), dtype=np.int64)
                yield cross(alike, {"shard": shards, "zero": np.full_like(shards, zero)})
        else:
            yield cross(alike, space.schedules(values[0]) if level == "schedule" else space.recomputes(values[0]))
