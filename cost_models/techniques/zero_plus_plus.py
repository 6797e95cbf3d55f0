"""ZeRO++: gathered weights in 8 bits, a second copy of them in every node, gradients in 4 bits by two all-to-alls."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ..quantities.exchanges import Exchanges, Hop
from .base import SHARERS, Columns, Knob, Knobs, Need, Technique

if TYPE_CHECKING:
    from ..problem import Problem
    from ..quantities.ledger import Ledger

PLAIN_BITS = 16  # of a weight or gradient that is sent as it is


def narrow_gather(ledger: Ledger, bits: float) -> Hop:
    """A gather of weights in `bits`; 16 sends them as they are. Decoding reads what came and writes the weight."""
    states = ledger.problem.state_bytes
    if bits == PLAIN_BITS or bits / 8 >= states.gathered:
        return Hop("all_gather")
    return Hop("all_gather", scale=bits / 8 / states.gathered, moved=bits / 8 + states.weight)


def narrow_scatter(ledger: Ledger, bits: float) -> tuple[Hop, ...]:
    """Gradients reduced by an all-to-all within nodes and one between them, in `bits` (16: one plain scatter).

    Encoding reads the gradient and writes it narrow; what a node sent is read again to be summed.
    """
    gradient = ledger.problem.state_bytes.sharded_sum
    if bits == PLAIN_BITS:
        return (Hop("reduce_scatter"),)
    scale, moved = bits / 8 / gradient, gradient + 2 * bits / 8
    return Hop("all_to_all", "neighbours", scale=scale, moved=moved), Hop("all_to_all", "across", scale=scale)


def _sharded(x: Columns, problem: Problem) -> NDArray[np.bool_]:
    # Where FSDP2 keeps states whole through a pipeline, there is nothing to gather per micro-batch.
    alone = (x["pp"] == 1) | (not problem.stack.is_fsdp2)
    return np.asarray((x["zero"] == 3) & alone & (x["dp"] * x["cp"] > 1))


def trains_all(x: Columns, problem: Problem) -> NDArray[np.bool_]:
    return np.full(len(x["zero"]), problem.trains_everything)


GATHERED_WEIGHTS = Need(
    ("pp", "dp", "cp", "zero"), _sharded, "weights that are sharded and gathered for every micro-batch: ZeRO-3"
)
SHARDED_WEIGHTS = (
    GATHERED_WEIGHTS,
    Need(("zero",), trains_all, "training of all weights"),
)


def _rewrite(ledger: Ledger, knobs: Knobs) -> Ledger:
    gather = narrow_gather(ledger, knobs["weight_bits"])
    secondary = int(knobs["secondary"])
    if secondary == 1:
        backward, copied = gather, None
    else:
        backward, copied = replace(gather, among="neighbours", reach=secondary), secondary
    gradients = narrow_scatter(ledger, knobs["gradient_bits"])
    return replace(ledger, exchanges=Exchanges(
        forward=(gather,), backward=(backward,), gradients=gradients, copied_over=copied))  # fmt: skip


TECHNIQUE = Technique(
    name="zero++",
    group="memory",
    title="ZeRO++: weights gathered in 8 bits, once between nodes; gradients scattered in 4",
    paper="Wang et al. 2023, ZeRO++: Extremely Efficient Collective Communication, arXiv 2306.10209",
    bibtex="""@article{wang2023zeropp,
  title = {ZeRO++: Extremely Efficient Collective Communication for Giant Model Training},
  author = {Wang, Guanhua and others},
  journal = {arXiv preprint arXiv:2306.10209},
  year = {2023}
}""",
    knobs=(
        Knob("weight_bits", 8, 4, 16, "bits per weight on the way (qwZ); 16: as it is"),
        Knob("secondary", 0, 0, 4096, "GPUs that hold a second copy of the weights together (hpZ); 0: those of a node; "
             "1: no such copy"),
        Knob("gradient_bits", 4, 4, 16, "bits per gradient on the way (qgZ); 16: as it is, in one scatter"),
    ),
    neutral={"weight_bits": 16, "secondary": 1, "gradient_bits": 16},
    needs=SHARDED_WEIGHTS,
    rewrite=_rewrite,
    caveat="weights and gradients are rounded on the way: the loss after as many tokens may be worse",
    chooses=(SHARERS,), zero=3, order=2,
)  # fmt: skip
