"""The choice of allowed techniques: the best layout under every compatible set of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ...cost_models.layouts import Layout
from ...cost_models.techniques.registry import SHORTENING, TECHNIQUES, exclusions
from ...cost_models.techniques.replicas import WHOLE_REPLICAS
from ...errors import InputError, UnsupportedError
from ..document.base import rounded
from ..document.certificate import Certificate, TechniqueChoice
from ..document.plan import Plan
from ..request.allowed_techniques import allowed_techniques, technique_sets
from ..request.load import Request, changed_request
from ..request.resolve import Resolved, resolve
from ..request.target_choice import for_able_target
from ..space.tree import Count
from .outcome import SearchOutcome

Knobs = Mapping[str, Mapping[str, float]]
# (requests that differ in techniques that change the traffic of states alone, incumbent, likely layouts) -> the best
# layout of each, where that is better than the incumbent.
SearchAlike = Callable[[Sequence[Resolved], float, Sequence[Layout]], list[SearchOutcome]]


@dataclass(frozen=True)
class _Tried:
    """A set of techniques, with its search result or the reason why it has none."""

    names: tuple[str, ...]
    request: Request | None = None
    outcome: SearchOutcome | None = None
    why: str | None = None
    refused: bool = False  # two of them exclude one another, or no target trains by all

    @property
    def is_empty(self) -> bool:
        """Whether no layout is legal, whatever it needs."""
        count = self.outcome.count if self.outcome is not None else None
        return count is not None and count.total == sum(count.ruled_out.values())

    @property
    def ends(self) -> bool:
        """Whether no set with more techniques has a layout, either."""
        return self.refused or self.is_empty

    @property
    def value(self) -> float:
        """Seconds of the best layout, or bytes if they are minimised."""
        rows = self.outcome.top.rows if self.outcome else []
        return rows[0][0] if rows else float("inf")


def with_techniques(
    request: Request,
    allowed: Sequence[str],
    search: SearchAlike,
    finish: Callable[[Request], Plan],
) -> Plan:
    """The plan under the best set of the `allowed` techniques (names with knobs, or `all`).

    Techniques of `request` are always used. finish: its plan.

    Raises InputError for an unknown technique or knob, and the errors of `finish` where no set has a layout.
    """
    techniques = allowed_techniques(allowed, request.workload.techniques, SHORTENING, TECHNIQUES)
    sets, tried = _Sets(request, techniques, search), list[_Tried]()
    least, ended = float("inf"), set[tuple[str, ...]]()
    for names in technique_sets(techniques, ended):
        # What one technique gives is shown; of several together only what is better than all before.
        result = sets.tried(names, least if len(names) > 1 else float("inf"))
        tried.append(result)
        least = min(least, result.value)
        if result.ends:
            ended.add(names)
    best = min(tried, key=lambda result: (result.value, len(result.names)))
    plan = finish(best.request or request)
    listed = sorted(tried, key=lambda result: (result.value, len(result.names), result.names))
    return plan.model_copy(update={
        "certificate": _summed(plan.certificate, [result.outcome for result in tried if result.outcome]),
        "technique_choices": tuple(_choice(result) for result in listed),
    })  # fmt: skip


class _Sets:
    """Sets of techniques, each searched with those that have its bounds."""

    def __init__(self, request: Request, techniques: Knobs, search: SearchAlike) -> None:
        self.request, self.techniques, self.search = request, techniques, search
        self._resolved: dict[tuple[str, ...], tuple[_Tried, Resolved | None]] = {}
        self._outcomes: dict[tuple[str, ...], SearchOutcome] = {}
        self._best: dict[Layout, None] = {}  # layouts, each the best under some set

    def tried(self, names: tuple[str, ...], incumbent: float) -> _Tried:
        """The best layout under these techniques, where that is better than the incumbent."""
        tried, resolved = self._prepared(names)
        if resolved is None:
            return tried
        if names not in self._outcomes:
            together = [names, *(other for other in self._alike(names) if self._shares(resolved, other))]
            requests = [each for some in together if (each := self._prepared(some)[1]) is not None]
            found = self.search(requests, incumbent, () if np.isfinite(incumbent) else list(self._best))
            self._best |= {row[2]: None for outcome in found for row in outcome.top.rows}
            self._outcomes |= zip(together, found, strict=True)
        outcome = self._outcomes.pop(names)
        outcome.top.rows = [row for row in outcome.top.rows if row[0] <= incumbent]
        tried = replace(tried, outcome=outcome)
        if outcome.top.rows:
            return tried
        if tried.is_empty:
            return replace(tried, why="no legal layout")
        slower = "no better than fewer of them" if outcome.count.bounded or outcome.count.priced else "no layout fits"
        return replace(tried, why=outcome.stopped or slower)

    def _alike(self, names: tuple[str, ...]) -> list[tuple[str, ...]]:
        """Sets that differ from this one in how replicas exchange, and are searched up to the same value."""
        traffic = [name for name in self.techniques if TECHNIQUES[name].only_traffic]
        kept = [name for name in names if name not in traffic]
        others = [tuple(sorted([*kept, *some])) for some in ((), *((name,) for name in traffic))]
        if len(names) > 1:
            return [some for some in others if some != names and len(some) > 1]
        if kept:
            return []
        # Layouts that the needs of one rule out make the bounds of the others weak.
        needs = TECHNIQUES[names[0]].needs if names else (WHOLE_REPLICAS,)
        return [some for some in others if some != names and some and TECHNIQUES[some[0]].needs == needs]

    def _shares(self, resolved: Resolved, names: tuple[str, ...]) -> bool:
        """Whether this set is searched beside `resolved`: it can be planned, for the same target and its software."""
        other = self._prepared(names)[1]
        if other is None or names in self._outcomes:
            return False
        software, others = ((each.target.name, each.stack, each.switches) for each in (resolved, other))
        return software == others

    def _prepared(self, names: tuple[str, ...]) -> tuple[_Tried, Resolved | None]:
        """The request under these techniques, or the reason why there is none."""
        if names not in self._resolved:
            self._resolved[names] = self._prepare(names)
        return self._resolved[names]

    def _prepare(self, names: tuple[str, ...]) -> tuple[_Tried, Resolved | None]:
        request = self.request
        given = {**request.workload.techniques, **{name: self.techniques[name] for name in names}}
        if excluded := next(exclusions(given), None):
            return _Tried(names, why=excluded[2], refused=True), None
        try:
            wanted = changed_request(request, {("workload", "techniques"): given}) if names else request
            resolved = for_able_target(resolve(wanted))
        except InputError as error:
            return _Tried(names, why=error.message), None
        except UnsupportedError:
            who = f"{request.target} does not train" if request.names_target else "no target trains"
            text = f"{who} by {'all of it' if len(names) > 1 else 'it'}"
            return _Tried(names, why=text, refused=True), None
        if resolved.cluster.links is not None:
            raise InputError("the choice of techniques where links differ is not planned yet",
                             hint="name them: `--technique`")  # fmt: skip
        return _Tried(names, wanted), resolved


def _choice(tried: _Tried) -> TechniqueChoice:
    if tried.why is not None:
        return TechniqueChoice(names=tried.names, why=tried.why)
    layout_id = tried.outcome.top.rows[0][1] if tried.outcome else None
    return TechniqueChoice(names=tried.names, value=rounded(tried.value), layout_id=layout_id)


def _summed(last: Certificate, outcomes: Sequence[SearchOutcome]) -> Certificate:
    """The certificate over all sets. Each set was searched, so the counts are sums."""
    count = Count()
    for outcome in outcomes:
        count.add(outcome.count)
    space = count.to_space_count(last.space.by_axis, last.space.simulated)
    stopped = last.stopped or next((outcome.stopped for outcome in outcomes if outcome.stopped), None)
    if not stopped:
        return last.model_copy(update={"space": space})
    bound = min([outcome.lower_bound for outcome in outcomes])
    best_s = None if last.lower_bound_s is None else rounded(min(bound, last.lower_bound_s))
    gap = 1.0 if best_s is None or last.gap is None else 1 - (best_s * (1 - last.gap)) / (last.lower_bound_s or best_s)
    return last.model_copy(update={"space": space, "stopped": stopped, "proven": False, "lower_bound_s": best_s,
                                   "gap": rounded(gap)})  # fmt: skip
