"""Warm start: the plain part of a large space is searched first.

Its best value limits the search of the whole space, which prunes by this limit from its first node on.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ...cost_models.arrays import Mask
from ...cost_models.problem import Problem
from ..space.rules import Columns as Fields
from ..space.rules import Rule
from ..space.tree import Space

# Smaller spaces are searched in less time than a warm start takes.
WARM_START_FROM = 10**9
_MICRO_BATCH = 2


def plain_part(space: Space) -> Space:
    """The usual layouts, at most a hundredth of the space.

    They have sequence parallelism wherever tp is, one algorithm of context parallelism, small micro-batches, unsplit
    experts, ZeRO 0 or 1, no partial recomputation of layers, and no activation offload.
    """

    def sequence_parallel(x: Fields, problem: Problem) -> Mask:
        return np.asarray((x["sequence_parallel"] == 1) | (x["tp"] == 1))

    def at_most(name: str, most: int) -> Rule:
        return Rule(f"warm start: {name}", (name,), lambda x, problem: np.asarray(x[name] <= most), "")

    limits = {"micro_batch": _MICRO_BATCH, "etp": 1, "cp_algorithm": 0, "zero": 1, "recompute_layers": 0,
              "offload_layers": 0, "offload_modules": 0}  # fmt: skip
    rules = tuple(at_most(name, most) for name, most in limits.items())
    both = Rule("warm start: sequence_parallel", ("tp", "sequence_parallel"), sequence_parallel, "")
    return replace(space, rules=(*space.rules, both, *rules))
