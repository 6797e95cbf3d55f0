"""RWKV-7: a state that each token changes by a diagonal matrix plus one of rank one (arXiv 2503.14456).

H heads of width d: receptance, keys and values, each of a token mixed with the one before; decay, rate of learning,
share of the first layer's values and output gate come out of projections of low rank; the output of a head is normed
and gated. The feed-forward block mixes a token with the one before, too: its vector is counted here. The scan runs in
chunks (flash-linear-attention bc3b101d, ops/generalized_delta_rule/dplr/chunk.py), its products are those of the delta
rule with two pairs of keys, so that there are four sorts of scores.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..arrays import Array
from ..offload_modules import mask_of_modules
from ..quantities.element_bytes import FP32_BYTES
from ..quantities.matrix import Matrix
from ..quantities.operation_builder import Builder
from ..quantities.operations import BatchedProduct, LayerOperations, MemoryTraffic, Saved, tag
from ..specs.model import Mixer
from .base import MixerKind
from .chunked_scan import Scan, add_context_parallel, add_gated_norm

_CHUNK = 16  # tokens (flash-linear-attention, ops/generalized_delta_rule/dplr/chunk.py)
_SHIFTS = 7  # vectors that mix a token with the one before; the seventh is of the feed-forward block


@dataclass(frozen=True, slots=True, kw_only=True)
class Rwkv7(Mixer):
    """Sizes of an RWKV-7 mixer."""

    kind: ClassVar[str] = "rwkv7"
    heads: int
    head_dim: int  # of receptance, keys and values
    decay_rank: int
    rate_rank: int  # of the rate of learning in context
    gate_rank: int
    value_rank: int = 0  # of the share of the first layer's values, 0: the first layer

    @property
    def width(self) -> int:
        return self.heads * self.head_dim

    @property
    def ranks(self) -> int:
        return self.decay_rank + self.rate_rank + self.gate_rank + self.value_rank


def _parameters(mixer: Rwkv7, hidden: int) -> dict[str, int]:
    biases = 2 + (mixer.value_rank > 0)  # of decay, rate, share of values
    return {
        "mixer_in": 3 * hidden * mixer.width,
        "mixer_low_rank_in": hidden * mixer.ranks,
        "mixer_low_rank": mixer.ranks * mixer.width,
        "mixer_shift": _SHIFTS * hidden,
        "mixer_heads": (3 + biases + 2) * mixer.width,  # two factors of keys, bonus; biases; norm and its bias
        "mixer_out": mixer.width * hidden,
    }


def _matrices(mixer: Rwkv7, hidden: int) -> tuple[Matrix, ...]:
    ranks = [rank for rank in (mixer.decay_rank, mixer.rate_rank, mixer.gate_rank, mixer.value_rank) if rank]
    return (
        *(Matrix(((mixer.width, hidden),)) for _ in range(3)), Matrix(((hidden, mixer.width),)),
        *(Matrix(((rank, hidden),), split=False) for rank in ranks),
        *(Matrix(((mixer.width, rank),)) for rank in ranks),
    )  # fmt: skip


def _add(builder: Builder, ops: LayerOperations, mixer: Rwkv7) -> None:
    shard, h, w = builder.shard, builder.model.hidden, builder.activation_bytes
    tokens, width = shard.tokens, mixer.width / shard.tp
    builder.add_gemm(ops, "mixer in", tokens, width, h, count=3.0)
    builder.add_gemm(ops, "mixer low ranks down", tokens, float(mixer.ranks), h)
    builder.add_gemm(ops, "mixer low ranks up", tokens, width, float(mixer.ranks))
    builder.add_gemm(ops, "mixer out", tokens, h, width)
    # A token mixed with the one before, six times: read once, each written; backward each read, one written.
    mixed = w * tokens * h
    ops.traffic.append(MemoryTraffic("shifts", 7 * mixed, 8 * mixed, tag("attn")))
    _add_scan(builder, ops, mixer, tokens / _CHUNK * mixer.heads / shard.tp)
    add_gated_norm(builder, ops, width)
    made = (7 if mixer.value_rank else 6) * width  # receptance, keys, values, decay, rate, gate; share of values
    scan = Scan(heads=mixer.heads / shard.tp, key_heads=mixer.heads / shard.tp, key_dim=mixer.head_dim,
                value_dim=mixer.head_dim, chunk=_CHUNK, delta=True)  # fmt: skip
    add_context_parallel(builder, ops, scan.passed_on, made, width, 1.0 * width)
    sends = mask_of_modules("core_attn")
    ops.saved.append(Saved("mixed tokens", 6 * mixed))
    ops.saved.append(Saved("projected by mixer", w * tokens * (made + mixer.ranks)))
    ops.saved.append(Saved("scan output", w * tokens * width, tag("attn"), sends))
    if ops.keeps_input():
        ops.saved.append(Saved("mixer output", builder.kept_input * tokens * width))
    ops.wgrad_stash += [w * tokens * made, builder.kept_input * tokens * width, 6 * w * h * tokens]


def _add_scan(builder: Builder, ops: LayerOperations, mixer: Rwkv7, chunks: Array) -> None:
    """chunks: of all heads. The backward pass makes scores, their inverse and states again."""
    q, d, attn = float(_CHUNK), float(mixer.head_dim), tag("attn")
    products = (
        # Scores of receptance and of the removed key, with keys and with the added key.
        ("scores of chunks", q, q, d, 4, 1.0), ("keys by inverse", q, d, q, 1, 1.0),
        ("values by scores of keys, by inverse", q, d, q, 2, 1.0), ("values by scores", q, d, q, 2, 0.0),
        ("states read", q, d, d, 2, 1.0), ("states of chunks", d, d, q, 2, 1.0),
    )  # fmt: skip
    for name, m, n, k, times, remade in products:
        ops.batched.append(BatchedProduct(name, m, n, k, times * chunks, attn, remade))
    passed = 2 * FP32_BYTES * chunks * d * d
    ops.traffic.append(MemoryTraffic("state passing", passed, 2 * passed, attn, fusable=False))


KIND = MixerKind(
    spec=Rwkv7, parameters=_parameters, replicated=("mixer_low_rank_in", "mixer_shift"), matrices=_matrices, add=_add,
    heads=lambda mixer: {"heads of linear attention": (mixer.heads, False)},
    # Two tokens that shifts keep, of this block and the feed-forward one; the state of heads (RWKV7Attention of fla).
    state=lambda mixer: (2 * mixer.width, mixer.width * mixer.head_dim),
    kernels=18.0,  # three and eight products more, shifts, update of keys, scan in five, norm, gate (rwkv7.py of fla)
)  # fmt: skip
