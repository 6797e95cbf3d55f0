"""Batches drawn from the lengths of documents: the same for the same seed."""

from __future__ import annotations

import numpy as np

from ...cost_models.arrays import Array


def draw(lengths: tuple[tuple[int, float], ...], size: int, num: int, seed: int = 0) -> list[Array]:
    """`num` batches of `size` documents each, tokens, drawn with replacement from (length, share) pairs."""
    values, shares = (np.array(column, dtype=np.float64) for column in zip(*lengths, strict=True))
    drawn = np.random.default_rng(seed).choice(values, size=(num, size), p=shares / shares.sum())
    return list(drawn)
