"""All techniques by name, and those of a workload."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from itertools import combinations
from typing import TYPE_CHECKING

from ...errors import InputError, did_you_mean, nearest
from . import (
    ai_flow,
    co2,
    comet,
    comet_w4a4kv4,
    cpu_offload,
    cxl,
    dadao,
    diloco,
    distzo2,
    dparallel,
    duplicate_token_dropping,
    econtrol,
    exflow,
    fastswitch,
    fsmoe,
    fuyou,
    gnnpipe,
    gradient_coding,
    just_one_byte,
    ladder_residual,
    learn2pd,
    luwu,
    mirror_sd,
    nanoflow,
    nexus,
    noloco,
    one_bit_adam,
    parallelbench,
    parscale,
    partitioned_checkpoints,
    pcpp,
    prompt_decoding,
    ring_self_attention,
    semi_pd,
    skippipe,
    speculative_moe,
    streamdiffusion,
    t3,
    three_level,
    token_ring,
    tokenweave,
    tpi_llm,
    vocabulary_parallel,
    zero_infinity,
    zero_plus_plus,
)
from .base import Applied, Technique
from .cheapest_exchange import cheapest_exchange

if TYPE_CHECKING:
    from ..arrays import Mask
    from ..quantities.ledger import Ledger
    from ..serving.pool import Pool
    from ..specs.stack import StackSpec

# Of training.
TECHNIQUES: Mapping[str, Technique] = {
    module.TECHNIQUE.name: module.TECHNIQUE
    for module in (
        one_bit_adam, econtrol, diloco, co2, noloco, dadao, just_one_byte,
        duplicate_token_dropping,
        zero_plus_plus, three_level, cpu_offload, cxl, zero_infinity, fuyou, luwu, distzo2,
        partitioned_checkpoints,
        ladder_residual, tokenweave, t3, comet, fsmoe, speculative_moe,
        vocabulary_parallel, skippipe, gnnpipe,
        token_ring, ring_self_attention,
        gradient_coding,
        parscale,
    )
}  # fmt: skip
# Of serving; those that train, too, are one file for both.
SERVING: Mapping[str, Technique] = {
    module.TECHNIQUE.name: module.TECHNIQUE
    for module in (
        ladder_residual, tokenweave, nanoflow, speculative_moe, exflow,
        nexus, semi_pd,
        comet_w4a4kv4, fastswitch,
        mirror_sd, prompt_decoding, parscale,
        learn2pd, dparallel, parallelbench,
        tpi_llm, ai_flow,
        pcpp, streamdiffusion,
    )
}  # fmt: skip
EVERY: Mapping[str, Technique] = {**TECHNIQUES, **SERVING}
CHEAPEST = cheapest_exchange(TECHNIQUES)  # of no run: for bounds

# Of training, those that `all` leaves to the search: they may make a step shorter, of the same work.
SHORTENING: Mapping[str, Technique] = {name: known for name, known in TECHNIQUES.items() if not known.only_costs}
# Of serving, those that may make a deployment better: what `all` leaves to the search.
GAINING: Mapping[str, Technique] = {
    name: known for name, known in SERVING.items() if known.serves is not None and not known.serves.only_costs
}


def technique(name: str, known: Mapping[str, Technique] = EVERY) -> Technique:
    """Raises InputError for a name that is not known, with the nearest known one, or that is of other
    workloads."""
    if name in known:
        return known[name]
    if name in EVERY:
        does, other = ("trains", "serves") if name in TECHNIQUES else ("serves", "trains")
        raise InputError(f"{name} {does}, and no plan {other} by it",
                         hint="by group and use: `meshwright show techniques`")  # fmt: skip
    raise InputError(f"unknown technique `{name}`",
                     hint=did_you_mean(nearest(name, known), otherwise=f"known: {', '.join(known)}"))  # fmt: skip


def applied(
    requested: Mapping[str, Mapping[str, float]], known: Mapping[str, Technique] = TECHNIQUES
) -> Applied:  # fmt: skip
    """Techniques with all their knobs, in the order of their rewrites. Raises InputError for what is unknown, out of
    range, or excludes one another."""
    for name in requested:
        technique(name, known)
    ordered = sorted((technique(name) for name in requested), key=lambda chosen: (chosen.order, chosen.name))
    if excluded := next(exclusions(requested), None):
        one, other, reason = excluded
        raise InputError(f"{one} and {other} exclude one another: {reason}", hint="keep one of them")
    return tuple((chosen.name, tuple(chosen.settings(requested[chosen.name]).items())) for chosen in ordered)


def exclusions(names: Collection[str]) -> Iterator[tuple[str, str, str]]:
    """Pairs of these techniques that exclude one another, with the reason."""
    ordered = sorted((technique(name) for name in names), key=lambda chosen: (chosen.order, chosen.name))
    for one, other in combinations(ordered, 2):
        if reason := one.exclusion(other):
            yield one.name, other.name, reason


def of(chosen: Applied) -> Iterator[tuple[Technique, dict[str, float]]]:
    """Each technique with its knobs."""
    for name, knobs in chosen:
        yield CHEAPEST if name == CHEAPEST.name else EVERY[name], dict(knobs)


def keep_weights(chosen: Applied) -> bool:
    """Whether GPUs hold at least their share of the weights under all of them."""
    return all(known.keeps_weights for known, _ in of(chosen))


def fill_by_layers(chosen: Applied) -> bool:
    """Whether only layers fill a pipeline under any of them."""
    return any(known.fills_by_layers for known, _ in of(chosen))


def least_work(chosen: Applied) -> float:
    """The least share of the work of all micro-batches that all of them leave."""
    return math.prod(known.least_work(knobs) for known, knobs in of(chosen) if known.least_work is not None)


def on_stack(stack: StackSpec, chosen: Applied) -> StackSpec:
    """The software under all of them."""
    for known, knobs in of(chosen):
        stack = known.on_stack(stack, knobs)
    return stack


def rewrite(ledger: Ledger) -> Ledger:
    """The ledger under the techniques of its workload."""
    for known, knobs in of(ledger.problem.workload.techniques):
        ledger = known.rewrite(ledger, knobs)
    return ledger


def on_pool(pool: Pool, chosen: Applied) -> Pool:
    """The instances under all of them."""
    for known, knobs in of(chosen):
        if known.serves is not None:
            pool = known.serves.on_pool(pool, knobs)
    return pool


def broken_needs(pool: Pool, chosen: Applied) -> Iterator[tuple[str, str, Mask]]:
    """Each need of theirs: (technique, text, [n] the instances that break it). pool: without them."""
    for known, knobs in of(chosen):
        for need in known.serves.needs if known.serves is not None else ():
            yield known.name, need.described(pool, knobs), ~need.allows(pool, knobs)
