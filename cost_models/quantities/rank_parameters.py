"""Parameters of a rank before ZeRO, per kind and shard key, and the bytes of their weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ..arrays import Array
from . import vision
from .shards import Shard
from .stages import EMBEDDING

if TYPE_CHECKING:
    from ..problem import Problem


def of_rank(problem: Problem, keys: Mapping[str, NDArray[np.int64]]) -> dict[str, Array]:
    """[kind, key] parameters per rank: dense, experts, the trained ones of each, of them what tp does not split; and
    their weights' bytes: by themselves, of the quantised copies, and as they are gathered."""
    tp, expert_ranks = (np.asarray(x, dtype=np.float64) for x in (keys["tp"], keys["ep"] * keys["etp"]))
    rows, states = problem.parameters, problem.state_bytes
    num_layers = problem.num_kinds
    parts = [tp] * num_layers + _edge_parts(problem, keys, tp)
    dense = np.array([p.sharded / n + p.replicated for p, n in zip(rows, parts, strict=True)])
    trained = np.array([p.trained_sharded / n + p.trained_replicated for p, n in zip(rows, parts, strict=True)])
    experts = np.array([p.experts / expert_ranks for p in rows])
    if problem.model.tower is not None:
        added = vision.added_to_rank(problem.model.tower, vision.ranks(problem.model.tower, tp, problem.stack.tp_plan))
        dense[EMBEDDING] += added
        trained[EMBEDDING] += added * problem.trains_tower
    # Quantisation of a frozen base and copies for products concern the matrices of layers, not embedding and head.
    gathered = np.array([states.frozen_weight if i < num_layers and p.frozen else states.weight
                         for i, p in enumerate(rows)])[:, None]  # fmt: skip
    copies = np.array([states.quantised_copy if i < num_layers else 0.0 for i in range(len(rows))])[:, None]
    at_rest = gathered
    gathered = np.where(np.arange(len(rows))[:, None] < num_layers, np.minimum(gathered, states.gathered), gathered)
    return {
        "dense": dense,
        "experts": experts,
        "trained_dense": trained,
        "trained_experts": np.array([p.trained_experts / expert_ranks for p in rows]),
        "trained_whole": np.array([np.full(len(tp), p.trained_replicated) for p in rows]),
        "dense_bytes": dense * at_rest,
        "experts_bytes": experts * at_rest,
        "dense_copies_bytes": dense * copies,
        "experts_copies_bytes": experts * copies,
        "dense_gathered_bytes": dense * gathered,
        "experts_gathered_bytes": experts * gathered,
    }


def _edge_parts(problem: Problem, keys: Mapping[str, NDArray[np.int64]], tp: Array) -> list[Array]:
    """Parts that tensor parallelism splits the edges of stages.py into."""
    table = np.ones_like(tp) if problem.stack.tp_plan == "by-projection" else tp
    head = Shard.of(keys, problem.model, problem.workload).head_parts(problem.stack)
    return [table, head, tp, table]
