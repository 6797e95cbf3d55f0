"""The layout that a plan chooses: among those that the model does not tell from the fastest, the simplest.

Its predicted lead says little where it is below the indifference of `evaluation/intervals.py`: the order of two such
layouts is wrong in four of ten published pairs. Copies to the host and more axes to set up are certain, so they
decide, in this order: no offloading, few parallel axes, and then the predicted time. The layout that each asks for is
searched for exactly, in the space of the plan and within its memory budget.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ...cost_models.layouts import Layout
from ..document.base import rounded
from ..document.certificate import Preference, Reason
from ..evaluation import intervals
from ..search.fewest_axes import FewestAxes, axes_of, num_axes
from ..search.roots import Start
from ..search.top_k import TopK
from ..space.rules import only
from .simulated_order import Row, SimulatedOrder
from .watch import Watch

_OFFLOADS = ("offload", "offload_layers", "offload_modules")
_ON_GPU = tuple(only("preference", field, (plain,), "layouts that keep everything on the GPU are preferred")
                for field, plain in (("offload", "none"), ("offload_layers", 0)))  # fmt: skip


def prefer(order: SimulatedOrder, watch: Watch) -> tuple[Row, Preference | None]:
    """(seconds, id, layout) of the choice, and why it is not the fastest of `order`; None where it is."""
    fastest = order.rows[0]
    if order.outcome.start is None:
        return fastest, None
    for on_gpu in (True, False):
        simplest = _simplest(order, watch, on_gpu=on_gpu)
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


def simplest_of(rows: Sequence[Row]) -> tuple[int, Preference | None]:
    """The number of the simplest of these layouts, fastest first, that the model does not tell from the fastest, and
    why it is not that."""
    limit_s = rows[0][0] * (1 + intervals.indifference())
    near = [(complexity(row[2]), number) for number, row in enumerate(rows) if row[0] <= limit_s]
    _, number = min(near)
    return number, None if number == 0 else _preference(rows[number][2], rows[0])


def _simplest(order: SimulatedOrder, watch: Watch, *, on_gpu: bool) -> Layout | None:
    """The layout with the fewest axes, and of these the fastest, that the closed form does not tell from its best.
    on_gpu: of those that offload nothing."""
    resolved, top = order.resolved, order.outcome.top
    limit_s = top.rows[0][0] * (1 + intervals.indifference())
    known = _simplest_kept(top, limit_s, on_gpu=on_gpu)
    if limit_s <= top.known_end:
        return known
    # A layout that was not kept is slower than all that were. Only with fewer axes is it simpler than they are.
    start = _start(order, on_gpu=on_gpu)
    search = FewestAxes(start.counts.space, resolved.rates, start=start, incumbent=limit_s,
                        memory_bytes=resolved.budget_bytes, host_bytes=resolved.host_bytes, should_stop=watch.late,
                        fewer_than=None if known is None else num_axes(known))  # fmt: skip
    outcome = search.run()
    if outcome.stopped:
        watch.cuts.append((outcome.stopped, "simpler layouts were compared"))
    return outcome.top.rows[0][2] if outcome.top.rows else known


def _simplest_kept(top: TopK, limit_s: float, *, on_gpu: bool) -> Layout | None:
    """The simplest within the limit among the layouts that the search kept; None where it kept none such."""
    values, layouts = top.kept
    near = values <= min(limit_s, top.known_end)
    if on_gpu:
        near &= np.all([layouts[name] == 0 for name in _OFFLOADS], axis=0)
    axes = axes_of(layouts)
    if not near.any():
        return None
    rows = np.flatnonzero(near & (axes == axes[near].min())).tolist()
    simplest = [(float(f"{values[row]:.9g}"), layouts.layout(row)) for row in rows]
    return min(simplest, key=lambda row: (row[0], str(row[1])))[1]


def _start(order: SimulatedOrder, *, on_gpu: bool) -> Start:
    """The start of a search of the same meshes. on_gpu: only layouts without offload."""
    start = order.outcome.start
    if start is None:
        raise ValueError("a search without a legal mesh has no layout to compare")
    return start.of(start.counts.meshes["offload_modules"] == 0).under(_ON_GPU) if on_gpu else start


def complexity(layout: Layout) -> tuple[bool, int]:
    """The complexity of a layout: whether it offloads, then its number of parallel axes."""
    return _offloads(layout), num_axes(layout)


def _offloads(layout: Layout) -> bool:
    return any(getattr(layout, name) for name in _OFFLOADS)


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
