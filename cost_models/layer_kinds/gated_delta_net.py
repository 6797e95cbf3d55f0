"""Gated DeltaNet: linear attention whose state forgets by a gate and is corrected by the delta rule (arXiv 2412.06464).

Key heads of width d_k, value heads of width d_v, several of which share a key head. Projections make queries, keys,
values, an output gate, and two numbers per value head; queries, keys and values go through a short convolution; the
output of a head is normed, gated and projected (Qwen3-Next; Megatron Core d98e8a64, ssm/gated_delta_net).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..quantities.matrix import Matrix
from ..quantities.operation_builder import Builder
from ..quantities.operations import LayerOperations, Saved, tag
from ..specs.model import Mixer
from .base import MixerKind
from .chunked_scan import Scan, add_projected_scan

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
        """Width of the outputs of the projections."""
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
    tp, tokens, w = builder.shard.tp, builder.shard.tokens, builder.activation_bytes
    scan = Scan(heads=mixer.value_heads / tp, key_heads=mixer.key_heads / tp, key_dim=mixer.key_head_dim,
                value_dim=mixer.value_head_dim, chunk=CHUNK, delta=True)  # fmt: skip
    convolved, values = mixer.convolved / tp, mixer.values / tp
    add_projected_scan(builder, ops, scan, mixer.projected / tp, convolved, values, mixer.conv_kernel)
    if builder.stack.recomputes_scans:
        return
    # What the convolution gives, the inverse of every chunk, and what the scan puts out.
    kept = {"queries, keys and values of the scan": convolved, "inverses of chunks": CHUNK * mixer.value_heads / tp,
            "scan output": values}  # fmt: skip
    for name, width in kept.items():  # none of which a module of Megatron Core sends to the host
        ops.saved.append(Saved(name, w * tokens * width, tag("attn")))


KIND = MixerKind(
    spec=GatedDeltaNet, parameters=_parameters, replicated=("mixer_norm",), matrices=_matrices,
    add=_add,
    heads=lambda mixer: {"key heads of linear attention": (mixer.key_heads, False)},
    state=lambda mixer: (mixer.convolved * (mixer.conv_kernel - 1) + mixer.values * mixer.key_head_dim, 0),
    # Convolution, norms of queries and keys, cumulated decays, products of keys, inverse, transformed keys and values,
    # states, output, gated norm (flash-linear-attention, ops/gated_delta_rule/chunk.py); one projection more.
    kernels=10.0,
    graph_part="attention",  # Megatron Core builds it in the place of self-attention
)  # fmt: skip
