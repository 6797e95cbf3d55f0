"""All techniques by name, and those of a workload."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from ...errors import InputError, did_you_mean, nearest
from . import (
    cpu_offload,
    diloco,
    fuyou,
    luwu,
    one_bit_adam,
    three_level,
    vocabulary_parallel,
    zero_infinity,
    zero_plus_plus,
)
from .base import Applied, Technique

if TYPE_CHECKING:
    from ..quantities.ledger import Ledger

TECHNIQUES: Mapping[str, Technique] = {
    module.TECHNIQUE.name: module.TECHNIQUE
    for module in (one_bit_adam, diloco, zero_plus_plus, three_level, cpu_offload, zero_infinity, fuyou, luwu,
                   vocabulary_parallel)
}


def technique(name: str) -> Technique:
    """Raises InputError for an unknown name, with the nearest known one."""
    if name not in TECHNIQUES:
        hint = did_you_mean(nearest(name, TECHNIQUES), otherwise=f"known: {', '.join(TECHNIQUES)}")
        raise InputError(f"unknown technique `{name}`", hint=hint)
    return TECHNIQUES[name]


def applied(requested: Mapping[str, Mapping[str, float]]) -> Applied:
    """Techniques with all their knobs, in the order of their rewrites. Raises InputError for what is unknown, out of
    range, or excludes one another."""
    ordered = sorted((technique(name) for name in requested), key=lambda chosen: (chosen.order, chosen.name))
    for candidate in ordered:
        if clash := next((name for name in candidate.excludes if name in requested), None):
            raise InputError(f"{candidate.name} and {clash} exclude one another: {candidate.excludes[clash]}",
                             hint="keep one of them")  # fmt: skip
    return tuple((chosen.name, tuple(chosen.settings(requested[chosen.name]).items())) for chosen in ordered)


def of(chosen: Applied) -> Iterator[tuple[Technique, dict[str, float]]]:
    """Each technique with its knobs."""
    for name, knobs in chosen:
        yield TECHNIQUES[name], dict(knobs)


def keep_weights(chosen: Applied) -> bool:
    """Whether GPUs hold at least their share of the weights under all of them."""
    return all(known.keeps_weights for known, _ in of(chosen))


def fill_by_layers(chosen: Applied) -> bool:
    """Whether only layers fill a pipeline under any of them."""
    return any(known.fills_by_layers for known, _ in of(chosen))


def rewrite(ledger: Ledger) -> Ledger:
    """The ledger under the techniques of its workload."""
    for known, knobs in of(ledger.problem.workload.techniques):
        ledger = known.rewrite(ledger, knobs)
    return ledger
