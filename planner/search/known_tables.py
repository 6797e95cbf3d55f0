"""Tables that several searches share.

Searches under different techniques form other meshes of the same operations: techniques change what ranks exchange and
keep, and few of them change the software that the operations depend on. Their tables, and the seconds that are kept
with them, are made once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, TypeVar

from ...cost_models.arrays import Ints
from ...cost_models.problem import Problem
from ...cost_models.quantities.tables import Tables, build
from ...cost_models.rates.rates import Rates
from ..space.tree import Space
from .dominance import dominated_recomputes

_T = TypeVar("_T")
MOST_KEYS = 1 << 16  # of all tables together, so that they stay within some hundred megabytes


class KnownTables:
    """Tables by problem and keys, the latest of them. most_keys: that are kept; 0: none."""

    def __init__(self, most_keys: int = 0) -> None:
        self.most_keys = most_keys
        self._problems, self._rates = list[Problem](), list[Rates]()
        self._dominated: dict[tuple[Any, ...], frozenset[tuple[int, int]]] = {}
        self._tables: dict[tuple[int, bytes], Tables] = {}  # by number of the problem, the latest last

    def of(self, problem: Problem, keys: Mapping[str, Ints]) -> Tables:
        """The tables for these shard keys. Their problem has no techniques if they may be shared."""
        if not self.most_keys:
            return build(problem, keys)
        plain = self._plain(problem)
        asked = self._problems.index(plain), b"".join(keys[name].tobytes() for name in sorted(keys))
        tables = self._tables.pop(asked, None)
        self._tables[asked] = build(plain, keys) if tables is None else tables
        while len(self._tables) > 1 and sum(each.num_keys for each in self._tables.values()) > self.most_keys:
            del self._tables[next(iter(self._tables))]
        return self._tables[asked]

    def dominated(self, space: Space, rates: Rates) -> frozenset[tuple[int, int]]:
        """`dominated_recomputes`, which reads tables and the rules of recomputed modules alone. rates: a result of
        `rates`."""
        if not self.most_keys:
            return dominated_recomputes(space, rates)
        rules = tuple((rule.fields, rule.allows) for rule in space.rules if "recompute_modules" in rule.fields)
        problem = self._problems.index(self._plain(space.problem))
        asked = problem, id(_first(self._rates, rates)), rules, tuple(sorted(space.switches.items()))
        if asked not in self._dominated:
            self._dominated[asked] = dominated_recomputes(space, rates)
        return self._dominated[asked]

    def _plain(self, problem: Problem) -> Problem:
        """The first problem equal to this one without techniques."""
        return _first(self._problems, replace(problem, workload=replace(problem.workload, techniques=())))

    def rates(self, rates: Rates) -> Rates:
        """The first rates equal to these: seconds are kept with the tables by identity of the rates."""
        return _first(self._rates, rates) if self.most_keys else rates


def _first(known: list[_T], value: _T) -> _T:
    """The first of `known` that is equal to `value`, which is added without one."""
    for each in known:
        if each == value:
            return each
    known.append(value)
    return value
