"""Needs of techniques that hide messages of tensor parallelism or of experts, and the software that does."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from .base import Columns, Knobs, Need, PoolNeed

if TYPE_CHECKING:
    from ..problem import Problem
    from ..serving.pool import Pool
    from ..specs.stack import StackSpec


def _tensor_parallel(x: Columns, problem: Problem) -> NDArray[np.bool_]:
    return np.asarray(x["tp"] > 1)


def _within_node(x: Columns, problem: Problem) -> NDArray[np.bool_]:
    return np.asarray((x["tp"] > 1) & (x["tp"] <= problem.domain))


def _expert_parallel(x: Columns, problem: Problem) -> NDArray[np.bool_]:
    return np.asarray(x["ep"] > 1)


def _experts_within_node(x: Columns, problem: Problem) -> NDArray[np.bool_]:
    return np.asarray((x["ep"] > 1) & (x["ep"] * x["etp"] <= problem.domain))


SPLITS_LAYERS = Need(("tp",), _tensor_parallel, "tensor parallelism")
SPLITS_LAYERS_WITHIN_NODE = Need(("tp",), _within_node, "tensor parallelism over GPUs that the fastest link joins")
SENDS_TOKENS = Need(("ep",), _expert_parallel, "expert parallelism")
SENDS_TOKENS_WITHIN_NODE = Need(("ep", "etp"), _experts_within_node,
                                "expert parallelism over GPUs that the fastest link joins")  # fmt: skip


def _sums(pool: Pool, knobs: Knobs) -> NDArray[np.bool_]:
    return np.asarray(pool.tp > 1)


def _sums_in_a_node(pool: Pool, knobs: Knobs) -> NDArray[np.bool_]:
    return np.asarray((pool.tp > 1) & (pool.in_node > 0))


def _sends_tokens(pool: Pool, knobs: Knobs) -> NDArray[np.bool_]:
    return np.asarray((pool.attention_dp > 1) & (pool.model.moe_layers > 0))


SERVES_IN_PARTS = PoolNeed(_sums, "tensor parallelism")
SERVES_IN_A_NODE = PoolNeed(_sums_in_a_node, "tensor parallelism within a node")
SERVES_EXPERTS = PoolNeed(_sends_tokens, "experts, and attention data parallelism, which sends tokens to them")


def hiding_sums(stack: StackSpec, share: float) -> StackSpec:
    """Software that hides at least this share of the messages of tensor parallelism."""
    return replace(stack, tp_overlap=max(stack.tp_overlap, share),
                   sequence_parallel_overlap=max(stack.sequence_parallel_overlap, share))  # fmt: skip


def hiding_tokens(stack: StackSpec, share: float) -> StackSpec:
    """Software that hides at least this share of the messages of experts."""
    return replace(stack, ep_overlap=max(stack.ep_overlap, share),
                   ep_overlap_beside=max(stack.ep_overlap_beside, share))  # fmt: skip
