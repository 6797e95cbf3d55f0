"""The comparison of the vectors of queries and texts over all ranks.

Megatron-LM's biencoder (pretrain_ict and tasks/orqa/supervised of OpenGPTX/Megatron-LM f8d245d0): every rank gathers
the vectors of all ranks, and makes the scores of all queries and all texts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..arrays import Array
from .element_bytes import activation_bytes

if TYPE_CHECKING:
    from .ledger import Ledger

KEPT_SCORES = 3  # matrices of scores at once in the backward pass: after the softmax, its gradient and that before it
# Matrices that element-wise passes read or write: log-softmax, and the gradients of the loss and of log-softmax.
MOVED_FORWARD, MOVED_BACKWARD = 2, 4
MOVED_BY_SCALE = 2  # in either pass


@dataclass(frozen=True, slots=True)
class Comparison:
    """The vectors that a rank compares in a micro-batch."""

    queries: Array  # [n] of all ranks
    texts: Array  # [n] of all ranks
    width: int  # of a vector
    element_bytes: float
    scales: bool

    @classmethod
    def of(cls, ledger: Ledger) -> Comparison | None:
        """The comparison of the layouts of a ledger; None for a model without one."""
        model, x = ledger.problem.model, ledger.layouts
        if model.retrieval is None:
            return None
        queries = x["dp"] * x["micro_batch"] / model.retrieval.sequences
        return cls(queries, queries * model.retrieval.texts, model.retrieval.width(model.hidden),
                   activation_bytes(ledger.problem.workload), model.retrieval.scales_scores)  # fmt: skip

    @property
    def scores(self) -> Array:
        """[n] pairs of a query and a text."""
        return self.queries * self.texts

    @property
    def moved(self) -> tuple[int, int]:
        """Matrices of scores that element-wise passes read or write, forward and backward."""
        scale = MOVED_BY_SCALE * self.scales
        return MOVED_FORWARD + scale, MOVED_BACKWARD + scale

    @property
    def num_bytes(self) -> Array:
        """[n] bytes of scores and of gathered vectors, which are copied into one tensor each."""
        vectors = 2 * (self.queries + self.texts) * self.width
        return self.element_bytes * (KEPT_SCORES * self.scores + vectors)
