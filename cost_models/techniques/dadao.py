"""DADAO: replicas exchange with neighbours on a graph at random moments, beside the gradients of their own."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from .base import EXCHANGE, Knob, Knobs, Technique
from .replicas import WHOLE_REPLICAS

if TYPE_CHECKING:
    from ..quantities.ledger import Ledger

# fp32 each, per parameter, beside the weights: the momentum, and the sums of what was exchanged, with a momentum too.
STATE_BYTES = 3 * 4.0
# An exchange reads the difference and reads and writes the weights and both sums, in fp32.
EXCHANGED_BYTES = 7 * 4.0


def _rewrite(ledger: Ledger, knobs: Knobs) -> Ledger:
    """Exchanges and gradients are processes of their own: a step waits for what does not fit beside it."""
    if knobs["exchanges"] == 0:
        return ledger
    sent, every = ledger.problem.state_bytes.weight, 1 / knobs["exchanges"]
    phases = [
        replace(traffic, replicated=sent, among_copies="p2p", period=every, delay=every, on_gpu=STATE_BYTES,
                moved=EXCHANGED_BYTES / every)
        for traffic in ledger.traffic
    ]  # fmt: skip
    return replace(ledger, traffic=tuple(phases))


TECHNIQUE = Technique(
    name="dadao",
    group="less communication",
    title="DADAO: replicas exchange with neighbours on a graph at random moments, beside their own steps",
    paper="Nabli and Oyallon 2023, DADAO: Decoupled Accelerated Decentralized Asynchronous Optimization, arXiv "
          "2208.00779",
    bibtex="""@inproceedings{nabli2023dadao,
  title = {{DADAO}: Decoupled Accelerated Decentralized Asynchronous Optimization},
  author = {Nabli, Adel and Oyallon, Edouard},
  booktitle = {International Conference on Machine Learning},
  year = {2023}
}""",
    # The default is that of a complete graph of many replicas: sqrt 2 (quantities/gossip.py).
    knobs=(Knob("exchanges", 1.4142, 0, 10_000, "of the busiest replica per step; `what-if --study gossip` has those "
                "of a graph; 0: gradients are summed at every step", whole=False),),
    neutral={"exchanges": 0},
    needs=(WHOLE_REPLICAS,),
    rewrite=_rewrite,
    caveat="its rates are shown for convex losses and plain gradients; weights of replicas never agree",
    chooses=(EXCHANGE,), only_traffic=True,
)  # fmt: skip
