"""NoLoCo: replicas train apart and average with one random other replica; no collective joins all of them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from .base import EXCHANGE, Knob, Knobs, Technique
from .replicas import OUTER_BYTES, OUTER_PASSES, WHOLE_REPLICAS

if TYPE_CHECKING:
    from ..quantities.ledger import Ledger


def _rewrite(ledger: Ledger, knobs: Knobs) -> Ledger:
    period = knobs["period"]
    if period == 1:  # replicas that exchange at every step are plain data parallelism
        return ledger
    # A pair swaps its outer parameters and what it changed since the last exchange.
    sent = 2 * ledger.problem.state_bytes.weight
    phases = [
        replace(
            traffic, replicated=sent, among_copies="p2p", period=period, on_gpu=2 * OUTER_BYTES,
            moved=(OUTER_PASSES * OUTER_BYTES + sent) / period,
        )
        for traffic in ledger.traffic
    ]  # fmt: skip
    return replace(ledger, traffic=tuple(phases))


TECHNIQUE = Technique(
    name="noloco",
    group="less communication",
    title="NoLoCo: replicas average with one random other replica every few dozen steps",
    paper="Kolehmainen et al. 2025, NoLoCo: No-all-reduce Low Communication Training Method for Large Models, arXiv "
          "2506.10911",
    bibtex="""@article{kolehmainen2025noloco,
  title = {NoLoCo: No-all-reduce Low Communication Training Method for Large Models},
  author = {Kolehmainen, Jari and Blagoev, Nikolay and Donaghy, John and others},
  journal = {arXiv preprint arXiv:2506.10911},
  year = {2025}
}""",
    knobs=(Knob("period", 50, 1, 10_000, "steps between two exchanges; 1: gradients are summed at every step"),),
    neutral={"period": 1},
    needs=(WHOLE_REPLICAS,),
    rewrite=_rewrite,
    caveat="weights of replicas never agree, and convergence was shown for 125M to 6.8B parameters: not in any price",
    chooses=(EXCHANGE,), only_traffic=True,
)  # fmt: skip
