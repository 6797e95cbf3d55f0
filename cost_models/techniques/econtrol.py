"""EControl: replicas send the largest elements of their gradients and keep the rest as a controlled error."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from .base import EXCHANGE, Knob, Knobs, Technique
from .one_bit_adam import PLAIN_REPLICAS

if TYPE_CHECKING:
    from ..quantities.ledger import Ledger

INDEX_BYTES = 4.0  # of the place of an element that is sent
STATE_BYTES = 8.0  # fp32 each, per parameter: the error, and the estimate of the gradient that controls it
# Compression moves per parameter, in fp32: error and estimate read and written; the gradient read.
COMPRESSION_BYTES = 20.0


def _rewrite(ledger: Ledger, knobs: Knobs) -> Ledger:
    share = knobs["share"]
    if share == 1:
        return ledger
    sent = share * (ledger.problem.state_bytes.gradient + INDEX_BYTES)
    phases = [replace(traffic, replicated=sent, among_copies="all_gather", on_gpu=STATE_BYTES, moved=COMPRESSION_BYTES)
              for traffic in ledger.traffic]  # fmt: skip
    return replace(ledger, traffic=tuple(phases))


TECHNIQUE = Technique(
    name="econtrol",
    group="less communication",
    title="EControl: replicas send the largest 1 % of their gradients; feedback corrects the error",
    paper="Gao et al. 2024, EControl: Fast Distributed Optimization with Compression and Error Control, arXiv "
          "2311.05645",
    bibtex="""@inproceedings{gao2024econtrol,
  title = {EControl: Fast Distributed Optimization with Compression and Error Control},
  author = {Gao, Yuan and Islamov, Rustem and Stich, Sebastian U.},
  booktitle = {International Conference on Learning Representations},
  year = {2024}
}""",
    knobs=(Knob("share", 0.01, 1e-5, 1, "of the elements of a gradient that are sent", whole=False),),
    neutral={"share": 1},
    needs=(PLAIN_REPLICAS,),
    rewrite=_rewrite,
    caveat="its theory is of gradient descent, not of Adam; every replica gets the elements of all others, so that "
           "bytes grow with their number",
    chooses=(EXCHANGE,), only_traffic=True, zero=0,
)  # fmt: skip
