"""Gated short convolution: a layer that sees a few tokens only (LFM2; transformers, Lfm2ShortConv).

One projection makes B, C and x of hidden channels each; B times x goes through a convolution over a few tokens, per
channel; C times that is projected. There is no state: what crosses from rank to rank is the last tokens of the window.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ..offload_modules import mask_of_modules
from ..quantities.matrix import Matrix
from ..quantities.operation_builder import Builder
from ..quantities.operations import Exchange, LayerOperations, MemoryTraffic, Saved, tag
from ..specs.model import Mixer
from .base import MixerKind
from .chunked_scan import add_convolution


@dataclass(frozen=True, slots=True, kw_only=True)
class ShortConvolution(Mixer):
    """Sizes of a gated short convolution."""

    kind: ClassVar[str] = "short_convolution"
    channels: int
    conv_kernel: int = 3  # tokens that the convolution sees
    bias: bool = False  # of projections and convolution


def _parameters(mixer: ShortConvolution, hidden: int) -> dict[str, int]:
    counts = {
        "mixer_in": 3 * mixer.channels * hidden,
        "mixer_conv": mixer.channels * (mixer.conv_kernel + mixer.bias),
        "mixer_out": mixer.channels * hidden,
    }
    return counts | {"mixer_in_bias": 3 * mixer.channels, "mixer_out_bias": hidden} if mixer.bias else counts


def _matrices(mixer: ShortConvolution, hidden: int) -> tuple[Matrix, ...]:
    return Matrix(((3 * mixer.channels, hidden),)), Matrix(((hidden, mixer.channels),))


def _add(builder: Builder, ops: LayerOperations, mixer: ShortConvolution) -> None:
    shard, h, w = builder.shard, builder.model.hidden, builder.activation_bytes
    tokens, channels = shard.tokens, mixer.channels / shard.tp
    builder.add_gemm(ops, "mixer in", tokens, 3 * channels, h)
    builder.add_gemm(ops, "mixer out", tokens, h, channels)
    add_convolution(builder, ops, channels)
    # Two products of elements: two read, one written each; backward three read, two written.
    moved = 2 * w * tokens * channels
    ops.traffic.append(MemoryTraffic("gates of the convolution", 3 * moved, 5 * moved, tag("attn")))
    halo = np.where(shard.cp > 1, w * shard.batch * (mixer.conv_kernel - 1) * channels, 0.0)
    if halo.any():
        ops.exchanges.append(Exchange("cp", "p2p", halo, shard.cp, shard.tp, 1, 1, tag("attn")))
    sends = mask_of_modules("core_attn")
    ops.saved.append(Saved("projected by mixer", 3 * w * tokens * channels))
    ops.saved.append(Saved("convolution input and output", 2 * w * tokens * channels, tag("attn"), sends))
    if ops.keeps_input():
        ops.saved.append(Saved("mixer output", builder.kept_input * tokens * channels))
    ops.wgrad_stash += [3 * w * tokens * channels, builder.kept_input * tokens * channels, w * h * shard.sp_tokens]


KIND = MixerKind(
    spec=ShortConvolution, parameters=_parameters, replicated=("mixer_out_bias",), matrices=_matrices, add=_add,
    # Ranks of cp keep their tokens whatever the stack says, so only tp splits channels.
    heads=lambda mixer: {"channels of the convolution": (mixer.channels, True)},
    state=lambda mixer: (mixer.channels * (mixer.conv_kernel - 1), 0),
    kernels=3.0,  # two products of elements and the convolution
)  # fmt: skip
