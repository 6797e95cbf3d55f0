"""The layout that a plan chooses: among those that the model does not tell from the fastest, the simplest.

Its predicted lead says little where it is below the indifference of `evaluation/intervals.py`: the order of two such
layouts is wrong in four of ten published pairs. Copies to the host and more axes to set up are certain, so they
decide, in this order: no offloading, few parallel axes, and then the predicted time. What each asks for is searched
for exactly, in the space of the plan and within its memory budget.
"""

from __future__ import annotations

from ...cost_models.layouts import Layout
from ..document.base import rounded
from ..document.certificate import Preference, Reason
from ..evaluation import intervals
from ..request.resolve import Resolved
from ..search.exhaustive import SearchOutcome
from ..search.run import search_of
from ..search.top_k import FAMILY
from ..space.rules import only
from .watch import Watch

_AXES = ("tp", "cp", "pp", "ep", "etp")
_FAMILIES = 64  # families within the indifference that are compared; the fastest ones, if there are more
_ON_GPU = only("preference", "offload", ("none",), "layouts that keep all states on the GPU are preferred")
Row = tuple[float, str, Layout]


def prefer(resolved: Resolved, outcome: SearchOutcome, watch: Watch) -> tuple[Row, Preference | None]:
    """(seconds, id, layout) of the choice, and why it is not the fastest of `outcome`; None where it is."""
    fastest = outcome.top.rows[0]
    limit_s = fastest[0] * (1 + intervals.indifference())
    for offloads in (False, True):
        rows = _within(resolved, watch, limit_s, offloads=offloads)
        if watch.cuts:
            break
        if rows:
            choice = min(rows, key=lambda row: (_num_axes(row[2]), row[0], row[1]))
            return choice, None if choice[1] == fastest[1] else _preference(choice[2], fastest)
    return fastest, None


def _within(resolved: Resolved, watch: Watch, limit_s: float, *, offloads: bool) -> list[Row]:
    """The best layout of each family that takes no longer than `limit_s`."""
    rules = (resolved.target.rules, resolved.fixes, () if offloads else (_ON_GPU,))
    search = search_of(resolved, resolved.space_under(*rules), top=_FAMILIES, family=FAMILY, incumbent=limit_s,
                       should_stop=watch.late)  # fmt: skip
    search.warm_starts = False  # the fastest layout is known and limits the search from its first node on
    outcome = search.run()
    if outcome.stopped:
        watch.cuts.append((outcome.stopped, "simpler layouts were compared"))
    return [row for row in outcome.top.rows if row[0] <= limit_s]


def _num_axes(layout: Layout) -> int:
    return sum(getattr(layout, axis) > 1 for axis in _AXES)


def _preference(choice: Layout, fastest: Row) -> Preference:
    """Why `choice` stands before the fastest layout."""
    reasons: dict[Reason, bool] = {
        "offload": not choice.offload and bool(fastest[2].offload),
        "axes": _num_axes(choice) < _num_axes(fastest[2]),
    }
    return Preference(
        fastest=fastest[1], fastest_s=rounded(fastest[0]), indifference=rounded(intervals.indifference()),
        reasons=tuple(name for name, holds in reasons.items() if holds),
    )  # fmt: skip
