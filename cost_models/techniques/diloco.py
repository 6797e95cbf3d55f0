"""Streaming DiLoCo: replicas train independently and periodically exchange fragments of the parameters."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from .base import Columns, Knob, Knobs, Need, Technique

if TYPE_CHECKING:
    from ..problem import Problem
    from ..quantities.ledger import Ledger

# fp32 each, per parameter of a rank: what the last exchange left (outer parameters) and the outer momentum.
OUTER_BYTES = 4.0
# Of an outer update, per parameter: difference from the outer parameters (2 reads), momentum (read and written),
# outer and inner parameters written.
OUTER_PASSES = 6.0


def _allows(x: Columns, problem: Problem) -> NDArray[np.bool_]:
    # Without ZeRO every data-parallel rank is a replica: it must hold all experts, and no part of a sequence only.
    copies = np.where(x["zero"] > 0, x["dp"] // x["shard"], x["dp"])
    whole = (x["cp"] == 1) & (x["ep"] * x["etp"] <= x["tp"])
    return np.asarray((copies > 1) & ((x["zero"] > 0) | whole))


def _rewrite(ledger: Ledger, knobs: Knobs) -> Ledger:
    if knobs["period"] == 1:  # replicas that exchange at every step are plain data parallelism
        return ledger
    sent, on_host = knobs["bits"] / 8, knobs["copy_on_host"]
    phases = [
        replace(
            traffic, replicated=sent, period=knobs["period"], fragments=knobs["fragments"], delay=knobs["delay"],
            on_gpu=OUTER_BYTES * (2 - on_host), on_host=OUTER_BYTES * on_host,
            moved=(OUTER_PASSES * OUTER_BYTES + sent) / knobs["period"],
        )
        for traffic in ledger.traffic
    ]  # fmt: skip
    return replace(ledger, traffic=tuple(phases))


TECHNIQUE = Technique(
    name="diloco",
    title="Streaming DiLoCo: replicas exchange fragments of 4 bits every few dozen steps",
    paper="Douillard et al. 2025, Streaming DiLoCo with overlapping communication, arXiv 2501.18512",
    bibtex="""@article{douillard2025streaming,
  title = {Streaming DiLoCo with overlapping communication: Towards a Distributed Free Lunch},
  author = {Douillard, Arthur and others},
  journal = {arXiv preprint arXiv:2501.18512},
  year = {2025}
}""",
    # As in the paper: periods of 30 to 100 steps, overlaps of 1 to 5, E3M0 payload of 4 bits.
    knobs=(
        Knob("period", 100, 1, 10_000, "steps between two exchanges of the same fragment"),
        Knob("fragments", 8, 1, 1000, "pieces of the model that are exchanged in turn"),
        Knob("delay", 5, 0, 1000, "steps that an exchange may take while training goes on"),
        Knob("bits", 4, 1, 32, "bits per parameter of what is sent"),
        Knob("copy_on_host", 1, 0, 1, "1: the outer parameters wait in host memory, as in torchft"),
    ),
    neutral={"period": 1},
    needs=(Need(("tp", "cp", "dp", "ep", "etp", "zero", "shard"), _allows, "replicas of the whole model: ZeRO in shard "
                "groups smaller than dp, or none of it with cp 1 and ep within tp"),),
    rewrite=_rewrite,
    caveat="the loss after as many tokens is worse with more replicas and longer periods: not in any price",
)
