"""Kimi Delta Attention: a gated DeltaNet whose decay is per key channel (arXiv 2510.26692).

H heads of width d for queries, keys and values, which go through a short convolution; decay and output gate are made by
projections of rank d; a step per head. The scan has the products of the delta rule; kernels make scores of a chunk in
smaller blocks, since decays differ by channel (flash-linear-attention, ops/kda/chunk_intra.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..offload_modules import mask_of_modules
from ..quantities.matrix import Matrix
from ..quantities.operation_builder import Builder
from ..quantities.operations import LayerOperations, Saved, tag
from ..specs.model import Mixer
from .base import MixerKind
from .chunked_scan import Scan, add_scan_and_output

_CHUNK = 64  # tokens (flash-linear-attention, ops/kda/chunk.py)


@dataclass(frozen=True, slots=True, kw_only=True)
class KimiDeltaAttention(Mixer):
    """Sizes of a Kimi Delta Attention mixer."""

    kind: ClassVar[str] = "kimi_delta_attention"
    heads: int
    head_dim: int  # of queries, keys and values
    conv_kernel: int = 4  # tokens that the convolution sees

    @property
    def width(self) -> int:
        """Widths of queries, keys and values."""
        return self.heads * self.head_dim


def _parameters(mixer: KimiDeltaAttention, hidden: int) -> dict[str, int]:
    return {
        "mixer_in": hidden * (3 * mixer.width + mixer.heads),
        "mixer_low_rank_in": 2 * hidden * mixer.head_dim,  # of decay and gate
        "mixer_low_rank": 2 * mixer.head_dim * mixer.width,
        "mixer_conv": 3 * mixer.width * mixer.conv_kernel,
        "mixer_heads": mixer.heads + mixer.width,  # decay, bias of its step
        "mixer_norm": mixer.head_dim,
        "mixer_out": mixer.width * hidden,
    }


def _matrices(mixer: KimiDeltaAttention, hidden: int) -> tuple[Matrix, ...]:
    down, up = Matrix(((mixer.head_dim, hidden),), split=False), Matrix(((mixer.width, mixer.head_dim),))
    width = (mixer.width, hidden)
    return (Matrix((width, width, width, (mixer.heads, hidden))), down, down, up, up, Matrix(((hidden, mixer.width),)))


def _add(builder: Builder, ops: LayerOperations, mixer: KimiDeltaAttention) -> None:
    shard, h, w = builder.shard, builder.model.hidden, builder.activation_bytes
    tokens, width, heads = shard.tokens, mixer.width / shard.tp, mixer.heads / shard.tp
    builder.add_gemm(ops, "mixer in", tokens, 3 * width + heads, h)
    builder.add_gemm(ops, "mixer decay and gate down", tokens, 2.0 * mixer.head_dim, h)
    builder.add_gemm(ops, "mixer decay and gate up", tokens, width, float(mixer.head_dim), count=2.0)
    scan = Scan(heads=heads, key_heads=heads, key_dim=mixer.head_dim, value_dim=mixer.head_dim, chunk=_CHUNK,
                delta=True)  # fmt: skip
    projected = 5 * width + heads  # queries, keys, values, decay, gate; step
    add_scan_and_output(builder, ops, scan, projected, 3 * width, width, mixer.conv_kernel)
    sends = mask_of_modules("core_attn")
    ops.saved.append(Saved("decay and gate down", 2 * w * tokens * mixer.head_dim))
    ops.saved.append(Saved("queries, keys and values of the scan", 3 * w * tokens * width, tag("attn"), sends))
    ops.saved.append(Saved("inverses of chunks", w * tokens * _CHUNK * heads, tag("attn"), sends))
    ops.saved.append(Saved("scan output", w * tokens * width, tag("attn"), sends))


KIND = MixerKind(
    spec=KimiDeltaAttention, parameters=_parameters, replicated=("mixer_norm", "mixer_low_rank_in"),
    matrices=_matrices, add=_add, heads=lambda mixer: {"heads of linear attention": (mixer.heads, False)},
    state=lambda mixer: (3 * mixer.width * (mixer.conv_kernel - 1), mixer.width * mixer.head_dim),
    kernels=13.0,  # those of gated DeltaNet, and three projections of decay and gate more
)  # fmt: skip
