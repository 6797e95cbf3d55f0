"""Linear recurrences computed in chunks: products inside a chunk, and a state that goes from chunk to chunk.

A head keeps a state of key_dim x value_dim. Tokens of a chunk of Q see one another as in attention, through scores of
Q x Q, and see the chunks before through the state: S' = decay S + K' V, out = (Q K' . mask) V + Q S. The forms are
those of Mamba-2 (arXiv 2405.21060, section 6; queries C, keys B, values x), of gated linear attention (arXiv
2312.06635, section 4) and, with `delta`, of DeltaNet (arXiv 2406.06484, section 3.2; 2412.06464).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..arrays import Array
from ..quantities.element_bytes import FP32_BYTES
from ..quantities.exchanges import Op
from ..quantities.operation_builder import Builder
from ..quantities.operations import BatchedProduct, Exchange, LayerOperations, MemoryTraffic, Saved, tag

# Bytes per element that a kernel of one pass moves: forward; backward, with its input made again.
_PASS, _PASS_BACK = 2.0, 3.0
_BLOCK = 1024  # tokens that steps of torch take at once (runtime/model/chunked_scan.py)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scan:
    """Sizes of a chunked scan on one rank."""

    heads: Array  # [key] that have a state
    key_heads: Array  # [key] distinct heads of queries and keys: scores are made once for each
    key_dim: float  # of queries and keys: N of Mamba-2
    value_dim: float  # of values: P of Mamba-2
    chunk: float  # tokens: Q
    delta: bool = False  # whether a token first takes from the state what its key gives (delta rule)

    @property
    def passed_on(self) -> Array:
        """[key] elements of a sequence that the tokens behind it need: the state; the delta rule also changes the state
        before by a matrix of key_dim x key_dim per head."""
        return self.heads * self.key_dim * (self.value_dim + (self.key_dim if self.delta else 0.0))


def add_scan(builder: Builder, ops: LayerOperations, scan: Scan) -> None:
    """The products of the scan, what its kernels move beside them, and the state on its way.

    The kernels keep their inputs and make scores and states again in the backward pass (mamba_ssm e9594ce,
    ops/triton/ssd_combined.py, _mamba_chunk_scan_combined_bwd; flash-linear-attention, ops/gated_delta_rule/chunk.py).
    Steps that run again (`StackSpec.recomputes_scans`) do so twice: all for their states, then block by block.
    """
    tokens, q = builder.shard.tokens, scan.chunk
    chunks = tokens / q  # a last chunk that is not full is computed as its share
    each, states = chunks * scan.heads, chunks * scan.heads * scan.key_dim * scan.value_dim
    attn, again = scan_tag(builder), builder.stack.recomputes_scans

    def product(name: str, m: float, n: float, k: float, batch: Array, remade: float = 0.0) -> None:
        ops.batched.append(BatchedProduct(name, m, n, k, batch, attn, 2.0 if again else remade))

    product("scores of chunks", q, q, scan.key_dim, chunks * scan.key_heads, remade=1.0)
    product("values by scores", q, scan.value_dim, q, each)
    product("states of chunks", scan.key_dim, scan.value_dim, q, each, remade=1.0)
    product("states read", q, scan.value_dim, scan.key_dim, each)
    if scan.delta:
        # (I + A)^-1 times values and times keys, A of products of keys; and what the state takes off the values.
        product("keys by keys", q, q, scan.key_dim, each, remade=1.0)
        product("transformed values", q, scan.value_dim, q, each, remade=1.0)
        product("transformed keys", q, scan.key_dim, q, each, remade=1.0)
        product("states subtracted", q, scan.value_dim, scan.key_dim, each, remade=1.0)
    # States of all chunks in fp32: read and written as each takes that of the chunk before; backward for both again.
    passed = 2 * FP32_BYTES * states
    ops.traffic.append(MemoryTraffic("state passing", passed, 2 * passed, attn, fusable=False))
    # Decays of every head and token in fp32: step read, cumulated, and read in three kernels.
    decays = 5 * FP32_BYTES * tokens * scan.heads
    ops.traffic.append(MemoryTraffic("decays", decays, 2 * decays, attn, fusable=False))


def add_steps(builder: Builder, ops: LayerOperations, scan: Scan, projected: Array, convolved: Array) -> None:
    """Bytes at once of steps that run again (`StackSpec.recomputes_scans`), where the backward pass of a block of
    tokens begins: fp32 tensors of runtime/model/chunked_scan.py, one factor for each, and the gradient of what is
    projected. projected, convolved: [key] elements per token of a rank.
    """
    if not builder.stack.recomputes_scans:
        return
    shard, seq_len, q = builder.shard, builder.workload.seq_len, scan.chunk
    heads, keys = scan.heads, scan.key_heads * scan.key_dim
    # Convolution: input, output before its activation and behind it. Scores: decays between tokens, products of keys,
    # both together and their gradient; with the delta rule also overlaps of keys and the inverse of each chunk.
    scores = (8.0 if scan.delta else 4.0) * heads * q
    of_keys = 2.0 * keys + (6.0 if scan.delta else 4.0) * heads * scan.key_dim
    of_values = (8.0 if scan.delta else 7.0) * heads * scan.value_dim
    states = 2.0 * heads * scan.key_dim * scan.value_dim / q
    per_token = FP32_BYTES * (3.0 * convolved + scores + of_keys + of_values + states)
    tokens = shard.batch * min(seq_len, max(_BLOCK // int(q), 1) * int(q)) / shard.cp
    ops.steps = per_token * tokens + builder.activation_bytes * shard.tokens * projected


def scan_tag(builder: Builder) -> int:
    """Recompute modules that run the scan and what is beside it again; none where it runs again in any case."""
    return 0 if builder.stack.recomputes_scans else tag("attn")


def add_projected_scan(
    builder: Builder, ops: LayerOperations, scan: Scan, projected: Array, convolved: Array, out: Array, kernel: int
) -> None:
    """A scan between two projections, with a short convolution over `kernel` tokens before it and a gated norm behind
    it. projected, convolved, out: [key] elements per token of a rank, of the first projection, of what is convolved,
    and of what the scan puts out. Kept by all: what the first projection gives, and what the last one takes."""
    builder.add_gemm(ops, "mixer in", builder.shard.tokens, projected, builder.model.hidden)
    add_scan_and_output(builder, ops, scan, projected, convolved, out, kernel)


def add_scan_and_output(
    builder: Builder, ops: LayerOperations, scan: Scan, projected: Array, convolved: Array, out: Array, kernel: int
) -> None:
    """The same without the projections before the scan, for mixers that make some of what is projected otherwise.
    kernel: 1 without a convolution."""
    shard, h, w = builder.shard, builder.model.hidden, builder.activation_bytes
    tokens = shard.tokens
    builder.add_gemm(ops, "mixer out", tokens, h, out)
    if kernel > 1:
        add_convolution(builder, ops, convolved)
    add_scan(builder, ops, scan)
    add_steps(builder, ops, scan, projected, convolved)
    add_gated_norm(builder, ops, out)
    add_context_parallel(builder, ops, scan.passed_on, projected, out, (kernel - 1) * convolved)
    ops.saved.append(Saved("projected by mixer", w * tokens * projected))
    if ops.keeps_input():
        ops.saved.append(Saved("mixer output", builder.kept_input * tokens * out))
    ops.wgrad_stash += [w * tokens * projected, builder.kept_input * tokens * out, w * h * shard.sp_tokens]


def add_convolution(builder: Builder, ops: LayerOperations, channels: Array) -> None:
    """A short causal convolution along the tokens, per channel, and the activation behind it: one kernel each way
    (causal_conv1d), whose backward pass makes the output again."""
    moved = builder.activation_bytes * builder.shard.tokens * channels
    ops.traffic.append(MemoryTraffic("convolution", _PASS * moved, (_PASS + _PASS_BACK) * moved, scan_tag(builder)))


def add_gated_norm(builder: Builder, ops: LayerOperations, width: Array) -> None:
    """The norm of what the scan puts out, times an activation of the gate: two read, one written; backward three read,
    two written."""
    moved = builder.activation_bytes * builder.shard.tokens * width
    ops.traffic.append(MemoryTraffic("gated norm", 3 * moved, 5 * moved, scan_tag(builder)))


def add_context_parallel(
    builder: Builder, ops: LayerOperations, state: Array, into: Array, out: Array, halo: Array
) -> None:
    """Exchanges of context parallelism around any scan, by `StackSpec.mixer_context`. [key] elements. state: what
    tokens of a sequence leave to those behind; into, out: per token of a rank, of what is projected and of what the
    scan puts out; halo: of the last tokens, which the convolution of the next rank sees."""
    if builder.stack.mixer_context == "heads":
        _add_head_exchange(builder, ops, into, out)
    else:
        _add_state_exchange(builder, ops, state, halo)


def _add_state_exchange(builder: Builder, ops: LayerOperations, state: Array, halo: Array) -> None:
    """Ranks keep their tokens, and get the state of the tokens before theirs: its gradient goes back the same way. It
    is in fp32, as kernels give the last state of a sequence (mamba_ssm e9594ce, _state_passing_fwd and selective_scan;
    flash-linear-attention, chunk_gated_delta_rule_fwd_h).

    Steps that run again in any case (`recomputes_scans`) keep the states that came, as all their inputs.
    """
    shard, w, attn = builder.shard, builder.activation_bytes, scan_tag(builder)
    sequences = chunks_of_rank(builder)
    gathers = builder.stack.mixer_context == "gather"
    op: Op = "all_gather" if gathers else "all_scan"
    num_bytes = FP32_BYTES * sequences * state
    for name, each in ((op, num_bytes * (shard.cp if gathers else 1.0)), ("p2p", w * sequences * halo)):
        sent = np.where(shard.cp > 1, each, 0.0)
        if sent.any():
            ops.exchanges.append(Exchange("cp", name, sent, shard.cp, shard.tp, 1, 1, attn))
    ops.saved.append(Saved("incoming states", np.where(shard.cp > 1, num_bytes, 0.0), attn))


def chunks_of_rank(builder: Builder) -> Array:
    """[key] parts of sequences on a rank, each with a state of its own: a ring of keys gives it two of each sequence,
    one from each end."""
    shard = builder.shard
    return np.asarray(shard.batch * np.where((shard.ring > 1) & bool(builder.model.attentions), 2.0, 1.0))


def _add_head_exchange(builder: Builder, ops: LayerOperations, into: Array, out: Array) -> None:
    """Ranks of context parallelism swap tokens for heads before the convolution and back after the scan, as Ulysses
    does (Megatron Core d98e8a64, ssm/mamba_context_parallel.py). into, out: [key] elements per token of a rank."""
    shard, w = builder.shard, builder.activation_bytes
    for elements in (into, out):
        sent = np.where(shard.cp > 1, w * shard.tokens * elements, 0.0)
        if sent.any():
            ops.exchanges.append(Exchange("cp", "all_to_all", sent, shard.cp, shard.tp, 1, 1, scan_tag(builder)))
