"""Modulation of a diffusion transformer's layer, and its two streams."""

from __future__ import annotations

from dataclasses import replace

from ..quantities.operation_builder import Builder
from ..quantities.operations import LayerOperations, MemoryTraffic, Saved
from ..specs.diffusion import Modulation
from ..specs.model import Layer


def add_modulation(builder: Builder, ops: LayerOperations, kind: Layer, modulation: Modulation) -> None:
    """A product per sequence; then each modulated norm is scaled and shifted, and its block's output gated.

    The gradients of scale and gate take what they multiply: the norm's output and the block's. A compiled norm and
    modulation make the former again out of the norm's input (jit_fuser in WanAdaLN of Megatron-Bridge).
    """
    shard, h, w = builder.shard, builder.model.hidden, builder.activation_bytes
    if modulation.products:
        builder.add_gemm(ops, "modulation", shard.batch, modulation.products, h, count=kind.streams, wide=True)
    moved = (kind.num_norms - modulation.norms) * w * h * shard.sp_tokens
    ops.traffic.append(MemoryTraffic("modulation", 4 * moved, 6 * moved))
    ops.saved.append(Saved("modulated", (1 if builder.stack.fused_activation else 2) * moved))


def split_streams(builder: Builder, ops: LayerOperations, kind: Layer) -> None:
    """Products of the text and of the latents with weights of their own, in place of one product of both."""
    diffusion = builder.model.diffusion
    if diffusion is None or kind.streams == 1:
        return
    text = diffusion.text_tokens / builder.workload.seq_len
    whole = [gemm for gemm in ops.gemms if gemm.name == "modulation"]
    parts = [replace(gemm, m=share * gemm.m) for gemm in ops.gemms if gemm.name != "modulation"
             for share in (text, 1 - text)]  # fmt: skip
    ops.gemms = whole + parts
