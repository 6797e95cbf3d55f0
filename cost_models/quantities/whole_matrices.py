"""The distribution of whole matrices of a stage over the ranks of a shard group under Muon.

Megatron Core d98e8a64, optimizer/layer_wise_optimizer.py, distributes them as evenly as possible. Here the fullest rank
has a lower bound over all distributions: the mean, or the smallest maximum number of matrices of at least some size.
The bound is exact for matrices of equal size.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ..arrays import Array, Ints
from ..problem import Problem
from .ledger import Ledger
from .matrix import Matrix


def fullest(ledger: Ledger, j: int, cost: Callable[[Matrix], Array]) -> Array:
    """[n] the sum of [n] costs of a matrix over those that the fullest rank of profile j has."""
    total, splits = np.zeros(len(ledger.layouts)), ledger.splits
    whole = not (splits.is_bound or splits.adds_up)
    for expert, groups in ((False, ledger.dense_groups), (True, ledger.expert_groups)):
        matrices = [matrix for matrix in dealt(ledger) if matrix.expert == expert]
        if matrices:
            costs = np.array([cost(matrix) + np.zeros_like(total) for matrix in matrices])
            numbers = np.array([_number(ledger, j, matrix) for matrix in matrices])
            total += of_fullest_rank(costs, numbers, groups.shard, whole=whole)
    return total


def dealt(ledger: Ledger) -> list[Matrix]:
    """Without a layout of its buffers, the layer-wise optimizer deals out what Adam updates, too."""
    by_bytes = ledger.problem.stack.layer_wise_layout
    return [matrix for matrix in ledger.problem.matrices if matrix.orthogonalised or not by_bytes]


def of_rank(ledger: Ledger, matrix: Matrix) -> Array:
    """[n] elements of a matrix that a rank of its tensor-parallel group has."""
    return matrix.elements / parts(ledger, matrix)


def parts(ledger: Ledger, matrix: Matrix) -> Ints:
    """[n] parts that tensor parallelism splits a matrix into."""
    column = ledger.layouts["etp" if matrix.expert else "tp"]
    return column if matrix.split else np.ones_like(column)


def by_adam(ledger: Ledger, j: int) -> Array:
    """[n] parameters of profile j that a rank updates byte by byte, by Adam: those in no matrix that is dealt out."""
    rest = []
    for expert, trained in enumerate(ledger.trained[j]):
        for matrix in dealt(ledger):
            if matrix.expert == bool(expert):
                trained = trained - _number(ledger, j, matrix) * of_rank(ledger, matrix)
        rest.append(np.maximum(trained, 0.0))
    return np.asarray(rest[0] / ledger.dense_groups.shard + rest[1] / ledger.expert_groups.shard)


def optimizer_bytes(ledger: Ledger, j: int) -> Array:
    """[n] bytes of the optimizer's states on the fullest rank of profile j."""
    states = ledger.problem.state_bytes
    if ledger.problem.workload.optimizer != "muon":
        left_out = np.where(ledger.layouts["zero"] == 1, states.split_master, 0.0)
        return np.asarray(ledger.updated[j] * (states.optimizer - left_out))
    each = {True: states.orthogonalised, False: states.optimizer}
    matrices = fullest(ledger, j, lambda matrix: each[matrix.orthogonalised] * of_rank(ledger, matrix))
    return np.asarray(matrices + states.optimizer * by_adam(ledger, j))


def saved_bytes(problem: Problem, totals: Array) -> float:
    """Bytes that the states of [kind] `totals` take less than if Adam updated all parameters."""
    if problem.workload.optimizer != "muon":
        return 0.0
    elements = sum(matrix.elements * float(of_kinds @ totals)
                   for matrix, of_kinds in problem.matrices.items() if matrix.orthogonalised)  # fmt: skip
    return (problem.state_bytes.optimizer - problem.state_bytes.orthogonalised) * elements


def _number(ledger: Ledger, j: int, matrix: Matrix) -> Array:
    """[n] such matrices on a device of profile j."""
    of_kinds = ledger.problem.matrices[matrix]
    number = sum((ledger.counts[j][kind] * of_kinds[kind] for kind in ledger.kinds), np.zeros(len(ledger.layouts)))
    return np.asarray(number / ledger.layouts["ep"] if matrix.expert else number)


def of_fullest_rank(costs: Array, numbers: Array, ranks: Ints, *, whole: bool) -> Array:
    """[n] of `numbers` of matrices [matrix, n] of these costs. Not `whole`: as if they could be cut."""
    mean = (costs * numbers).sum(axis=0) / ranks
    if not whole:
        return np.asarray(mean)
    order = np.argsort(-costs, axis=0, kind="stable")
    costs, numbers = (np.take_along_axis(rows, order, axis=0) for rows in (costs, numbers))
    # One rank has at least the rounded-up share of all matrices that cost so much or more.
    at_least = np.ceil(np.cumsum(numbers, axis=0) / ranks - 1e-9) * costs
    return np.asarray(np.maximum(mean, at_least.max(axis=0)))
