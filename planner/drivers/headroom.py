"""Plans where no layout leaves the headroom: with less of it, and a warning."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from ...cost_models import units
from ..document.candidate import Candidate
from ..document.plan import Plan
from ..evaluation.infeasible import NoHeadroomError
from ..request.resolve import Resolved

T = TypeVar("T")


def leaving_most(resolved: Resolved, searched: Callable[[Resolved], T]) -> tuple[T, bool]:
    """The result of a search, and whether it leaves the headroom. Where layouts fit and none leaves the default one,
    that of the layout which leaves most: with it, a GPU with more memory never has a slower plan. Over groups of nodes
    that differ, where no search minimises bytes, that of all that fit. Raises NoHeadroomError where the request names a
    headroom that none leaves."""
    try:
        return searched(resolved), True
    except NoHeadroomError as error:
        if resolved.request.workload.headroom is not None:
            raise
        return searched(replace(resolved, headroom_share=error.share)), False


def with_headroom(resolved: Resolved, driver: Callable[[Resolved], Plan]) -> Plan:
    """The plan of `driver`, which leaves the headroom, or as much as there is, with a warning (`leaving_most`)."""
    plan, leaves = leaving_most(resolved, driver)
    return plan if leaves else plan.with_warnings([_warning(resolved, plan.best)])


def _warning(resolved: Resolved, best: Candidate) -> str:
    chance = "" if best.overflow_chance is None else f", with a chance of {best.overflow_chance:.0%} of running out"
    used, limit = best.least_room(resolved.memory_bytes)
    headroom, left = units.gib(resolved.headroom_bytes), units.gib(limit - used)
    return (f"no layout leaves the headroom of {headroom} GiB per GPU; layout 1 leaves {left}{chance}: more GPUs, a "
            "shorter --seq-len, or 8-bit optimizer states leave more")  # fmt: skip
