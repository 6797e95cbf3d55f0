"""One search for several sets of techniques that differ in how replicas exchange.

A node is bounded with the cheapest of their exchanges (cost_models/techniques/cheapest_exchange.py), which no set beats
in time or memory, so a node that is cut is cut for all. Layouts that are left are priced under each set that allows
them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ...cost_models.arrays import Array, Ints, Mask
from ...cost_models.problem import Problem
from ...cost_models.quantities.tables import Tables
from ...cost_models.techniques.cheapest_exchange import cheapest_of
from ...cost_models.techniques.registry import TECHNIQUES
from ..request.resolve import Resolved
from ..space.counting import LayoutCounts
from ..space.rules import Rule
from ..space.tree import Columns, Count, Space, allowed, select
from .exhaustive import ROWS, Search
from .limits import ShouldStop, stop_if_late
from .outcome import SearchOutcome
from .run import search_of
from .warm_start import plain_part


class SharedSearch(Search):
    """The search of `space`, under the cheapest exchange, for `members`: searches of spaces that lie within it, with
    the same rates and limits."""

    def __init__(self, members: Sequence[Search], *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.members = members
        shared = set(map(_condition, self.space.rules))
        # [member] the rules of its space that `space` lacks.
        self.more_rules = [[rule for rule in each.space.rules if _condition(rule) not in shared] for each in members]

    @property
    def threshold(self) -> float:
        return max(member.threshold for member in self.members)

    @property
    def _limit(self) -> ShouldStop | None:
        known = self.has_expanded or any(member.top.rows or member.warm_rows for member in self.members)
        return self.should_stop if known else None

    def _worth(self, seconds: Array, needed: Array, columns: Columns, rows: Ints) -> Mask:
        return np.asarray((needed if self.objective == "memory" else seconds) <= self.threshold)

    def _limit_by_likely(self) -> None:
        for member in self.members:
            member._limit_by_likely()

    def _warm_start(self) -> None:
        """Each member's best layout of the plain part is its incumbent."""
        options: dict[str, Any] = {"memory_bytes": self.memory_bytes, "host_bytes": self.host_bytes,
                                   "objective": self.objective, "known": self.known}  # fmt: skip
        plain = [Search(plain_part(member.space), member.rates, incumbent=member.incumbent, **options)
                 for member in self.members]  # fmt: skip
        search = SharedSearch(plain, plain_part(self.space), self.rates, should_stop=self.should_stop, tally=False,
                              **options)  # fmt: skip
        search.warm_starts = False
        self.open_bound = 0.0  # if it stops here, nothing is proven about the whole space
        outcome = search.run()
        for member, known in zip(self.members, plain, strict=True):
            member.warm_rows, member.incumbent = known.top.rows, known.threshold
        if outcome.stopped == "interrupted":
            raise KeyboardInterrupt
        stop_if_late(self._limit)

    def _price(self, tables: Tables, columns: Columns) -> None:
        """Price layouts that may be fast enough under each set that allows them."""
        for start in range(0, len(columns["tp"]), ROWS):
            part = {name: column[start : start + ROWS] for name, column in columns.items()}
            for member, rules in zip(self.members, self.more_rules, strict=True):
                legal = np.flatnonzero(allowed(rules, part, member.problem))
                if len(legal):
                    member._price(tables, select(part, legal))


def _condition(rule: Rule) -> tuple[tuple[str, ...], Callable[..., Mask]]:
    """A rule without its name: those of several techniques may be one."""
    return rule.fields, rule.allows


def _shared_space(members: Sequence[Search], problem: Problem) -> Space:
    """The layouts of `problem` that pass the rules of all members."""
    common = set.intersection(*({_condition(rule) for rule in member.space.rules} for member in members))
    space = members[0].space
    return replace(space, problem=problem, rules=tuple(rule for rule in space.rules if _condition(rule) in common))


class _Tallies:
    """Counts of what rules exclude. Spaces under equal rules with other names are counted once."""

    def __init__(self) -> None:
        self._known = list[tuple[list[Any], tuple[Rule, ...], Count]]()

    def of(self, search: Search) -> Count:
        """The layouts of a search that no rule of its space passes, and those that are dominated."""
        rules = search.space.rules
        conditions = list(map(_condition, rules))
        for known, named, count in self._known:
            if known == conditions:
                names = {other.name: rule.name for other, rule in zip(named, rules, strict=True)}
                return replace(count, ruled_out={names[name]: number for name, number in count.ruled_out.items()})
        count, space = Count(), search.space
        if len((meshes := space.meshes(count))["tp"]):
            LayoutCounts(space, meshes, search.known.dominated(space, search.rates)).tally(count)
        self._known.append((conditions, rules, replace(count, ruled_out=dict(count.ruled_out))))
        return count


def search_together(alike: Sequence[Resolved], **options: Any) -> list[SearchOutcome]:
    """The best layout of each of these, which differ in techniques that change the traffic of states alone.

    options: those of `Search`.
    """
    members, counted = [], _Tallies()
    for resolved in alike:
        member = search_of(resolved, resolved.space, **options)
        member.count = counted.of(member)
        members.append(member)
    legal = [member for member in members if member.count.accounted < member.count.total]
    if not legal:
        return [SearchOutcome(member.top, member.count, np.inf) for member in members]
    techniques = cheapest_of((member.problem.workload.techniques for member in legal), TECHNIQUES)
    cheapest = replace(alike[0], workload=replace(alike[0].workload, techniques=techniques))
    search = SharedSearch(
        legal, _shared_space(legal, cheapest.problem), cheapest.rates, memory_bytes=cheapest.budget_bytes,
        host_bytes=cheapest.host_bytes, tally=False, **options,
    )  # fmt: skip
    outcome = search.run()
    return [_of_member(member, outcome) for member in members]


def _of_member(member: Search, shared: SearchOutcome) -> SearchOutcome:
    """Its outcome. Layouts that the shared bounds cut count as too slow, unless all that they cut were too large."""
    left = member.count.total - member.count.accounted
    cause = "unvisited" if shared.stopped else "bounded" if shared.count.bounded else "out_of_memory"
    setattr(member.count, cause, getattr(member.count, cause) + left)
    if shared.stopped:
        rows = {row[1]: row for row in (*member.top.rows, *member.warm_rows)}
        member.top.rows = sorted(rows.values(), key=lambda row: row[:2])[: member.top.limit]
    best = min([row[0] for row in member.top.rows], default=np.inf)
    return SearchOutcome(member.top, member.count, min(best, shared.lower_bound), shared.stopped)
