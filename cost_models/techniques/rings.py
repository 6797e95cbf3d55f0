"""The need of techniques that change what travels round a ring of context parallelism, and the software that does."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from ..layouts import CP_ALGORITHMS
from .base import Columns, Need

if TYPE_CHECKING:
    from ..problem import Problem
    from ..specs.stack import StackSpec

_RINGS = [CP_ALGORITHMS.index("ring"), CP_ALGORITHMS.index("ring+ulysses")]


def _ring(x: Columns, problem: Problem) -> NDArray[np.bool_]:
    return np.asarray((x["cp"] > 1) & np.isin(x["cp_algorithm"], _RINGS))


FORMS_RINGS = Need(("cp", "cp_algorithm"), _ring, "context parallelism in a ring")


def sending(stack: StackSpec, what: Literal["queries", "scores"]) -> StackSpec:
    """Software whose rings send this, by kernels of its own."""
    return replace(stack, ring_sends=what, rings_in_torch=False)
