"""Tables for the next shard keys of a search.

Consecutive batches of meshes in the order of their bounds share most of their shard keys. Tables are therefore computed
for the keys of many batches at once, as far as the search is known to go.
"""

from __future__ import annotations

from ...cost_models.arrays import Ints
from ...cost_models.problem import Problem
from ...cost_models.quantities.tables import Tables, index_keys
from ..space.tree import Columns, select
from .known_tables import KnownTables

MESHES = 1 << 13  # meshes per table at most, so that working arrays stay small


class TablesAhead:
    """Tables for consecutive batches of `order`, rows of `meshes`."""

    def __init__(self, problem: Problem, meshes: Columns, order: Ints, known: KnownTables) -> None:
        self.problem, self.meshes, self.order, self.known = problem, meshes, order, known
        self._start = self._end = 0  # range of the meshes in the tables

    def of(self, start: int, end: int, known_end: int) -> tuple[Tables, Ints]:
        """The tables for the meshes order[start:end], and the key of each. known_end: the known end of the search."""
        if start < self._start or end > self._end:
            self._start, self._end = start, max(end, min(start + MESHES, known_end))
            keys, self._keys = index_keys(select(self.meshes, self.order[start : self._end]))
            self._tables = self.known.of(self.problem, keys)
        return self._tables, self._keys[start - self._start : end - self._start]
