"""All techniques by name, and those that a workload asks for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from ...errors import InputError, did_you_mean, nearest
from . import diloco, fuyou, luwu, one_bit_adam, three_level, vocabulary_parallel, zero_infinity, zero_plus_plus
from .base import Applied, Technique

if TYPE_CHECKING:
    from ..quantities.ledger import Ledger

TECHNIQUES: Mapping[str, Technique] = {
    module.TECHNIQUE.name: module.TECHNIQUE
    for module in (one_bit_adam, diloco, zero_plus_plus, three_level, zero_infinity, fuyou, luwu, vocabulary_parallel)
}


def technique(name: str) -> Technique:
    """Raises InputError for an unknown name, with the nearest known one."""
    if name not in TECHNIQUES:
        hint = did_you_mean(nearest(name, TECHNIQUES), otherwise=f"known: {', '.join(TECHNIQUES)}")
        raise InputError(f"unknown technique `{name}`", hint=hint)
    return TECHNIQUES[name]


def applied(asked: Mapping[str, Mapping[str, float]]) -> Applied:
    """Techniques with all their knobs, in the order of their rewrites. Raises InputError for what is unknown, out of
    range, or excludes one another."""
    found = sorted((technique(name) for name in asked), key=lambda each: (each.order, each.name))
    for one in found:
        if clash := next((name for name in one.excludes if name in asked), None):
            raise InputError(f"{one.name} and {clash} exclude one another: {one.excludes[clash]}",
                             hint="keep one of them")  # fmt: skip
    return tuple((each.name, tuple(each.settings(asked[each.name]).items())) for each in found)


def of(chosen: Applied) -> Iterator[tuple[Technique, dict[str, float]]]:
    """Each technique with its knobs."""
    for name, knobs in chosen:
        yield TECHNIQUES[name], dict(knobs)


def keep_weights(chosen: Applied) -> bool:
    """Whether GPUs hold at least their share of the weights under all of them."""
    return all(each.keeps_weights for each, _ in of(chosen))


def fill_by_layers(chosen: Applied) -> bool:
    """Whether only layers fill a pipeline under any of them."""
    return any(each.fills_by_layers for each, _ in of(chosen))


def rewrite(ledger: Ledger) -> Ledger:
    """The ledger under the techniques of its workload."""
    for each, knobs in of(ledger.problem.workload.techniques):
        ledger = each.rewrite(ledger, knobs)
    return ledger
