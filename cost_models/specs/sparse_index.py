"""The index of an attention that chooses the tokens it sees."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class SparseIndex:
    """The tokens that latent attention sees: the best by scores of small heads of their own (DeepSeek-V3.2, arXiv
    2512.02556, section 2.1)."""

    heads: int
    head_dim: int
    top_k: int  # tokens of a query
    shared: bool = False  # the layer takes the choice of the layer before, and has no index (GLM-5.2)
