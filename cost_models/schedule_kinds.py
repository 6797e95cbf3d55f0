"""The pipeline schedules that a layout may name, one row of facts each.

A layout holds the code of its schedule: the place of its row in `KINDS`. Formulas look a fact up for a whole batch of
codes (`FOLDED[codes]`). A form that differs by schedule beyond these facts is an entry of a table by name, which
`by_code` refuses at import if a schedule is missing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from .arrays import Ints

Entry = TypeVar("Entry")


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleKind:
    """The facts of a schedule for formulas, rules and searches."""

    name: str  # in JSON, columns and flags
    token: str  # in the id of a layout
    chunks: int | None  # per device, None: `vpp` of them, at least 2 (interleaving)
    folded: bool  # device d holds chunks d and 2p-1-d: a V whose first device has both ends of the model
    splits_backward: bool  # input gradients (I) and weight gradients (W) are passes of their own
    losses_first: bool  # all losses of a step are taken before the first backward pass


KINDS = (
    ScheduleKind(name="1f1b", token="1f1b", chunks=1, folded=False, splits_backward=False, losses_first=False),
    ScheduleKind(name="gpipe", token="gpipe", chunks=1, folded=False, splits_backward=False, losses_first=True),
    ScheduleKind(name="interleaved", token="int", chunks=None, folded=False, splits_backward=False, losses_first=False),
    ScheduleKind(name="zb-h1", token="zbh1", chunks=1, folded=False, splits_backward=True, losses_first=False),
    ScheduleKind(name="zb-v", token="zbv", chunks=2, folded=True, splits_backward=True, losses_first=False),
    ScheduleKind(name="dualpipe-v", token="dpv", chunks=2, folded=True, splits_backward=True, losses_first=False),
)
CODE = {kind.name: code for code, kind in enumerate(KINDS)}

# Facts by code, for columns of codes.
FOLDED = np.array([kind.folded for kind in KINDS])
SPLITS_BACKWARD = np.array([kind.splits_backward for kind in KINDS])
INTERLEAVED = np.array([kind.chunks is None for kind in KINDS])
LOSSES_FIRST = np.array([kind.losses_first for kind in KINDS])


def by_code(what: str, table: Mapping[str, Entry], among: tuple[ScheduleKind, ...] = KINDS) -> dict[int, Entry]:
    """The entries of a table by schedule name, by code. Raises RuntimeError if one of `among` has no entry."""
    if missing := [kind.name for kind in among if kind.name not in table]:
        raise RuntimeError(f"{what}: no entry for schedule {', '.join(missing)}")
    return {CODE[kind.name]: table[kind.name] for kind in among}


def rows_by_schedule(schedule: Ints) -> Iterator[tuple[int, Ints | slice]]:
    """(code, the rows with it) of every schedule that occurs in [n] codes; all rows as a slice if there is only one."""
    codes = np.flatnonzero(np.bincount(schedule, minlength=len(KINDS))).tolist()
    for code in codes:
        yield code, slice(None) if len(codes) == 1 else np.flatnonzero(schedule == code)
