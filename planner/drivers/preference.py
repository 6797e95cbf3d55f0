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
from ..search.fewest_axes import FewestAxes, num_axes
from ..search.roots import Start
from ..space.rules import only
from .simulated_order import Row, SimulatedOrder
from .watch import Watch

_ON_GPU = tuple(only("preference", field, (plain,), "layouts that keep everything on the GPU are preferred")
                for field, plain in (("offload", "none"), ("offload_layers", 0)))  # fmt: skip


def prefer(order: SimulatedOrder, watch: Watch) -> tuple[Row, Preference | None]:
    """(seconds, id, layout) of the choice, and why it is not the fastest of `order`; None where it is."""
    fastest, outcome = order.rows[0], order.outcome
    if outcome.start is None:
        return fastest, None
    stay = outcome.start.of(outcome.start.counts.meshes["offload_modules"] == 0).under(_ON_GPU)
    for start in (stay, outcome.start):
        simplest = _simplest(order, watch, start)
        if watch.cuts:
            break
        if simplest is None:
            continue
        order.of(simplest)
        # Of those that are no less simple, one with a longer closed form may be faster.
        choice = next(row for row in order.rows if complexity(row[2]) <= complexity(simplest))
        if choice[0] <= fastest[0] * (1 + intervals.indifference()):
            return choice, None if choice[1] == fastest[1] else _preference(choice[2], fastest)
    return fastest, None


def _simplest(order: SimulatedOrder, watch: Watch, start: Start) -> Layout | None:
    """The layout with the fewest axes, and of these the fastest, that the closed form does not tell from its best."""
    resolved, limit_s = order.resolved, order.outcome.top.rows[0][0] * (1 + intervals.indifference())
    search = FewestAxes(start.counts.space, resolved.rates, start=start, incumbent=limit_s,
                        memory_bytes=resolved.budget_bytes, host_bytes=resolved.host_bytes,
                        should_stop=watch.late)  # fmt: skip
    outcome = search.run()
    if outcome.stopped:
        watch.cuts.append((outcome.stopped, "simpler layouts were compared"))
    return outcome.top.rows[0][2] if outcome.top.rows else None


def complexity(layout: Layout) -> tuple[bool, int]:
    """How hard a layout is to set up and to run: whether it offloads, then how many parallel axes it has."""
    return _offloads(layout), num_axes(layout)


def _offloads(layout: Layout) -> bool:
    return bool(layout.offload or layout.offload_layers or layout.offload_modules)


def _preference(choice: Layout, fastest: Row) -> Preference:
    """Why `choice` stands before the fastest layout."""
    reasons: dict[Reason, bool] = {
        "offload": not _offloads(choice) and _offloads(fastest[2]),
        "axes": num_axes(choice) < num_axes(fastest[2]),
    }
    return Preference(
        fastest=fastest[1], fastest_s=rounded(fastest[0]), indifference=rounded(intervals.indifference()),
        reasons=tuple(name for name, holds in reasons.items() if holds),
    )  # fmt: skip
