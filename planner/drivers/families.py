"""The search of the layouts that a plan lists: the best of each family, so that the list shows real alternatives."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...cost_models.layouts import Layout
from ...errors import MeshwrightError, SearchInterrupted
from ..evaluation.infeasible import does_not_fit, no_legal_layout
from ..request.resolve import Resolved
from ..search.known_tables import KnownTables
from ..search.outcome import SearchOutcome
from ..search.run import search_of
from ..search.shared_search import search_together
from ..search.top_k import FAMILY
from .watch import Watch


def search(resolved: Resolved, watch: Watch, **options: Any) -> SearchOutcome:
    """The exhaustive search of `resolved` under its objective; options: those of `Search`."""
    return search_of(resolved, resolved.space, **_watched(resolved, watch), **options).run()


def search_alike(
    alike: Sequence[Resolved], watch: Watch, incumbent: float, likely: Sequence[Layout], known: KnownTables
) -> list[SearchOutcome]:  # fmt: skip
    """The best layout of each of these, which differ in techniques that change the traffic of states alone.

    incumbent, likely, known: see `Search`.
    """
    options = {**_watched(alike[0], watch), "incumbent": incumbent, "likely": likely, "known": known}
    if len(alike) == 1:
        return [search_of(alike[0], alike[0].space, **options).run()]
    return search_together(alike, **options)


def _watched(resolved: Resolved, watch: Watch) -> dict[str, Any]:
    objective = "memory" if resolved.workload.objective == "memory" else "step"  # one cluster: cost orders as time
    return {"objective": objective, "progress": watch.report, "should_stop": watch.late}


def best_of_families(resolved: Resolved, watch: Watch, least: int = 0, window: float = 0.0) -> SearchOutcome:
    """The best layout of each family, as many as requested or `least`; where there are fewer families than requested,
    the best of all layouts fill the list. window: see TopK. Raises NoFeasibleLayoutError if there is none, or
    SearchInterrupted."""
    top = max(resolved.request.top, least)
    outcome = search(resolved, watch, top=top, family=FAMILY, window=window)
    if not outcome.top.rows:
        raise _no_layout(resolved, outcome, watch)
    missing = resolved.request.top - len(outcome.top.rows)
    if outcome.stopped or missing <= 0:
        return outcome
    unrestricted = search(resolved, watch, top=top, window=window)
    if unrestricted.stopped:
        watch.cuts.append((unrestricted.stopped, "the list was filled up"))
        return outcome
    twins = [row for row in unrestricted.top.rows if row not in outcome.top.rows]
    unrestricted.top.rows = sorted(outcome.top.rows + twins[:missing], key=lambda row: row[:2])
    return unrestricted


def _no_layout(resolved: Resolved, outcome: SearchOutcome, watch: Watch) -> MeshwrightError:
    """Why the search has no layout."""
    if outcome.stopped:
        return SearchInterrupted(f"stopped ({outcome.stopped}) before any layout was found")
    if outcome.count.total == sum(outcome.count.ruled_out.values()):
        return no_legal_layout(resolved, outcome.count)
    return does_not_fit(resolved, outcome.count, watch.late)
