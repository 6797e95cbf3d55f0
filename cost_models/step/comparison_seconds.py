"""Seconds of comparing the vectors of all ranks: the loss of retrieval (quantities/comparison.py)."""

from __future__ import annotations

import numpy as np

from ..arrays import Array
from ..quantities.comparison import Comparison
from ..quantities.ledger import Ledger
from ..quantities.operations import Gemm
from ..rates import collectives
from ..rates.products import products
from ..rates.rates import Rates


def comparisons_s(ledger: Ledger, rates: Rates) -> Array:
    """[n] seconds of a step: gathers of both kinds of vectors, the product of all of them and its two gradients, and
    the passes over the scores. Nothing hides them."""
    compared = Comparison.of(ledger)
    if compared is None:
        return np.zeros(len(ledger.layouts))
    width, one = np.full(len(ledger.layouts), float(compared.width)), np.ones(len(ledger.layouts))
    gemm = Gemm("scores", compared.queries, compared.texts, width, one, wide=True)
    product_s = sum(next(iter(products([gemm], rates))))
    dp = ledger.layouts["dp"]
    curve = collectives.curve_of_rows(rates.collectives, rates.levels_of("shard"), "all_gather", dp, np.ones_like(dp))
    gathered = (rows * compared.width * compared.element_bytes for rows in (compared.queries, compared.texts))
    gathers_s = sum(collectives.seconds(curve, num_bytes) for num_bytes in gathered)
    into, back = rates.bandwidth("loss")
    forward, backward = compared.moved
    passes_s = compared.element_bytes * compared.scores * (forward / into + backward / back)
    return np.asarray(ledger.m * (product_s + gathers_s + passes_s))
