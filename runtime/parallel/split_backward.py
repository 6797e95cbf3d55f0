"""The backward pass in two parts (arXiv 2401.10241): gradients of inputs first, those of weights later.

A product's backward pass is two products: the gradient of its input, which the stage before waits for, and that of its
weights, for which nobody waits. Inside `put_off` the functions of this package make only the first; of the second
they keep what it needs: the product's input and the gradient of its output. Everything else that a backward pass does
(recomputation, norms, biases, embeddings) is done at once, and so is the product of the head: waiting, it would keep
gradients of the size of the logits.
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
    """Gradients of weights that were put off."""

    # Of parameters: what makes the gradients, of which ones, from what.
    direct: list[tuple[Products, Sequence[Tensor], Sequence[Tensor]]] = field(default_factory=list)
    # Of other tensors, as a saved weight is under recomputation: autograd brings these to their parameters.
    roots: list[Tensor] = field(default_factory=list)


class _State:
    """One per process, as a rank is one; not per thread, since autograd runs a GPU's backward passes in its own."""

    splits = False
    late: Late | None = None


@contextmanager
def splitting(splits: bool) -> Iterator[None]:
    """Around the passes of a step: products made inside can put off their weights' gradients."""
    before, _State.splits = _State.splits, splits
    try:
        yield
    finally:
        _State.splits = before


@contextmanager
def put_off() -> Iterator[Late]:
    """Around a backward pass: collects, instead of gradients of weights, what `make` makes them from."""
    _State.late = late = Late()
    try:
        yield late
    finally:
        _State.late = None


def make(late: Late) -> None:
    """Gradients of weights that were put off, the last ones first; what they needed is let go one by one."""
    with torch.no_grad():
        while late.direct:
            products, weights, kept = late.direct.pop()
            for weight, gradient in zip(weights, products(*kept), strict=True):
                _accumulate(weight, gradient)
    if late.roots:
        torch.autograd.backward(late.roots)


def _accumulate(weight: Tensor, gradient: Tensor) -> None:
    """As the end of a backward pass does, without the tenth of a millisecond that autograd takes for each."""
    weight.grad = gradient if weight.grad is None else weight.grad.add_(gradient)
    for hook in (weight._post_accumulate_grad_hooks or {}).values():
        hook(weight)


def later(products: Products, weights: Sequence[Tensor], *kept: Tensor) -> bool:
    """Puts off the gradients of `weights`, which are `products(*kept)`; False where they have to be made now."""
    if _State.late is None:
        return False
    inputs = [tensor.detach() for tensor in kept]
    # Under recomputation a saved weight comes back as another tensor, whose .grad nobody looks at.
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
    """Keeps the input of a product. It does so before the product runs: a recomputed layer ends before its last one."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        return grads[0]


class _Weighed(torch.autograd.Function):
    """The output of a product; backward the gradient of its weight, now or later."""

    @staticmethod
    def forward(ctx: Any, out: Tensor, kept: Any, weight: Tensor, products: Products, group: Group | None) -> Tensor:
        # Not `save_for_backward`, after which a recomputed layer would end: the weight is no activation.
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
    """torch's `linear`, whose weight's gradient can be put off. group: ranks that all have the gradient of the output,
    [b, s, out]; each keeps its part of s, and they gather it again."""
    return weighed(partial(F.linear, bias=bias), x, weight, _product, group)


def weighed(
    product: Callable[[Tensor, Tensor], Tensor], x: Tensor, weight: Tensor, products: Products,
    group: Group | None = None,
) -> Tensor:  # fmt: skip
    """product(x, weight), of which `products` (of x and the gradient of the output) makes the gradient of the weight,
    now or later. group: as `linear`."""
    if not (_State.splits and x.requires_grad and weight.requires_grad):
        return product(x, weight)
    kept: Tensor = _Kept.apply(x)  # type: ignore[no-untyped-call]
    made = product(kept, weight.detach())
    out: Tensor = _Weighed.apply(made, kept.grad_fn, weight, products, group)  # type: ignore[no-untyped-call]
    return out
