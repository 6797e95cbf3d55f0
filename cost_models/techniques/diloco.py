"""Streaming DiLoCo: replicas train independently and periodically exchange fragments of the parameters."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from .base import EXCHANGE, Knob, Knobs, Technique
from .replicas import OUTER_BYTES, OUTER_PASSES, WHOLE_REPLICAS

if TYPE_CHECKING:
    from ..quantities.ledger import Ledger


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
    group="less communication",
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
    needs=(WHOLE_REPLICAS,),
    chooses=(EXCHANGE,), only_traffic=True,
    rewrite=_rewrite,
    caveat="the loss after as many tokens is worse with more replicas and longer periods: not in any price",
)
