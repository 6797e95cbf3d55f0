"""CO2: replicas take some steps alone while the sum of their weights of the round before is on its way."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from .base import EXCHANGE, Knob, Knobs, Technique
from .replicas import OUTER_BYTES, OUTER_PASSES, WHOLE_REPLICAS

if TYPE_CHECKING:
    from ..quantities.ledger import Ledger


def _rewrite(ledger: Ledger, knobs: Knobs) -> Ledger:
    period, late = knobs["period"], knobs["late"]
    if period == 1 and not late:  # sums that the next step waits for are plain data parallelism
        return ledger
    sent = ledger.problem.state_bytes.weight  # of the sum, which is beside weights and momentum of the round
    phases = [
        replace(
            traffic, replicated=sent, period=period, delay=period * late,
            on_gpu=2 * OUTER_BYTES + sent, moved=(OUTER_PASSES * OUTER_BYTES + sent) / period,
        )
        for traffic in ledger.traffic
    ]  # fmt: skip
    return replace(ledger, traffic=tuple(phases))


TECHNIQUE = Technique(
    name="co2",
    group="less communication",
    title="CO2: replicas sum their weights once per round, while the steps of the next round run",
    paper="Sun et al. 2024, CO2: Efficient Distributed Training with Full Communication-Computation Overlap, arXiv "
          "2401.16265",
    bibtex="""@inproceedings{sun2024co2,
  title = {CO2: Efficient Distributed Training with Full Communication-Computation Overlap},
  author = {Sun, Weigao and Qin, Zhen and Sun, Weixuan and others},
  booktitle = {International Conference on Learning Representations},
  year = {2024}
}""",
    knobs=(
        Knob("period", 1, 1, 10_000, "steps of a round: the fewest whose compute covers the sum"),
        Knob("late", 1, 0, 1, "1: the sum of a round is used at the end of the next; 0: the round waits for it"),
    ),
    neutral={"period": 1, "late": 0},
    needs=(WHOLE_REPLICAS,),
    rewrite=_rewrite,
    caveat="weights are a round old when they are averaged: the loss after as many tokens may be worse, more so with "
           "longer rounds; not in any price",
    chooses=(EXCHANGE,), only_traffic=True,
)  # fmt: skip
