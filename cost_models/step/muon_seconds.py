"""Seconds of Muon's update: Newton-Schulz steps on the matrices of a rank, Adam on everything else."""

from __future__ import annotations

import numpy as np

from ..arrays import Array
from ..quantities.ledger import Ledger
from ..quantities.matrix import STEPS, Matrix
from ..quantities.whole_matrices import by_adam, fullest, of_rank, parts
from ..rates import collectives
from ..rates.rates import Rates
from ..rates.surfaces import gemm_seconds
from .data_parallel import group_curve

# Bytes per element beside the products, of newton_schulz in Emerging-Optimizers fd772926 and what scales its result.
# The fp32 moment is read for its norm (4), divided by it (4 + 4), cast to bf16 (4 + 2), back (2 + 4), scaled (4 + 4).
PASS_BYTES = 32.0
_MOMENT_BYTES = 4.0  # as ranks of a tensor-parallel group gather it


def update_s(ledger: Ledger, rates: Rates) -> Array:
    """[n] seconds on the stage that takes longest. Muon is planned with the default of Megatron Core's muon_tp_mode,
    `duplicated`: every rank of a tensor-parallel group gathers a matrix and orthogonalises all of it."""
    states, extra = ledger.problem.state_bytes, ledger.problem.stack.optimizer_extra_bytes
    per_s = 1.0 / rates.bandwidth("update")[0]
    seconds = {matrix: _orthogonalised_s(ledger, rates, matrix) for matrix in ledger.problem.matrices}

    def matrix_s(matrix: Matrix) -> Array:
        moved = states.update_bytes(states.orthogonalised if matrix.orthogonalised else states.optimizer) + extra
        return np.asarray(seconds[matrix] + moved * of_rank(ledger, matrix) * per_s)

    adam_bytes = states.update_bytes(states.optimizer) + extra
    of_profiles = [fullest(ledger, j, matrix_s) + adam_bytes * by_adam(ledger, j) * per_s
                   for j in range(ledger.num_profiles)]  # fmt: skip
    return np.asarray(np.max(of_profiles, axis=0))


def _orthogonalised_s(ledger: Ledger, rates: Rates, matrix: Matrix) -> Array:
    """[n] seconds from the moment of a matrix to its update, by products in bf16 (muon_fp32_matmul_prec medium)."""
    if not matrix.orthogonalised:
        return np.zeros(len(ledger.layouts))
    products = (gemm_seconds(rates.wide_gemm, *product, rates.wide_element_bytes) for product in matrix.products)
    passes = PASS_BYTES * matrix.elements / rates.memory_bw_bytes_per_s
    ranks = parts(ledger, matrix)
    curve = group_curve(rates, "tp", "all_gather", ranks, np.ones_like(ranks))
    gathers = (collectives.seconds(curve, _MOMENT_BYTES * rows * columns) for rows, columns in matrix.parts)
    return np.asarray(STEPS * sum(products) + passes + sum(gathers))
