"""Bytes in the backward pass of the embedding and of the vision tower beside it."""

from __future__ import annotations

import numpy as np

from ..arrays import Array
from .activations import Activations
from .element_bytes import activation_bytes
from .operations import TOWER
from .stages import EMBEDDING
from .tables import Tables
from .vision import added_to_rank, ranks


def embedding_workspace(tables: Tables) -> Array:
    """[key] bytes of the gradient of the token table, which is made at once, and of a layer of the tower that is
    differentiated: the gradients of its widest product, and its saved tensors where it is recomputed."""
    problem, trained = tables.problem, tables.parameters["trained_dense"][EMBEDDING]
    w, tower, of_tower = activation_bytes(problem.workload), problem.model.tower, problem.tower_parameters
    if tower is None or of_tower is None:
        return np.asarray(w * trained)
    parts = ranks(tower, np.asarray(tables.keys["tp"], dtype=np.float64), problem.stack.tp_plan)
    added = problem.trains_tower * added_to_rank(tower, parts)
    table = w * (trained - of_tower.trained_sharded / parts - of_tower.trained_replicated - added)
    ops = tables.operations[EMBEDDING]
    if ops.trains == "frozen":
        return np.asarray(table)
    widest = np.max([w * gemm.m * (gemm.n + gemm.k) for gemm in ops.gemms if gemm.has_dgrad], axis=0, initial=0.0)
    saved = sum((saved.num_bytes for saved in ops.saved if saved.tag == TOWER), np.zeros(tables.num_keys))
    return np.asarray(table + widest + saved / tower.layers)


def saved_by_tower(activations: Activations, j: int) -> Array | float:
    """[n] bytes that a tower on the device of profile j saved of the micro-batch whose embedding is differentiated: it
    is the last to let go of them."""
    ledger = activations.ledger
    if ledger.problem.model.tower is None:
        return 0.0
    embedding = ledger.splits.counts.shape[2] + EMBEDDING
    saved = ledger.counts[j].get(embedding, 0.0) * activations.per_kind[embedding]
    return np.asarray(saved / ledger.chunks)
