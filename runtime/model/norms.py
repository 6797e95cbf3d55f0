"""RMSNorm and LayerNorm of [..., width] that keep only the necessary tensors for the backward pass."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..parallel.comm import Group
from .block import Block, Context

# Before pytorch pull request 153666 (2.9) F.rms_norm was a sequence of operations that kept an fp32 copy of its input.
_FUSED_RMS_NORM = hasattr(torch.ops.aten, "_fused_rms_norm_backward")


class _RmsNorm(torch.autograd.Function):
    """Keeps its input and one number per row. torch's CPU version also keeps the normalised input.

    offset: added to the weight, in float32. group: ranks that hold parts of the rows, or None.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, epsilon: float, offset: float, group: Group | None) -> Tensor:
        wide = x if x.dtype == torch.float64 else x.float()
        squares, width = wide.square().sum(-1, keepdim=True), x.shape[-1]
        if group is not None:
            squares, width = group.all_reduce(squares), width * group.size
        scale = torch.rsqrt(squares / width + epsilon)
        ctx.save_for_backward(x, weight, scale)
        ctx.offset, ctx.group, ctx.width = offset, group, width
        normal = wide * scale
        # Rounded before a plain weight, as in Llama, and after a weight with an offset, as in Gemma.
        return (normal * (weight.to(normal.dtype) + offset)).to(x.dtype) if offset else normal.to(x.dtype) * weight

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, scale = ctx.saved_tensors
        normal = x.to(scale.dtype) * scale
        grad = grads[0].to(scale.dtype)
        grad_weight = (grad * normal).sum_to_size(weight.shape).to(weight.dtype) if ctx.needs_input_grad[1] else None
        grad = grad * (weight.to(scale.dtype) + ctx.offset if ctx.offset else weight)
        along = (grad * normal).sum(-1, keepdim=True)
        along = along if ctx.group is None else ctx.group.all_reduce(along)
        grad_x = (grad - normal * (along / ctx.width)) * scale
        return grad_x.to(x.dtype), grad_weight, None, None, None


def rms_norm(x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    """RMSNorm over the last dim. weight: shape of the last dims."""
    out: Tensor = _RmsNorm.apply(x, weight, epsilon, 0.0, None)  # type: ignore[no-untyped-call]
    return out


class Norm(Block):
    """RMSNorm, or LayerNorm where the model's norms have biases.

    split: tp ranks hold parts of its rows. epsilon: None for the value of the model's other norms.
    """

    def __init__(
        self, context: Context, width: int, bias: bool, *, split: bool = False, epsilon: float | None = None
    ) -> None:
        super().__init__(context)
        self.epsilon = context.numerics.norm_epsilon if epsilon is None else epsilon
        self.offset = 1.0 if context.numerics.unit_offset_norms else 0.0
        self.add("weight", [width], 0 if split else None, start=1.0 - self.offset)
        if bias:
            self.add("bias", [width], start=0.0)
        self.group = context.group if split and context.group.size > 1 else None

    def forward(self, x: Tensor) -> Tensor:
        weight, bias, epsilon = self.tensor("weight"), self.maybe("bias"), self.epsilon
        if bias is not None:
            return F.layer_norm(x, (x.shape[-1],), weight + self.offset if self.offset else weight, bias, epsilon)
        plain = not self.offset and self.group is None
        if plain and self.context.fused and _FUSED_RMS_NORM:  # one kernel that keeps the same tensors
            return F.rms_norm(x, (x.shape[-1],), weight, epsilon)
        out: Tensor = _RmsNorm.apply(x, weight, epsilon, self.offset, self.group)  # type: ignore[no-untyped-call]
        return out
