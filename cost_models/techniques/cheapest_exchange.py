"""The cheapest exchange between replicas: of several techniques that change it, the least of each quantity.

Nobody trains so. Searches under any of these techniques share its bounds (planner/search/shared_search.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import groupby
from typing import TYPE_CHECKING

import numpy as np

from .base import Applied, Knobs, Technique

if TYPE_CHECKING:
    from ..quantities.ledger import Ledger

NAME = "cheapest exchange"


def cheapest_of(alternatives: Iterable[Applied], known: Mapping[str, Technique]) -> Applied:
    """`alternatives`, which differ in techniques that change the traffic of states alone, with the cheapest exchange in
    place of these. A knob of it is named after its technique; without knobs nothing is kept or moved."""
    alternatives = list(alternatives)
    kept = tuple(one for one in alternatives[0] if not known[one[0]].only_traffic)
    changed = [[one for one in chosen if known[one[0]].only_traffic] for chosen in alternatives]
    knobs = [(f"{name}.{knob}", value) for chosen in changed for name, given in chosen for knob, value in given]
    return (*kept, (NAME, tuple(knobs) if all(changed) else ()))


def cheapest_exchange(known: Mapping[str, Technique]) -> Technique:
    """The technique of that name. Its knobs name techniques of `known`."""

    def rewrite(ledger: Ledger, knobs: Knobs) -> Ledger:
        by_technique = groupby(knobs.items(), key=lambda knob: knob[0].partition(".")[0])
        under = [known[name].rewrite(ledger, {knob.partition(".")[2]: value for knob, value in given}).traffic
                 for name, given in by_technique]  # fmt: skip
        on_gpu = [np.max([np.asarray(part.on_gpu) for part in traffic], axis=0) for traffic in under]
        on_host = [max(part.on_host for part in traffic) for traffic in under]
        moved = [sum(part.share * part.moved for part in traffic) for traffic in under]
        # Gradients are scattered within a shard group as in plain training; what copies send may hide.
        plain = replace(ledger.traffic[0], replicated=0.0)
        if not under:
            return replace(ledger, traffic=(plain,))
        return replace(ledger, traffic=(replace(
            plain, on_gpu=np.min(np.broadcast_arrays(*on_gpu), axis=0), on_host=min(on_host), moved=min(moved)),))

    return Technique(name=NAME, group="less communication", title="the least of each quantity of several exchanges",
                     paper="", bibtex="", knobs=(), neutral={}, rewrite=rewrite, caveat="")  # fmt: skip
