"""Operations of attention that sees chosen tokens: an index scores all tokens before, the core takes the best.

Source: DeepSeek-V3.2, arXiv 2512.02556, section 2.1: the index has H_I heads of width d_I over one key per token; a
query attends to its k best tokens. The core runs on the latents of keys and values, which all heads share (its figure
of the multi-query mode; Megatron Core d98e8a64, experimental_attention_variant/absorbed_mla.py): a head is as wide as a
latent, and the up projections act on queries and on the output. The index is whole on every rank of tensor parallelism,
and ranks of context parallelism gather keys (dsa.py there). Its scores of all tokens have no gradient; those of the
chosen ones have one, by the loss that compares them with attention (equation 4). No kernel of it was measured: its
time is an estimate.

The layers of transformers have other operations (`StackSpec.masks_chosen_tokens`): `_add_masked_attention`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from ..arrays import Array
from ..quantities.element_bytes import FP32_BYTES
from ..quantities.matrix import Matrix
from ..quantities.operation_builder import Builder
from ..quantities.operations import BatchedProduct, Core, LayerOperations, MemoryTraffic, Saved, tag
from ..specs.model import Attention
from ..specs.sparse_index import SparseIndex
from . import latent_attention
from .attention import add_attention, add_gathered_keys, add_head_norms, add_kept_output, add_rotary_positions


def index_parameters(attention: Attention, index: SparseIndex, hidden: int) -> dict[str, int]:
    """Queries of all heads, one key with a norm and its bias, a weight per head (DeepSeek-V3.2, arXiv 2512.02556)."""
    return {
        "index_q": (attention.q_lora_rank or hidden) * index.heads * index.head_dim,
        "index_k": hidden * index.head_dim,
        "index_norm": 2 * index.head_dim,
        "index_weights": hidden * index.heads,
    }


def index_matrices(attention: Attention, index: SparseIndex, hidden: int) -> Iterator[Matrix]:
    """The matrices of the index that Muon orthogonalises."""
    for rows, columns in ((index.heads * index.head_dim, attention.q_lora_rank or hidden), (index.head_dim, hidden),
                          (index.heads, hidden)):  # fmt: skip
        yield Matrix(((rows, columns),), split=False)


def add_sparse_attention(builder: Builder, ops: LayerOperations, attention: Attention, index: SparseIndex) -> None:
    """Latent attention to the tokens that `index` chooses."""
    if builder.stack.masks_chosen_tokens:
        _add_masked_attention(builder, ops, attention, index)
        return
    shard, h, w = builder.shard, builder.model.hidden, builder.activation_bytes
    tokens, a, dv = shard.tokens, attention.heads / shard.tp, attention.value_head_dim
    values = float(attention.kv_lora_rank or 0)
    keys = values + attention.rope_head_dim  # of all heads: a value is the part of its key without positions
    latent_attention.add_projections(builder, ops, attention)
    builder.add_gemm(ops, "attention output", tokens, h, a * dv)
    ops.wgrad_stash += [builder.kept_input * tokens * a * dv, w * h * shard.sp_tokens]
    seen = _seen(builder, index)
    ops.cores.append(Core(2.0 * tokens * a * (keys + values) * seen / 2, seen, int(keys), tag("attn")))
    ops.saved.append(Saved("query, shared key", w * tokens * (a * keys + keys), tag("mla")))
    ops.saved.append(Saved("output in latents", w * tokens * a * values, tag("attn")))
    ops.saved.append(Saved("log-sum-exp", FP32_BYTES * tokens * a, tag("attn")))
    add_kept_output(builder, ops, tokens * a * dv)
    add_head_norms(builder, ops, attention, tokens * (a + 1) * keys)
    add_rotary_positions(builder, ops, attention, tokens * (a + 1) * attention.rope_head_dim)
    # The latents of chosen tokens are read for each query by itself, once for all of its heads.
    read = w * tokens * keys * seen / 2
    ops.traffic.append(MemoryTraffic("keys of chosen tokens", read, 2 * read, tag("attn"), fusable=False))
    if not index.shared:
        _add_index(builder, ops, attention, index, seen)
    add_gathered_keys(builder, ops, keys + (0.0 if index.shared else float(index.head_dim)))


def _seen(builder: Builder, index: SparseIndex) -> float:
    """Twice the tokens that a query sees in the mean: all before it, at most top_k (as within a window of top_k)."""
    full = builder.workload.context_tokens
    return full if index.top_k >= full else 2 * index.top_k - index.top_k**2 / full


def _add_index(
    builder: Builder, ops: LayerOperations, attention: Attention, index: SparseIndex, seen: float
) -> None:
    shard, w, full = builder.shard, builder.activation_bytes, builder.workload.context_tokens
    tokens, wide = shard.tokens, float(index.heads * index.head_dim)
    builder.add_gemm(ops, "index query", tokens, wide, attention.q_lora_rank or builder.model.hidden)
    builder.add_gemm(ops, "index key and weights", tokens, float(index.head_dim + index.heads), builder.model.hidden)
    rows = tokens / full  # sequences, in parts of a rank

    def scores(name: str, heads: Array | float, width: float, context: float, trained: bool) -> None:
        product = BatchedProduct(name, full, context / 2, width, rows * heads, tag("attn"), has_gradients=trained)
        ops.batched.append(product)

    ones = np.ones_like(tokens)
    scores("index scores", index.heads * ones, index.head_dim, full, False)
    if ops.trains == "all":  # the loss: scores of chosen tokens again, and what attention gives them
        keys = float((attention.kv_lora_rank or 0) + attention.rope_head_dim)
        scores("index scores of the loss", index.heads * ones, index.head_dim, seen, True)
        scores("attention of the loss", attention.heads / shard.tp, keys, seen, False)
    # Summed scores in fp32, written, and read by the choice.
    summed = 2 * FP32_BYTES * tokens * full / 2
    ops.traffic.append(MemoryTraffic("index scores", summed, 0.0 * tokens, tag("attn"), False))
    ops.saved.append(Saved("index queries, keys, weights", w * tokens * (wide + index.head_dim + index.heads)))
    ops.saved.append(Saved("chosen tokens", FP32_BYTES * tokens * min(index.top_k, full), tag("attn")))
    ops.kernels = ops.kernels + 6.0  # norm and positions of index keys and queries, scores, choice, loss (dsa.py)


def _add_masked_attention(builder: Builder, ops: LayerOperations, attention: Attention, index: SparseIndex) -> None:
    """Attention to all tokens behind a mask of the chosen ones (transformers 5.24, glm_moe_dsa and deepseek_v32).

    A kernel with a mask skips no half of the square. The mask of a layer is one of booleans for all heads, and
    scaled_dot_product_attention keeps it in the dtype of queries (ATen/native/transformers/attention.cpp,
    convert_boolean_attn_mask). Bytes per pair of tokens: ones 1, inverted 2, joined with the causal mask 3, converted
    1 + w, read by the kernel w; backward read w. No kernel with a mask was measured: each half has the price of causal
    attention.
    """
    add_attention(builder, ops, attention)
    pairs, w = builder.shard.tokens * builder.workload.context_tokens, builder.activation_bytes
    if builder.stack.attention != "unfused":  # which computes whole squares in any case
        ops.cores.append(replace(ops.cores[-1]))
        ops.saved.append(Saved("mask of chosen tokens", w * pairs, tag("attn")))
    ops.traffic.append(MemoryTraffic("mask of chosen tokens", (7 + 2 * w) * pairs, w * pairs, tag("attn"), False))
    if not index.shared:
        _add_index_in_steps(builder, ops, attention, index, pairs)


def _add_index_in_steps(
    builder: Builder, ops: LayerOperations, attention: Attention, index: SparseIndex, pairs: Array
) -> None:
    """The index without gradients, step by step, in fp32 from its scores on (the same, GlmMoeDsaIndexer).

    Bytes per pair and head: scaled 8, ReLU 8, read by the weighted sum 4; per pair: the sum 4, the causal mask 9, the
    choice 4. The scores of all heads are there twice at once, before and after a step.
    """
    tokens, full = builder.shard.tokens, builder.workload.context_tokens
    heads, wide = float(index.heads), float(index.heads * index.head_dim)
    rows, attn = tokens / full, tag("attn")  # sequences, in parts of a rank
    ops.batched += [
        BatchedProduct("index query", full, wide, attention.q_lora_rank or builder.model.hidden, rows, attn,
                       has_gradients=False),
        BatchedProduct("index key and weights", full, index.head_dim + heads, builder.model.hidden, rows, attn,
                       has_gradients=False),
        BatchedProduct("index scores", full, full, index.head_dim, rows * heads, attn, has_gradients=False, fp32=True),
        BatchedProduct("weighted index scores", 1.0, full, heads, tokens, attn, has_gradients=False, fp32=True),
    ]  # fmt: skip
    ops.traffic.append(MemoryTraffic("index scores", (20 * heads + 17) * pairs, 0.0 * pairs, tag("attn"), False))
    ops.steps = 2 * FP32_BYTES * heads * pairs
    ops.kernels = ops.kernels + 20.0  # norm, positions, casts, products, scale, ReLU, masks, choice, scatter (assumed)
