"""How sharded weights and gradients travel for every micro-batch: one collective after another, among which ranks.

In plain ZeRO-3 one gather over all ranks of a shard group brings the weights, for each pass, and one scatter takes the
gradients. Techniques put fewer ranks, fewer bits or two shorter ways in their place.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from ..arrays import Array, Ints
from ..rates.collectives import Curve, Op
from .groups import neighbours

if TYPE_CHECKING:
    from .groups import Groups

CurveOf = Callable[[Op, Ints, Ints], Curve]  # of (operation, size, stride)
Among = Literal["all", "neighbours", "across", "store"]


@dataclass(frozen=True, slots=True)
class Hop:
    """One collective on a state of all parameters that a rank computes with.

    among: `all` ranks of the shard group; `neighbours`, sets of `reach` ranks next to one another (0: of one node);
    `across`, one rank of each such set, on what its set has divided among its ranks; `store`: each rank by itself, over
    the outermost level, with something that is no rank. scale: bytes sent over those of the state in the dtype it has.
    moved: bytes per parameter in GPU memory to encode and decode, which nothing hides.
    """

    op: Op
    among: Among = "all"
    reach: int = 0
    scale: float = 1.0
    moved: float = 0.0

    def curve(self, groups: Groups, per_node: int, num_gpus: int, curve_of: CurveOf) -> Curve:
        """Seconds over the bytes of the whole state, for shard groups of `groups`."""
        shard, stride = groups.shard, groups.shard_stride
        if self.among == "all":
            return _scaled(curve_of(self.op, shard, stride), self.scale)
        if self.among == "store":
            return _scaled(curve_of(self.op, np.full_like(shard, num_gpus), np.ones_like(shard)), self.scale)
        near = neighbours(self.reach, shard, stride, per_node)
        if self.among == "neighbours":
            return _scaled(curve_of(self.op, near, stride), self.scale)
        return _scaled(curve_of(self.op, shard // near, stride * near), self.scale / near)


def _scaled(curve: Curve, scale: Array | float) -> Curve:
    if isinstance(scale, float) and scale == 1.0:
        return curve
    return Curve(curve.latency_s, curve.s_per_byte * scale, curve.ramp)


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchanges:
    """forward, backward: gathers of the weights before each pass; gradients: after the backward pass, one hop after
    another; to_optimizer, from_optimizer: once per step between the ranks that keep gradients or weights and those
    that update them, where these are not the same.

    weights_over, gradients_over: neighbours that a ZeRO-3 rank shares its weights and gradients with (None: the whole
    shard group); copied_over: of a second copy of the weights beside that (None: there is none). by_nic: NICs do all
    of it, each way at once, and compute beside it is not slowed down.
    """

    forward: tuple[Hop, ...] = (Hop("all_gather"),)
    backward: tuple[Hop, ...] = (Hop("all_gather"),)
    gradients: tuple[Hop, ...] = (Hop("reduce_scatter"),)
    to_optimizer: tuple[Hop, ...] = ()
    from_optimizer: tuple[Hop, ...] = ()
    weights_over: int | None = None
    gradients_over: int | None = None
    copied_over: int | None = None
    by_nic: bool = False


PLAIN = Exchanges()
