"""`--scale-down` of a plan with layer-wise strategies.

Kept: the number of different splits of sequences, whether a split covers all GPUs of a stage (unless that needs more
than 8 ranks), and every pair of adjacent strategies in a stage. Shrunk: degrees to powers of two, layers to one per
such pair.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from ...cost_models.layouts import Layout
from ..parallel.strategies import Strategies, parts_of

MOST_RANKS = 8


def degrees(strategies: Strategies, pp: int) -> tuple[dict[int, int], int]:
    """Parts of a sequence -> parts in the rehearsal on `pp` stages, and the rehearsal's GPUs per stage."""
    gpus = strategies.embedding.num_gpus // strategies.embedding.pp
    above = sorted({parts_of(strategy) for strategy in strategies.in_order} - {1})
    small = {1: 1, **{parts: 2 ** (index + 1) for index, parts in enumerate(above)}}
    most = 2 ** len(above)
    return small, most if gpus in small or (above and 2 * most * pp > MOST_RANKS) else 2 * most


def shrunk(strategies: Strategies, layout: Layout, pp: int, most_micro_batch: int) -> Layout:
    """The rehearsal of one strategy among those of a job, on `pp` stages."""
    small, gpus = degrees(strategies, pp)
    least = min(map(parts_of, strategies.in_order))
    micro_batch = min(most_micro_batch, *(strategy.micro_batch for strategy in strategies.in_order))
    sequences = micro_batch * gpus // small[least]
    tp, cp = small[layout.tp], small[layout.cp]
    dp = gpus // (tp * cp)
    layers = min(layout.recompute_layers, 1)
    return replace(layout, tp=tp, cp=cp, pp=pp, dp=dp, shard=dp, micro_batch=sequences // dp, recompute_layers=layers)


def kept_layers(layers: Sequence[Layout]) -> list[Layout]:
    """The layers of a stage to keep: the first of each pair of adjacent strategies."""
    pairs = zip((None, *layers), layers, strict=False)
    return [strategy for _, strategy in dict.fromkeys(pairs)]


def rehearsed(strategies: Strategies, stages: Sequence[Sequence[Layout]], small: Mapping[Layout, Layout]) -> Strategies:
    """The strategies of the rehearsal. stages: the kept layers."""
    layers = tuple(small[strategy] for kept in stages for strategy in kept)
    return Strategies(small[strategies.embedding], layers, small[strategies.head])
