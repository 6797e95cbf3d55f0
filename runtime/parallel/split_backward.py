"""Split backward pass (arXiv 2401.10241): input gradients first, weight gradients later.

The backward pass of a product has two products: the gradient of its input, which the previous stage needs, and that of
its weights, which no stage waits for. Inside `put_off` the functions of this package compute only the first. For the
second they keep the product's input and the gradient of its output. The rest of a backward pass (recomputation, norms,
biases, embeddings) runs at once. The product of the head also runs at once, because deferring it would keep gradients
of the size of the logits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .comm import Group, gather_sequence

Products = Callable[..., Sequence[Tensor]]


@dataclass(frozen=True)
class Late:
    """Deferred gradients of weights."""

    # For parameters: the function that computes the gradients, the parameters, the kept tensors.
    direct: list[tuple[Products, Sequence[Tensor], Sequence[Tensor]]] = field(default_factory=list)
    # For other tensors, such as saved weights under recomputation. Autograd passes these gradients to parameters.
    roots: list[Tensor] = field(default_factory=list)


class _State:
    """The state of this process, which is one rank. It is not per thread: autograd runs a GPU's passes in its own."""

    splits = False
    late: Late | None = None


@contextmanager
def splitting(splits: bool) -> Iterator[None]:
    """Context around the passes of a step. Its products can defer their weight gradients."""
    before, _State.splits = _State.splits, splits
    try:
        yield
    finally:
        _State.splits = before


@contextmanager
def put_off() -> Iterator[Late]:
    """Context around a backward pass. It collects inputs for `make` instead of weight gradients."""
    _State.late = late = Late()
    try:
        yield late
    finally:
        _State.late = None


def make(late: Late) -> None:
    """Computes deferred weight gradients, the last ones first, and frees their inputs one by one."""
    with torch.no_grad():
        while late.direct:
            products, weights, kept = late.direct.pop()
            for weight, gradient in zip(weights, products(*kept), strict=True):
                _accumulate(weight, gradient)
    if late.roots:
        torch.autograd.backward(late.roots)


def _accumulate(weight: Tensor, gradient: Tensor) -> None:
    """Accumulates gradients like the end of a backward pass, without autograd's 0.1 ms per gradient."""
    weight.grad = gradient if weight.grad is None else weight.grad.add_(gradient)
    for hook in (weight._post_accumulate_grad_hooks or {}).values():
        hook(weight)


def later(products: Products, weights: Sequence[Tensor], *kept: Tensor) -> bool:
    """Defers the gradients of `weights`, which are `products(*kept)`. False if they must be computed now."""
    if _State.late is None:
        return False
    inputs = [tensor.detach() for tensor in kept]
    # Under recomputation a saved weight returns as another tensor, whose .grad is not used.
    if all(isinstance(weight, torch.nn.Parameter) for weight in weights):
        _State.late.direct.append((products, weights, inputs))
        return True
    with torch.enable_grad():
        root: Tensor = _Later.apply(products, len(weights), *weights, *inputs)  # type: ignore[no-untyped-call]
    _State.late.roots.append(root)
    return True


class _Later(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, products: Products, num_weights: int, *tensors: Tensor) -> Tensor:
        ctx.products, ctx.num_kept = products, len(tensors) - num_weights
        ctx.save_for_backward(*tensors[num_weights:])
        return tensors[0].new_zeros(())

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        return None, None, *ctx.products(*ctx.saved_tensors), *[None] * ctx.num_kept


class _Kept(torch.autograd.Function):
    """Keeps the input of a product before the product runs, because a recomputed layer ends before its last product."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        return grads[0]


class _Weighed(torch.autograd.Function):
    """The output of a product. The backward pass computes or defers the gradient of its weight."""

    @staticmethod
    def forward(ctx: Any, out: Tensor, kept: Any, weight: Tensor, products: Products, group: Group | None) -> Tensor:
        # Not `save_for_backward`, which would end a recomputed layer. The weight is not an activation.
        ctx.kept, ctx.weight, ctx.products, ctx.group = kept, weight, products, group
        return out.view_as(out)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, Tensor | None, None, None]:
        (x,), (grad,) = ctx.kept.saved_tensors, grads
        if _State.late is None:
            return grad, None, ctx.products(x, grad)[0], None, None
        if ctx.group is None:
            later(ctx.products, [ctx.weight], x, grad)
        else:
            part = grad.chunk(ctx.group.size, dim=1)[ctx.group.rank].clone()
            later(partial(_gathered_product, ctx.group), [ctx.weight], x, part)
        return grad, None, None, None, None


def _product(x: Tensor, grad: Tensor) -> list[Tensor]:
    return [grad.flatten(0, -2).t() @ x.flatten(0, -2)]


def _gathered_product(group: Group, x: Tensor, part: Tensor) -> list[Tensor]:
    return _product(x, gather_sequence(part, group))


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None, group: Group | None = None) -> Tensor:
    """torch's `linear` with a deferrable weight gradient.

    group: ranks that all have the gradient of the output [b, s, out]. Each keeps its part of s and gathers it again.
    """
    return weighed(partial(F.linear, bias=bias), x, weight, _product, group)


def weighed(
    product: Callable[[Tensor, Tensor], Tensor], x: Tensor, weight: Tensor, products: Products,
    group: Group | None = None,
) -> Tensor:  # fmt: skip
    """product(x, weight) with a deferrable weight gradient, computed by `products` from x and the output gradient.

    group: see `linear`.
    """
    if not (_State.splits and x.requires_grad and weight.requires_grad):
        return product(x, weight)
    kept: Tensor = _Kept.apply(x)  # type: ignore[no-untyped-call]
    made = product(kept, weight.detach())
    out: Tensor = _Weighed.apply(made, kept.grad_fn, weight, products, group)  # type: ignore[no-untyped-call]
    return out
