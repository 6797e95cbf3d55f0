"""RMSNorm and LayerNorm of [..., width], with no more kept for the backward pass than has to be."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .block import Block, Context

# Before pytorch pull request 153666 (2.9) F.rms_norm is a row of operations that keeps an fp32 copy of its input.
_FUSED_RMS_NORM = hasattr(torch.ops.aten, "_fused_rms_norm_backward")


class _RmsNorm(torch.autograd.Function):
    """Keeps its input and one number per row; torch's on the CPU also keeps the normalised input."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
        wide = x if x.dtype == torch.float64 else x.float()
        scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + epsilon)
        ctx.save_for_backward(x, weight, scale)
        return (wide * scale).to(x.dtype) * weight

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor | None, None]:
        x, weight, scale = ctx.saved_tensors
        normal = x.to(scale.dtype) * scale
        grad = grads[0].to(scale.dtype)
        grad_weight = (grad * normal).flatten(0, -2).sum(0).to(weight.dtype) if ctx.needs_input_grad[1] else None
        grad = grad * weight
        grad_x = (grad - normal * (grad * normal).mean(-1, keepdim=True)) * scale
        return grad_x.to(x.dtype), grad_weight, None


class Norm(Block):
    """RMSNorm, or LayerNorm where the model's norms have biases."""

    def __init__(self, context: Context, width: int, bias: bool) -> None:
        super().__init__(context)
        self.add("weight", [width], start=1.0)
        if bias:
            self.add("bias", [width], start=0.0)

    def forward(self, x: Tensor) -> Tensor:
        weight, bias, epsilon = self.tensor("weight"), self.maybe("bias"), self.context.norm_epsilon
        if bias is not None:
            return F.layer_norm(x, (x.shape[-1],), weight, bias, epsilon)
        if self.context.fused and _FUSED_RMS_NORM:  # one kernel, and it keeps no more
            return F.rms_norm(x, (x.shape[-1],), weight, epsilon)
        out: Tensor = _RmsNorm.apply(x, weight, epsilon)  # type: ignore[no-untyped-call]
        return out
