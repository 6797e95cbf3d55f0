"""Activations of feed-forward blocks, gated and ungated."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..parallel.recompute import Recompute

CLAMPED = "clamped swiglu"
_LIMIT, _ALPHA = 7.0, 1.702  # of GPT-OSS (transformers, GptOssExperts)


def _squared_relu(x: Tensor) -> Tensor:
    """Squared ReLU of Nemotron-4 (arXiv 2402.16819) and Primer (arXiv 2109.08668)."""
    return F.relu(x).square()


ACTIVATIONS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "silu": F.silu, "gelu": F.gelu, "gelu_tanh": partial(F.gelu, approximate="tanh"), "relu": F.relu,
    "relu2": _squared_relu,
}  # fmt: skip


def gated(name: str, gate: Tensor, up: Tensor) -> Tensor:
    """SwiGLU, GeGLU, ... (arXiv 2002.05202)."""
    if name == CLAMPED:
        out: Tensor = _Clamped.apply(gate, up)  # type: ignore[no-untyped-call]
        return out
    return ACTIVATIONS[name](gate) * up


class _Clamped(torch.autograd.Function):
    """gpt-oss: (up + 1) times gate sigmoid(1.702 gate), both clamped to 7 (GptOssExperts in transformers).

    It keeps three tensors, like SwiGLU.
    """

    @staticmethod
    def forward(ctx: Any, gate: Tensor, up: Tensor) -> Tensor:
        limited = gate.clamp(max=_LIMIT)
        activated = limited * torch.sigmoid(_ALPHA * limited)
        ctx.save_for_backward(gate, up, activated)
        return (up.clamp(-_LIMIT, _LIMIT) + 1) * activated

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor]:
        gate, up, activated = ctx.saved_tensors
        limited = gate.clamp(max=_LIMIT)
        sigmoid = (_ALPHA * limited).sigmoid_()
        # In place, because separate operations would make seven tensors of this size.
        slope = limited.mul_(1 - sigmoid).mul_(_ALPHA).add_(1).mul_(sigmoid)
        del sigmoid
        of_gate = slope.mul_(up.clamp(-_LIMIT, _LIMIT).add_(1)).mul_(grads[0])
        return of_gate.masked_fill_(gate > _LIMIT, 0), (grads[0] * activated).masked_fill_(up.abs() > _LIMIT, 0)


class _Gated(torch.autograd.Function):
    """Keeps gate and up only. The backward pass recomputes the activation of the gate."""

    @staticmethod
    def forward(ctx: Any, name: str, gate: Tensor, up: Tensor) -> Tensor:
        ctx.name = name
        ctx.save_for_backward(gate, up)
        return gated(name, gate, up)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[None, Tensor, Tensor]:
        gate, up = ctx.saved_tensors
        with torch.enable_grad():
            leaves = [gate.detach().requires_grad_(), up.detach().requires_grad_()]
            gradients = torch.autograd.grad(gated(ctx.name, *leaves), leaves, grads[0])
        return None, gradients[0], gradients[1]


def lean_gated(name: str, gate: Tensor, up: Tensor) -> Tensor:
    """`gated` for a recomputed activation."""
    out: Tensor = _Gated.apply(name, gate, up)  # type: ignore[no-untyped-call]
    return out


def activated(recompute: Recompute, name: str, *inputs: Tensor) -> Tensor:
    """The activation of one input, or the activation of the first input times the second."""
    if name == "relu" and len(inputs) == 1:
        # Its backward pass reads the result, which the next product keeps. Recomputation would also keep the input.
        return ACTIVATIONS[name](inputs[0])
    if name == "relu2" and len(inputs) == 1:
        # Recomputation from the input would keep the input and the ReLU's result, which the backward pass reads.
        return recompute.output("act", torch.square, F.relu(inputs[0]))
    if len(inputs) == 1:
        return recompute.output("act", ACTIVATIONS[name], *inputs)
    return recompute.output("act", partial(lean_gated if "act" in recompute.modules else gated, name), *inputs)
