"""How sharded weights and gradients travel for every micro-batch: one collective after another, among which ranks.

In plain ZeRO-3 one gather over all ranks of a shard group brings the weights, for each pass, and one scatter takes the
gradients. Techniques put fewer ranks, fewer bits or two shorter ways in their place.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

# `all_scan`: each rank passes what it got, with its own added, to the next one, part by part.
Op = Literal["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "p2p", "broadcast", "all_scan"]
# Those that have rates of their own.
OPS: tuple[Op, ...] = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "p2p", "broadcast")
Among = Literal["all", "neighbours", "across", "store"]


@dataclass(frozen=True, slots=True)
class Hop:
    """One collective on a state of all parameters that a rank computes with."""

    op: Op
    # `all`: ranks of the shard group. `neighbours`: sets of `reach` ranks next to one another. `across`: one rank of
    # each such set, on what its set has divided among its ranks. `store`: each rank by itself, over the outermost
    # level, with something that is no rank.
    among: Among = "all"
    reach: int = 0  # ranks of a set of neighbours; 0: those of one node
    scale: float = 1.0  # bytes sent over those of the state in the dtype it has
    moved: float = 0.0  # bytes per parameter in GPU memory to encode and decode, which nothing hides


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchanges:
    """The collectives of ZeRO-2 and ZeRO-3, one hop after another, and which ranks share a state."""

    forward: tuple[Hop, ...] = (Hop("all_gather"),)  # weights, before the forward pass of a micro-batch
    backward: tuple[Hop, ...] = (Hop("all_gather"),)  # weights, before its backward pass
    gradients: tuple[Hop, ...] = (Hop("reduce_scatter"),)  # after its backward pass
    to_optimizer: tuple[Hop, ...] = ()  # gradients once per step, to the ranks that update them, where these are others
    from_optimizer: tuple[Hop, ...] = ()  # weights once per step, back from them
    weights_over: int | None = None  # neighbours that divide the weights of ZeRO-3; None: the whole shard group
    gradients_over: int | None = None  # neighbours that divide its gradients; None: the whole shard group
    copied_over: int | None = None  # neighbours that divide a second copy of the weights; None: there is none
    by_nic: bool = False  # NICs do all of it, each way at once, and do not slow down compute beside it


PLAIN = Exchanges()
