"""Vectors that each layer gets of a token beside its hidden state."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerInputs:
    """Embeddings of each layer (Gemma 3n): a second token table has a vector for every layer, and a product of the
    first embedding adds another (transformers 5.24, Gemma3nTextModel)."""

    rows: int  # of the table
    width: int  # of the vector of a layer
