"""Products of rows that lie expert by expert with a weight of each: [n, in] x [experts, out, in] -> [n, out].

One function for all experts, as a grouped product of a GPU is one kernel: the gradient of all their weights is made
once, in place, and no expert's waits for the others'.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ..parallel.split_backward import weighed


class _Product(torch.autograd.Function):
    """Keeps the rows and the weights."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, counts: Sequence[int]) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.counts = counts
        out = x.new_empty(len(x), weight.shape[1])
        multiply(lambda: zip(_rows(x, counts), weight.transpose(1, 2), _rows(out, counts), strict=True))
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        (x, weight), (grad,) = ctx.saved_tensors, grads
        grad_x = torch.empty_like(x) if ctx.needs_input_grad[0] else None
        if grad_x is not None:
            multiply(lambda: zip(_rows(grad, ctx.counts), weight, _rows(grad_x, ctx.counts), strict=True))
        return grad_x, _of_weights(ctx.counts, x, grad)[0] if ctx.needs_input_grad[1] else None, None


def multiply(products: Callable[[], Iterable[tuple[Tensor, Tensor, Tensor]]]) -> None:
    """Left times right into the third, one expert after the other. It makes no tensor but views: a trace, which has no
    values, leaves it out."""
    for left, right, into in products():
        torch.mm(left, right, out=into)


def _rows(x: Tensor, counts: Sequence[int]) -> tuple[Tensor, ...]:
    """Those of each expert."""
    return torch.split(x, list(counts))


def _of_weights(counts: Sequence[int], x: Tensor, grad: Tensor) -> list[Tensor]:
    """Zero for experts without rows: their gradient is there too."""
    gradients = x.new_empty(len(counts), grad.shape[1], x.shape[1])
    multiply(lambda: zip((rows.t() for rows in _rows(grad, counts)), _rows(x, counts), gradients, strict=True))
    return [gradients]


def linear(x: Tensor, weight: Tensor, bias: Tensor | None, counts: Sequence[int]) -> Tensor:
    """x [n, in], `counts` rows of each expert; weight [experts, out, in]; bias [experts, out]."""
    out = weighed(lambda kept, values: _Product.apply(kept, values, counts), x, weight, partial(_of_weights, counts))  # type: ignore[no-untyped-call]
    if bias is None:
        return out
    return out + torch.cat([row.expand(number, -1) for row, number in zip(bias, counts, strict=True)])
