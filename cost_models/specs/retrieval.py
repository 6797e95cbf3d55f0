"""Retrieval: encoders of queries and of texts, whose vectors are compared."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Retrieval:
    """Two encoders of one shape. The vectors of the first token are compared, those of the queries of all ranks with
    those of all texts: ICT (arXiv 1906.00300) and DPR (2004.04906). A sample is a query and its texts, sequences of
    equal length."""

    texts: int = 1  # of a query: one that answers it, and others that do not
    shared: bool = False  # queries and texts have the weights of one encoder
    projection: int = 0  # width of a product of each vector; 0: none
    scales_scores: bool = True  # by the root of the width, before the softmax

    @property
    def sequences(self) -> int:
        """Sequences of a sample."""
        return 1 + self.texts

    @property
    def shares(self) -> tuple[float, ...]:
        """The share of the sequences that each encoder reads."""
        return (1.0,) if self.shared else (1 / self.sequences, self.texts / self.sequences)

    def width(self, hidden: int) -> int:
        """Elements of a vector."""
        return self.projection or hidden
