"""Mamba, the first version: a selective scan of a diagonal state, one per channel (arXiv 2312.00752).

d channels with N states each. One projection makes x and the gate z; x goes through a short convolution; a small
projection of it makes B and C of N states, which all channels share, and a step of low rank, which a second projection
spreads over the channels. The scan has no products of matrices: one kernel goes along the tokens with the states in
registers (mamba_ssm e9594ce, ops/selective_scan_interface.py), bound by memory or by its exponentials. Tensor
parallelism splits channels: the small projection then sums over ranks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ..offload_modules import mask_of_modules
from ..quantities.element_bytes import FP32_BYTES
from ..quantities.matrix import Matrix
from ..quantities.operation_builder import Builder
from ..quantities.operations import Exchange, LayerOperations, MemoryTraffic, Saved, tag
from ..specs.model import Mixer
from .base import MixerKind
from .chunked_scan import add_context_parallel, add_convolution

_CHUNK = 2048  # tokens whose states at the end the kernel keeps (csrc/selective_scan of mamba_ssm)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mamba(Mixer):
    """Sizes of a Mamba mixer."""

    kind: ClassVar[str] = "mamba"
    channels: int  # d
    state: int  # N: of a channel
    step_rank: int  # of the step's projections
    conv_kernel: int = 4  # tokens that the convolution sees
    conv_bias: bool = True  # of the convolution
    bias: bool = False  # of the projections in and out
    step_norms: bool = False  # whether step, B and C are normed, with weights (Jamba)

    @property
    def selected(self) -> int:
        """Width of the output of the small projection."""
        return self.step_rank + 2 * self.state


def _parameters(mixer: Mamba, hidden: int) -> dict[str, int]:
    counts = {
        "mixer_in": 2 * mixer.channels * hidden,
        "mixer_conv": mixer.channels * (mixer.conv_kernel + mixer.conv_bias),
        "mixer_select": mixer.channels * mixer.selected,
        "mixer_step": mixer.channels * mixer.step_rank,
        "mixer_heads": mixer.channels * (mixer.state + 2),  # decays, skip, bias of the step
        "mixer_out": mixer.channels * hidden,
    }
    if mixer.bias:
        counts |= {"mixer_in_bias": 2 * mixer.channels, "mixer_out_bias": hidden}
    if mixer.step_norms:
        counts["mixer_norm"] = mixer.selected
    return counts


def _matrices(mixer: Mamba, hidden: int) -> tuple[Matrix, ...]:
    return (
        Matrix(((2 * mixer.channels, hidden),)), Matrix(((mixer.selected, mixer.channels),)),
        Matrix(((mixer.channels, mixer.step_rank),)),
        Matrix(((hidden, mixer.channels),)),
    )  # fmt: skip


def _add(builder: Builder, ops: LayerOperations, mixer: Mamba) -> None:
    shard, h, w = builder.shard, builder.model.hidden, builder.activation_bytes
    tokens, channels, selected = shard.tokens, mixer.channels / shard.tp, float(mixer.selected)
    builder.add_gemm(ops, "mixer in", tokens, 2 * channels, h)
    builder.add_gemm(ops, "mixer selection", tokens, selected, channels)
    builder.add_gemm(ops, "mixer step", tokens, channels, float(mixer.step_rank))
    builder.add_gemm(ops, "mixer out", tokens, h, channels)
    add_convolution(builder, ops, channels)
    _add_scan(builder, ops, mixer)
    summed = np.where(shard.tp > 1, w * tokens * selected, 0.0)
    if summed.any():  # of products of parts of the channels; backward the gradient of what all ranks use
        ops.exchanges.append(Exchange("tp", "all_reduce", summed, shard.tp, np.ones_like(summed), 1, 1, tag("attn")))
    halo = (mixer.conv_kernel - 1) * channels
    add_context_parallel(builder, ops, channels * mixer.state, 2 * channels, channels, halo)
    # The kernel keeps its inputs and the states at the end of chunks, and scans again in the backward pass.
    sends = mask_of_modules("core_attn")
    states = FP32_BYTES * tokens / _CHUNK * channels * 2 * mixer.state
    ops.saved.append(Saved("projected by mixer", 2 * w * tokens * channels))
    ops.saved.append(Saved("convolution output", w * tokens * channels, tag("attn"), sends))
    ops.saved.append(Saved("step, B and C", w * tokens * (selected + channels), tag("attn"), sends))
    ops.saved.append(Saved("scan output, states", w * tokens * channels + states, tag("attn"), sends))
    if ops.keeps_input():
        ops.saved.append(Saved("mixer output", builder.kept_input * tokens * channels))
    ops.wgrad_stash += [
        w * tokens * (3 * channels + selected), builder.kept_input * tokens * channels, w * h * shard.sp_tokens
    ]  # fmt: skip


def _add_scan(builder: Builder, ops: LayerOperations, mixer: Mamba) -> None:
    """x, step and gate read, output before and after the gate written; backward those and their gradients. B and C
    are read once for each block of channels, out of the cache."""
    shard, w = builder.shard, builder.activation_bytes
    moved = w * shard.tokens * mixer.channels / shard.tp
    ops.traffic.append(MemoryTraffic("selective scan", 5 * moved, 9 * moved, tag("attn"), fusable=False))
    if mixer.step_norms:
        ops.traffic.append(builder.norm_traffic("norms of the step", shard.tokens * mixer.selected, tag("attn")))


KIND = MixerKind(
    spec=Mamba, parameters=_parameters, replicated=("mixer_out_bias", "mixer_norm"), matrices=_matrices, add=_add,
    heads=lambda mixer: {"state-space channels": (mixer.channels, False)},
    state=lambda mixer: (mixer.channels * (mixer.conv_kernel - 1 + mixer.state), 0),
    kernels=4.0,  # convolution, two projections more, scan
)  # fmt: skip
