"""Seconds of messages in an iteration: sums over tp, tokens on their way to experts, and messages between stages."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from ..arrays import Array
from ..rates import collectives
from .constants import ServingConstants
from .pool import ACTIVATION_BYTES, Pool

NO_SECONDS = np.zeros(())
REMEMBERED = 16  # pools whose terms are kept, of which one price has four

_STAGE_TENSORS = 2.0  # hidden states and the residual (vLLM 0.32, LlamaModel.forward)
REDUCTIONS_PER_LAYER = 2.0  # after attention and after the feed-forward block (Megatron-LM, arXiv 1909.08053)


def collectives_s(pool: Pool, constants: ServingConstants, tokens: Array) -> tuple[Array, Array]:
    """[n] seconds of all-reduces over tp in every layer; with attention data parallelism, tokens to their experts and
    back."""
    model = pool.model
    hidden = ACTIVATION_BYTES * model.hidden * tokens
    reduced = np.asarray(sum_s(pool, constants, hidden) * REDUCTIONS_PER_LAYER * model.layers)
    if not pool.grouped:
        return reduced, NO_SECONDS
    copies = np.minimum(model.top_k, pool.stage_gpus)
    sent = hidden * copies / pool.tp * (1.0 - pool.methods.tokens_at_home)
    # A token that may stay where its expert is does not come back; new tokens are gathered once.
    ways = 1.0 if pool.methods.context_everywhere else 2.0
    _, all_to_all = _of_engine(pool, constants)
    exchanged = collectives.call_seconds(all_to_all, sent) * ways * model.moe_layers
    if pool.methods.context_everywhere:
        exchanged = exchanged + collectives.call_seconds(all_to_all, hidden * pool.attention_dp)
    return reduced, np.where(pool.attention_dp > 1, exchanged, 0.0)


def messages_s(pool: Pool, tokens: Array) -> Array:
    """[n] seconds between the stages, one after another. Each tp rank sends its part of a tensor to the next stage,
    whose ranks gather the parts (vLLM 0.32, GroupCoordinator.isend_tensor_dict), both by NCCL."""
    if not pool.staged:
        return NO_SECONDS
    hidden = ACTIVATION_BYTES * pool.model.hidden * tokens
    each = collectives.call_seconds(pool.p2p, hidden / pool.tp) + collectives.call_seconds(pool.all_gather, hidden)
    return np.asarray(_STAGE_TENSORS * (pool.pp - 1.0) * each)


def sum_s(pool: Pool, constants: ServingConstants, num_bytes: Array) -> Array:
    """[n] seconds of an all-reduce over tp. NCCL's, of more bytes, takes no less than the largest by the engine."""
    all_reduce, _ = _of_engine(pool, constants)
    own = collectives.call_seconds(all_reduce, np.minimum(num_bytes, pool.own_sum_bytes))
    by_nccl = num_bytes > pool.own_sum_bytes
    if not by_nccl.any():
        return own
    return np.where(by_nccl, np.maximum(own, collectives.call_seconds(pool.all_reduce, num_bytes)), own)


@lru_cache(maxsize=REMEMBERED)
def _of_engine(pool: Pool, constants: ServingConstants) -> tuple[collectives.Curve, collectives.Curve]:
    """The all-reduce and the all-to-all of an engine's own kernels."""
    all_reduce, all_to_all = (
        collectives.Curve(it.latency_s * constants.latency_share, it.s_per_byte / constants.traffic_share, it.ramp)
        for it in (pool.all_reduce, pool.all_to_all))  # fmt: skip
    return all_reduce, all_to_all
