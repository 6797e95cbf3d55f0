"""Grouped products of rows ordered by expert with one weight per expert: [n, in] x [experts, out, in] -> [n, out].

One function covers all experts, so that the gradient of all weights is computed once, in place. A GPU with a grouped
kernel runs one kernel; other devices run one product per expert.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..parallel.split_backward import weighed

_MULTIPLE = 8  # bf16 elements in 16 bytes, the alignment of rows in the kernel


class _Product(torch.autograd.Function):
    """Keeps the rows and the weights."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, counts: Sequence[int]) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.counts = counts
        return _by_rows(x, weight.transpose(1, 2), counts)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        (x, weight), (grad,) = ctx.saved_tensors, grads
        grad_x = _by_rows(grad, weight, ctx.counts) if ctx.needs_input_grad[0] else None
        return grad_x, _of_weights(ctx.counts, x, grad)[0] if ctx.needs_input_grad[1] else None, None


def _by_rows(x: Tensor, weight: Tensor, counts: Sequence[int]) -> Tensor:
    """Rows of each expert times its part of `weight` [experts, in, out]."""
    if has_kernel(x, *weight.shape[1:]):
        return F.grouped_mm(x, weight, offs=_ends(x, counts))
    out = x.new_empty(len(x), weight.shape[2])
    multiply(lambda: zip(_rows(x, counts), weight, _rows(out, counts), strict=True))
    return out


def _of_weights(counts: Sequence[int], x: Tensor, grad: Tensor) -> list[Tensor]:
    """Gradient of the weights, with zeros for experts without rows."""
    if has_kernel(x, grad.shape[1], x.shape[1]):
        gradients = F.grouped_mm(grad.t(), x, offs=_ends(x, counts))
        absent = [expert for expert, number in enumerate(counts) if not number]
        if absent:  # the kernel does not write their gradients
            gradients[absent] = 0.0
        return [gradients]
    gradients = x.new_empty(len(counts), grad.shape[1], x.shape[1])
    multiply(lambda: zip((rows.t() for rows in _rows(grad, counts)), _rows(x, counts), gradients, strict=True))
    return [gradients]


def has_kernel(x: Tensor, *widths: int) -> bool:
    """Whether torch has one kernel for all experts: bf16 on NVIDIA GPUs from Ampere on, from torch 2.10 on."""
    if not x.is_cuda or x.dtype != torch.bfloat16 or any(width % _MULTIPLE for width in widths):
        return False
    if not hasattr(F, "grouped_mm") or torch.version.hip is not None:
        return False
    return torch.cuda.get_device_capability(x.device) >= (8, 0)


def _ends(x: Tensor, counts: Sequence[int]) -> Tensor:
    """[experts] end index of the rows of each expert."""
    return torch.tensor(counts, dtype=torch.int32).cumsum(0, dtype=torch.int32).to(x.device, non_blocking=True)


def multiply(products: Callable[[], Iterable[tuple[Tensor, Tensor, Tensor]]]) -> None:
    """Multiplies left by right into the third argument, expert by expert.

    It allocates no tensor, so a memory trace skips it.
    """
    for left, right, into in products():
        torch.mm(left, right, out=into)


def _rows(x: Tensor, counts: Sequence[int]) -> tuple[Tensor, ...]:
    """The rows of each expert."""
    return torch.split(x, list(counts))


def linear(x: Tensor, weight: Tensor, bias: Tensor | None, counts: Sequence[int]) -> Tensor:
    """x [n, in], `counts` rows of each expert; weight [experts, out, in]; bias [experts, out]."""
    out = weighed(lambda kept, values: _Product.apply(kept, values, counts), x, weight, partial(_of_weights, counts))  # type: ignore[no-untyped-call]
    if bias is None:
        return out
    return out + torch.cat([row.expand(number, -1) for row, number in zip(bias, counts, strict=True)])
