"""Mamba-2: a state-space model whose scan is made of products (arXiv 2405.21060).

d = heads * head_dim channels, G groups with a B and a C of N states each. One projection makes gate z, x, B, C and the
step of every head; x, B and C go through a short convolution; the scan runs per head; its output is normed, gated and
projected. Tensor parallelism splits heads and groups (Megatron Core d98e8a64, ssm/mamba_mixer.py).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from ..quantities.matrix import Matrix
from ..quantities.operation_builder import Builder
from ..quantities.operations import LayerOperations, Saved, tag
from ..specs.model import Mixer
from .base import MixerKind
from .chunked_scan import Scan, add_projected_scan


@dataclass(frozen=True, slots=True, kw_only=True)
class Mamba2(Mixer):
    """Sizes of a Mamba-2 mixer."""

    kind: ClassVar[str] = "mamba2"
    heads: int  # H
    head_dim: int  # P: channels of a head
    groups: int = 1  # G: heads of a group share B and C
    state: int  # N: of a channel
    conv_kernel: int = 4  # tokens that the convolution sees
    chunk: int = 256  # tokens: Q
    conv_bias: bool = True  # of the convolution
    in_bias: bool = False  # of the first projection
    out_bias: bool = False  # of the last one
    gated_norm: bool = True  # whether the output is normed
    # Steps are not smaller in transformers; no cost depends on it, and Megatron Core has none.
    least_step: float = field(default=0.0, compare=False)

    @property
    def inner(self) -> int:
        return self.heads * self.head_dim

    @property
    def convolved(self) -> int:
        """Channels of x, B and C."""
        return self.inner + 2 * self.groups * self.state

    @property
    def projected(self) -> int:
        """Width of the output of the first projection."""
        return self.inner + self.convolved + self.heads


def _parameters(mixer: Mamba2, hidden: int) -> dict[str, int]:
    counts = {
        "mixer_in": hidden * mixer.projected,
        "mixer_conv": mixer.convolved * (mixer.conv_kernel + mixer.conv_bias),
        "mixer_heads": 3 * mixer.heads,  # decay, skip, bias of the step
        "mixer_out": mixer.inner * hidden,
    }
    if mixer.in_bias:
        counts["mixer_in_bias"] = mixer.projected
    if mixer.out_bias:
        counts["mixer_out_bias"] = hidden
    if mixer.gated_norm:
        counts["mixer_norm"] = mixer.inner
    return counts


def _matrices(mixer: Mamba2, hidden: int) -> tuple[Matrix, ...]:
    return Matrix(((mixer.projected, hidden),)), Matrix(((hidden, mixer.inner),))


def _add(builder: Builder, ops: LayerOperations, mixer: Mamba2) -> None:
    tp, tokens, w = builder.shard.tp, builder.shard.tokens, builder.activation_bytes
    scan = Scan(heads=mixer.heads / tp, key_heads=mixer.groups / tp, key_dim=mixer.state, value_dim=mixer.head_dim,
                chunk=mixer.chunk)  # fmt: skip
    inner = mixer.inner / tp
    add_projected_scan(builder, ops, scan, mixer.projected / tp, mixer.convolved / tp, inner, mixer.conv_kernel)
    # The fused kernel keeps what it got and what the scan puts out before the gate, and makes all between again
    # (MambaSplitConv1dScanCombinedFn); the norm behind it keeps its input (mamba_mixer.py).
    if not builder.stack.recomputes_scans:
        ops.saved.append(Saved("scan output", w * tokens * inner, tag("attn")))
    if mixer.gated_norm:
        ops.saved.append(Saved("gated norm input", w * tokens * inner))


KIND = MixerKind(
    spec=Mamba2, parameters=_parameters, replicated=("mixer_out_bias",), matrices=_matrices, add=_add,
    heads=lambda mixer: {"state-space heads": (mixer.heads, False), "state-space groups": (mixer.groups, True)},
    state=lambda mixer: (mixer.convolved * (mixer.conv_kernel - 1) + mixer.inner * mixer.state, 0),
    kernels=7.0,  # convolution, cumulated decays, states, their passing, scores, scan, gated norm (ssd_combined.py)
)  # fmt: skip
