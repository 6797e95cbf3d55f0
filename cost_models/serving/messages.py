"""Seconds of messages in an iteration: sums over tp, tokens on their way to experts, and messages between stages."""

from __future__ import annotations

import numpy as np

from ..arrays import Array
from ..rates import collectives
from .constants import ServingConstants
from .pool import ACTIVATION_BYTES, Pool

_STAGE_TENSORS = 2.0  # hidden states and the residual (vLLM 0.32, LlamaModel.forward)
REDUCTIONS_PER_LAYER = 2.0  # after attention and after the feed-forward block (Megatron-LM, arXiv 1909.08053)


def collectives_s(pool: Pool, constants: ServingConstants, tokens: Array) -> tuple[Array, Array]:
    """[n] seconds of all-reduces over tp in every layer; with attention data parallelism, tokens to their experts and
    back."""
    model = pool.model
    hidden = ACTIVATION_BYTES * model.hidden * tokens
    reduced = np.asarray(sum_s(pool, constants, hidden) * REDUCTIONS_PER_LAYER * model.layers)
    if not (pool.attention_dp > 1).any():
        return reduced, np.zeros_like(reduced)
    copies = np.minimum(model.top_k, pool.stage_gpus)
    sent = hidden * copies / pool.tp * (1.0 - pool.methods.tokens_at_home)
    # A token that may stay where its expert is does not come back; new tokens are gathered once.
    ways = 1.0 if pool.methods.context_everywhere else 2.0
    exchanged = _seconds(pool.all_to_all, constants, sent) * ways * model.moe_layers
    if pool.methods.context_everywhere:
        exchanged = exchanged + _seconds(pool.all_to_all, constants, hidden * pool.attention_dp)
    return reduced, np.where(pool.attention_dp > 1, exchanged, 0.0)


def messages_s(pool: Pool, tokens: Array) -> Array:
    """[n] seconds between the stages, one after another. Each tp rank sends its part of a tensor to the next stage,
    whose ranks gather the parts (vLLM 0.32, GroupCoordinator.isend_tensor_dict), both by NCCL."""
    if not (pool.pp > 1).any():
        return np.zeros_like(tokens)
    hidden = ACTIVATION_BYTES * pool.model.hidden * tokens
    each = collectives.seconds(pool.p2p, hidden / pool.tp) + collectives.seconds(pool.all_gather, hidden)
    return np.asarray(_STAGE_TENSORS * (pool.pp - 1.0) * each)


def sum_s(pool: Pool, constants: ServingConstants, num_bytes: Array) -> Array:
    """[n] seconds of an all-reduce over tp. NCCL's, of more bytes, takes no less than the largest by the engine."""
    own = _seconds(pool.all_reduce, constants, np.minimum(num_bytes, pool.own_sum_bytes))
    by_nccl = num_bytes > pool.own_sum_bytes
    if not by_nccl.any():
        return own
    return np.where(by_nccl, np.maximum(own, collectives.seconds(pool.all_reduce, num_bytes)), own)


def _seconds(curve: collectives.Curve, constants: ServingConstants, num_bytes: Array) -> Array:
    scaled = collectives.Curve(
        curve.latency_s * constants.latency_share, curve.s_per_byte / constants.traffic_share, curve.ramp
    )
    return collectives.seconds(scaled, num_bytes)
