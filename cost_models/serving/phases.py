"""Prompts and answers on the same GPUs: in the same iterations, or each with a part of the multiprocessors."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ..arrays import Array, Mask
from .pool import Pool


def phases(pool: Pool) -> tuple[Pool, Pool, Mask]:
    """The pools of prompts and of answers, and [n] whether they run beside one another.

    Products run at the share of the multiprocessors that they have. Reads run at their full rate from
    `Methods.reads_share` on. Answers read beside the weights of prompts, which take (w P / B) / (2 P c / F) of the
    bandwidth B, where c tokens of P parameters of w bytes take the products of F FLOP/s.
    """
    share = pool.methods.prompt_share
    disagg = np.full(pool.tp.shape, share > 0)
    if not share:
        return pool, pool, disagg
    taken = pool.weight_bytes * pool.dense_flops_per_s * share / (2.0 * pool.chunk_tokens * pool.memory_bw_bytes_per_s)
    return _with(pool, share, np.ones_like(pool.tp)), _with(pool, 1.0 - share, 1.0 / (1.0 + taken)), disagg


def growth(prefill: Pool, decode: Pool, prompt: Array, tokens: Array) -> Array:
    """[..., n] bytes of the cache of a prompt of so many tokens that a GPU sends or receives, over those of `prompt`
    [n]. The pool with more of them sets both."""
    most, mean = (np.maximum(*(sent_bytes(pool, of) for pool in (prefill, decode))) for of in (tokens, prompt))
    return np.asarray(most / mean)


def sent_bytes(pool: Pool, tokens: Array) -> Array:
    """[n] of the cache of a prompt on a GPU of the fullest stage."""
    return np.asarray(pool.sequence_bytes(tokens) * pool.fullest_share)


def _with(pool: Pool, share: float, left: Array) -> Pool:
    """The pool with a share of the multiprocessors, and the part of the bandwidth that is left."""
    reads = min(share / pool.methods.reads_share, 1.0)
    return replace(
        pool, flops_per_s=pool.flops_per_s * share, dense_flops_per_s=pool.dense_flops_per_s * share,
        attention_flops_per_s=pool.attention_flops_per_s * share,
        memory_bw_bytes_per_s=pool.memory_bw_bytes_per_s * reads * left,
    )  # fmt: skip
