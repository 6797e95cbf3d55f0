"""Gated DeltaNet: linear attention whose state forgets by a gate and is corrected by the delta rule (arXiv 2412.06464).

Key heads of width d_k, value heads of width d_v, several of which share a key head. Projections make queries, keys,
values, an output gate, and two numbers per value head; queries, keys and values go through a short convolution; the
output of a head is normed, gated and projected (Qwen3-Next; Megatron Core d98e8a64, ssm/gated_delta_net).
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
from .chunked_scan import Scan, add_context_parallel, add_convolution, add_gated_norm, add_scan, add_steps

CHUNK = 64  # tokens (flash-linear-attention, ops/gated_delta_rule/chunk.py)


@dataclass(frozen=True, slots=True, kw_only=True)
class GatedDeltaNet(Mixer):
    """Sizes of a gated DeltaNet mixer."""

    kind: ClassVar[str] = "gated_delta_net"
    key_heads: int  # of queries, and of keys
    value_heads: int  # a multiple of key_heads
    key_head_dim: int  # d_k
    value_head_dim: int  # d_v
    conv_kernel: int = 4  # tokens that the convolution sees

    @property
    def keys(self) -> int:
        return self.key_heads * self.key_head_dim

    @property
    def values(self) -> int:
        return self.value_heads * self.value_head_dim

    @property
    def convolved(self) -> int:
        """Channels of queries, keys and values."""
        return 2 * self.keys + self.values

    @property
    def projected(self) -> int:
        """Width of what the projections make."""
        return self.convolved + self.values + 2 * self.value_heads


def _parameters(mixer: GatedDeltaNet, hidden: int) -> dict[str, int]:
    return {
        "mixer_in": hidden * mixer.projected,
        "mixer_conv": mixer.convolved * mixer.conv_kernel,
        "mixer_heads": 2 * mixer.value_heads,  # decay, bias of the step
        "mixer_norm": mixer.value_head_dim,
        "mixer_out": mixer.values * hidden,
    }


def _matrices(mixer: GatedDeltaNet, hidden: int) -> tuple[Matrix, ...]:
    return Matrix(((mixer.projected, hidden),)), Matrix(((hidden, mixer.values),))


def _add(builder: Builder, ops: LayerOperations, mixer: GatedDeltaNet) -> None:
    shard, h, w = builder.shard, builder.model.hidden, builder.activation_bytes
    tokens, values = shard.tokens, mixer.values / shard.tp
    projected, convolved = mixer.projected / shard.tp, mixer.convolved / shard.tp
    builder.add_gemm(ops, "mixer in", tokens, projected, h)
    builder.add_gemm(ops, "mixer out", tokens, h, values)
    add_convolution(builder, ops, convolved)
    scan = Scan(heads=mixer.value_heads / shard.tp, key_heads=mixer.key_heads / shard.tp, key_dim=mixer.key_head_dim,
                value_dim=mixer.value_head_dim, chunk=CHUNK, delta=True)  # fmt: skip
    add_scan(builder, ops, scan)
    add_steps(builder, ops, scan, projected, convolved)
    add_gated_norm(builder, ops, values)
    add_context_parallel(builder, ops, scan, projected, values, convolved, mixer.conv_kernel)
    # Kept: what the convolution gets and gives, the gate, what the scan puts out; the inverse of every chunk.
    sends, inverses = mask_of_modules("core_attn"), CHUNK * mixer.value_heads / shard.tp
    ops.saved.append(Saved("projected by mixer", w * tokens * projected))
    if not builder.stack.recomputes_scans:
        ops.saved.append(Saved("queries, keys and values of the scan", w * tokens * convolved, tag("attn"), sends))
        ops.saved.append(Saved("inverses of chunks", w * tokens * inverses, tag("attn"), sends))
        ops.saved.append(Saved("scan output", w * tokens * values, tag("attn"), sends))
    if ops.keeps_input():
        ops.saved.append(Saved("mixer output", builder.kept_input * tokens * values))
    ops.wgrad_stash += [w * tokens * projected, builder.kept_input * tokens * values, w * h * shard.sp_tokens]


KIND = MixerKind(
    spec=GatedDeltaNet, parameters=_parameters, replicated=("mixer_norm",), matrices=_matrices,
    add=_add,
    heads=lambda mixer: {"key heads of linear attention": (mixer.key_heads, False)},
    # Convolution, norms of queries and keys, cumulated decays, products of keys, inverse, transformed keys and values,
    # states, output, gated norm (flash-linear-attention, ops/gated_delta_rule/chunk.py); one projection more.
    kernels=10.0,
)  # fmt: skip
