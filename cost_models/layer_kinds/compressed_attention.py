"""Attention to a window of tokens, and before it to entries that stand for many tokens each (DeepSeek-V4).

a heads of width d share one key, which is also their value. Queries come out of a latent of rank r_q; the output of
each of G groups of heads goes through a product of rank r_o, and these through one more. A query sees the W tokens of
its window and, where the layer compresses, entries: one for every `rate` tokens, their mean by a softmax of gates per
channel. Overlapping entries pool the tokens of two such windows, as two series of their own. An index as in
DeepSeek-V3.2, over small entries of its own, may choose `top_k` of them. Source: DeepSeek-V4 report, section 2.3 (CSA:
rate 4, overlapping, chosen; HCA: rate 128, all), as transformers 5.24 has it (DeepseekV4Attention).

Tensor parallelism splits heads and groups; the key, the entries and the index are whole on every rank. Ranks of context
parallelism keep their tokens: they get the keys of a window from the rank before, and gather entries, which are `rate`
times fewer than keys. The index has the loss of DeepSeek-V3.2 (arXiv 2512.02556, equation 4; assumed). No kernel of it
was measured: its time is an estimate.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ..arrays import Array
from ..offload_modules import mask_of_modules
from ..quantities.element_bytes import FP32_BYTES
from ..quantities.matrix import Matrix
from ..quantities.operation_builder import Builder
from ..quantities.operations import BatchedProduct, Core, Exchange, LayerOperations, MemoryTraffic, Saved, tag
from ..specs.model import Mixer
from .base import MixerKind


@dataclass(frozen=True, slots=True, kw_only=True)
class CompressedAttention(Mixer):
    """Sizes of attention with a window and, with a rate, compressed tokens before it."""

    kind: ClassVar[str] = "compressed_attention"
    heads: int  # a, of queries
    head_dim: int  # d
    query_rank: int  # r_q
    output_groups: int  # G
    output_rank: int  # r_o, of each group
    window: int  # W, tokens
    rope_head_dim: int  # the part of a head that turns
    rate: int = 0  # tokens of an entry, 0: the layer has none
    overlapping: bool = False  # whether an entry pools the tokens of two windows of `rate`
    index_heads: int = 0  # 0: a query sees all entries before it
    index_head_dim: int = 0
    top_k: int = 0  # entries that the index chooses

    @property
    def pooled(self) -> int:
        """Width of what a token gives to entries, and of their gates."""
        return self.head_dim * self.series

    @property
    def indexed(self) -> int:
        """The same of the entries of the index."""
        return self.index_head_dim * self.series

    @property
    def series(self) -> int:
        return (1 + self.overlapping) * (self.rate > 0)


def _parameters(mixer: CompressedAttention, hidden: int) -> dict[str, int]:
    width = mixer.heads * mixer.head_dim
    counts = {
        "mixer_query_down": hidden * mixer.query_rank,
        "mixer_query_up": mixer.query_rank * width,
        "mixer_key": hidden * mixer.head_dim,
        "mixer_norm": mixer.query_rank + mixer.head_dim,
        "mixer_sinks": mixer.heads,
        "mixer_out_groups": width * mixer.output_rank,
        "mixer_out": mixer.output_groups * mixer.output_rank * hidden,
    }
    if mixer.rate:  # values and gates; gates of positions, a norm
        counts["mixer_entries"] = 2 * hidden * mixer.pooled
        counts["mixer_entry_norm"] = mixer.rate * mixer.pooled + mixer.head_dim
    if mixer.index_heads:  # the same, queries, a weight per head
        queries = mixer.query_rank * mixer.index_heads * mixer.index_head_dim
        counts["mixer_index"] = hidden * (2 * mixer.indexed + mixer.index_heads) + queries
        counts["mixer_index_norm"] = mixer.rate * mixer.indexed + mixer.index_head_dim
    return counts


def _matrices(mixer: CompressedAttention, hidden: int) -> tuple[Matrix, ...]:
    width, groups = mixer.heads * mixer.head_dim, mixer.output_groups
    entries = Matrix(((mixer.pooled, hidden), (mixer.pooled, hidden)), split=False)
    index = (
        Matrix(((mixer.indexed, hidden), (mixer.indexed, hidden)), split=False),
        Matrix(((mixer.index_heads * mixer.index_head_dim, mixer.query_rank),), split=False),
        Matrix(((mixer.index_heads, hidden),), split=False),
    )
    return (
        Matrix(((mixer.query_rank, hidden),), split=False), Matrix(((width, mixer.query_rank),)),
        Matrix(((mixer.head_dim, hidden),), split=False),
        Matrix(((mixer.output_rank, width // groups),) * groups), Matrix(((hidden, groups * mixer.output_rank),)),
        *((entries,) if mixer.rate else ()), *(index if mixer.index_heads else ()),
    )  # fmt: skip


def _add(builder: Builder, ops: LayerOperations, mixer: CompressedAttention) -> None:
    shard, w, tokens = builder.shard, builder.activation_bytes, builder.shard.tokens
    heads, d = mixer.heads / shard.tp, float(mixer.head_dim)
    context = builder.workload.context_tokens
    entries = _seen(context / mixer.rate, mixer.top_k) if mixer.rate else 0.0
    seen = _seen(context, mixer.window) + entries
    _add_projections(builder, ops, mixer)
    ops.cores.append(Core(2.0 * tokens * heads * 2 * d * seen / 2, seen, mixer.head_dim, tag("attn")))
    sends = mask_of_modules("core_attn")
    # Norms keep what goes in; queries and the key, turned to their positions, are what attention keeps. Its output is
    # turned back: the core keeps what it made, the product after it what it got.
    ops.saved.append(Saved("input of query and key norms", w * tokens * (heads + 1) * d))
    ops.saved.append(Saved("query, shared key", w * tokens * (heads + 1) * d, 0, sends))
    ops.saved.append(Saved("attention output", w * tokens * heads * d, tag("attn"), sends))
    ops.saved.append(Saved("log-sum-exp", FP32_BYTES * tokens * heads, tag("attn")))
    normed = tokens * (mixer.query_rank + (heads + 1) * d)
    ops.traffic.append(builder.norm_traffic("query and key norms", normed))
    turned = w * tokens * (2 * heads + 1) * mixer.rope_head_dim  # queries, key, output
    ops.traffic.append(MemoryTraffic("positions", 2 * turned, 2 * turned))
    if mixer.rate:
        _add_entries(builder, ops, mixer.pooled, d / mixer.rate, "entries")
    if mixer.index_heads:
        _add_index(builder, ops, mixer, entries)
    _add_context(builder, ops, mixer)


def _seen(tokens: float, limit: int) -> float:
    """Twice what a query sees in the mean of `tokens` before it, at most `limit`, 0: all. A limit k of a long context C
    counts 2k - k^2/C."""
    return tokens if limit == 0 or limit >= tokens else 2 * limit - limit**2 / tokens


def _add_projections(builder: Builder, ops: LayerOperations, mixer: CompressedAttention) -> None:
    shard, h, w, tokens = builder.shard, builder.model.hidden, builder.activation_bytes, builder.shard.tokens
    rank, width = float(mixer.query_rank), mixer.heads * mixer.head_dim
    grouped = mixer.output_groups * mixer.output_rank / shard.tp
    builder.add_gemm(ops, "mixer query down", tokens, rank, h)
    builder.add_gemm(ops, "mixer query up", tokens, width / shard.tp, rank)
    builder.add_gemm(ops, "mixer key", tokens, float(mixer.head_dim), h)
    builder.add_gemm(ops, "mixer output groups", tokens, float(mixer.output_rank), width / mixer.output_groups,
                     count=mixer.output_groups / shard.tp)  # fmt: skip
    builder.add_gemm(ops, "mixer out", tokens, h, grouped)
    if mixer.rate:
        builder.add_gemm(ops, "mixer entries", tokens, 2.0 * mixer.pooled, h)
    ops.saved.append(Saved("latent", w * tokens * rank))
    if ops.keeps_input():
        ops.saved.append(Saved("latent norm output", w * tokens * rank))
        ops.saved.append(Saved("attention output behind positions", builder.kept_input * tokens * width / shard.tp))
        ops.saved.append(Saved("mixer output", builder.kept_input * tokens * grouped))
    made = rank + width / shard.tp + mixer.head_dim + 2 * mixer.pooled + grouped
    ops.wgrad_stash += [
        w * tokens * made, builder.kept_input * tokens * (rank + width / shard.tp + grouped), w * h * shard.sp_tokens
    ]  # fmt: skip


def _add_entries(builder: Builder, ops: LayerOperations, width: int, made: float, name: str) -> None:
    """Values and gates of `width` per token are pooled into `made` per token: read, and written; backward read again,
    and their gradients written. In fp32 inside the kernel."""
    tokens, w = builder.shard.tokens, builder.activation_bytes
    ops.traffic.append(MemoryTraffic(f"pooling of {name}", w * tokens * (2 * width + made),
                                     w * tokens * (4 * width + made)))  # fmt: skip
    ops.saved.append(Saved(f"values and gates of {name}", 2 * w * tokens * width))
    ops.saved.append(Saved(name, w * tokens * made))


def _add_index(builder: Builder, ops: LayerOperations, mixer: CompressedAttention, chosen: float) -> None:
    """chosen: twice the entries that a query sees in the mean."""
    shard, h, w, tokens = builder.shard, builder.model.hidden, builder.activation_bytes, builder.shard.tokens
    wide, context = float(mixer.index_heads * mixer.index_head_dim), builder.workload.context_tokens
    entries, rows, ones = context / mixer.rate, tokens / context, np.ones_like(tokens)
    builder.add_gemm(ops, "mixer index query", tokens, wide, float(mixer.query_rank))
    builder.add_gemm(ops, "mixer index entries", tokens, 2.0 * mixer.indexed + mixer.index_heads, h)
    _add_entries(builder, ops, mixer.indexed, mixer.index_head_dim / mixer.rate, "entries of the index")

    def scores(name: str, heads: Array | float, width: int, seen: float, trained: bool) -> None:
        product = BatchedProduct(name, context, seen / 2, width, rows * heads, tag("attn"), has_gradients=trained)
        ops.batched.append(product)

    scores("index scores", mixer.index_heads * ones, mixer.index_head_dim, entries, False)
    if ops.trains == "all":  # the loss: scores of chosen entries again, and what attention gives them
        scores("index scores of the loss", mixer.index_heads * ones, mixer.index_head_dim, chosen, True)
        scores("attention of the loss", mixer.heads / shard.tp, mixer.head_dim, chosen, False)
    # Summed scores in fp32, written, and read by the choice; the chosen entries read for each query by itself.
    written = 2 * FP32_BYTES * tokens * entries / 2
    ops.traffic.append(MemoryTraffic("index scores", written, 0.0 * tokens, tag("attn"), fusable=False))
    read = w * tokens * mixer.head_dim * chosen / 2
    ops.traffic.append(MemoryTraffic("chosen entries", read, 2 * read, tag("attn"), fusable=False))
    ops.saved.append(Saved("index queries, weights", w * tokens * (wide + mixer.index_heads)))
    ops.saved.append(Saved("chosen entries", FP32_BYTES * tokens * min(mixer.top_k, entries), tag("attn")))
    ops.kernels = ops.kernels + 8.0  # pooling, norm, positions of queries and entries, scores, choice, loss (assumed)


def _add_context(builder: Builder, ops: LayerOperations, mixer: CompressedAttention) -> None:
    """Keys of the window come from the rank before, or the tokens that its first entries pool; entries are gathered,
    and their gradients reduced."""
    shard, w = builder.shard, builder.activation_bytes
    halo = mixer.head_dim * min(mixer.window - 1.0, builder.workload.context_tokens)
    halo += (mixer.pooled + mixer.indexed) * mixer.rate * mixer.overlapping  # values and gates of one series of two
    sent = np.where(shard.cp > 1, w * shard.batch * halo, 0.0)
    if sent.any():
        ops.exchanges.append(Exchange("cp", "p2p", sent, shard.cp, shard.tp, 1, 1, tag("attn")))
    if mixer.rate and sent.any():
        width = (mixer.head_dim + mixer.index_head_dim) / mixer.rate
        full = np.where(shard.cp > 1, w * shard.tokens * width * shard.cp, 0.0)
        ops.exchanges.append(Exchange("cp", "all_gather", full, shard.cp, shard.tp, 1, 1, tag("attn")))
        ops.exchanges.append(Exchange("cp", "reduce_scatter", full, shard.cp, shard.tp, 0, 1))


KIND = MixerKind(
    spec=CompressedAttention, parameters=_parameters,
    replicated=("mixer_query_down", "mixer_key", "mixer_norm", "mixer_entries", "mixer_entry_norm", "mixer_index",
                "mixer_index_norm"), matrices=_matrices, add=_add,
    # Ranks of cp keep their tokens whatever the stack says, so only tp splits heads.
    heads=lambda mixer: {"heads of compressed attention": (mixer.heads, True),
                         "output groups": (mixer.output_groups, True)},
    state=None,  # a window and entries that grow with the sequence
    kernels=10.0,  # three products more, three norms, positions of three, the core, pooling (assumed)
)  # fmt: skip
