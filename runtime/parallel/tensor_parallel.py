"""Tensor parallelism with sequence parallelism (arXiv 2205.05198), as autograd functions on plain tensors.

Between its regions an activation is [batch, seq / tp, hidden]. A column-parallel product gathers the sequence, keeps
only its own part for the backward pass, and gathers again there. A row-parallel product reduce-scatters its output.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from .comm import Group, gather_sequence
from .split_backward import later, linear


def scatter_sum(x: Tensor, group: Group) -> Tensor:
    """[b, s, h] partial sums of each rank -> this rank's [b, s/tp, h] of the sum."""
    batch, length, width = x.shape
    part = length // group.size
    if batch > 1:
        x = x.view(batch, group.size, part, width).transpose(0, 1)
    out = x.new_empty(batch, part, width)
    return group.reduce_scatter(out, x.contiguous().view(group.size * batch, part, width))


class _Column(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, group: Group, deferrable: bool, num_weights: int, *tensors: Tensor | None
    ) -> tuple[Tensor, ...]:
        weights, biases = tensors[:num_weights], tensors[num_weights:]
        ctx.group, ctx.deferrable = group, deferrable
        # Order of needs_input_grad: x, three arguments that are not tensors, the weights, the biases.
        needs = ctx.needs_input_grad
        ctx.trains, ctx.trains_bias = needs[4 : 4 + num_weights], needs[4 + num_weights :]
        # Frozen weights leave only the gradient of the input, which does not need the input.
        ctx.save_for_backward(x if any(ctx.trains) else None, *weights)
        whole = gather_sequence(x, group)
        return tuple(F.linear(whole, w, b) for w, b in zip(weights, biases, strict=True) if w is not None)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        x, *weights = ctx.saved_tensors
        if not weights:
            raise RuntimeError("a column-parallel product without weights")
        made: list[Tensor | None] = [None] * len(weights)
        trained = [index for index, trains in enumerate(ctx.trains) if trains]
        products, theirs = partial(_column_weights, ctx.group), [grads[index] for index in trained]
        if trained and not (ctx.deferrable and later(products, [weights[index] for index in trained], x, *theirs)):
            for index, grad in zip(trained, products(x, *theirs), strict=True):
                made[index] = grad
        biases = [grad.flatten(0, 1).sum(0) if has else None for grad, has in zip(grads, ctx.trains_bias, strict=True)]
        grad_x = grads[0] @ weights[0]
        for grad, weight in zip(grads[1:], weights[1:], strict=True):
            grad_x.add_(grad @ weight)
        return scatter_sum(grad_x, ctx.group), None, None, None, *made, *biases


def _column_weights(group: Group, x: Tensor, *grads: Tensor) -> list[Tensor]:
    whole = gather_sequence(x, group).flatten(0, 1)
    return [grad.flatten(0, 1).t() @ whole for grad in grads]


def column(
    x: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor | None], group: Group, *, deferrable: bool = True
) -> list[Tensor]:
    """Products of one input with several weights [out / tp, in]: x [b, s/tp, in] -> [b, s, out / tp] each.

    deferrable: `split_backward` may defer their gradients."""
    if group.size == 1:
        product = linear if deferrable else F.linear
        return [product(x, w, b) for w, b in zip(weights, biases, strict=True)]
    result: tuple[Tensor, ...] = _Column.apply(  # type: ignore[no-untyped-call]
        x, group, deferrable, len(weights), *weights, *biases
    )
    return list(result)


class _ScatterSum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Group) -> Tensor:
        ctx.group = group
        return scatter_sum(x, group)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return gather_sequence(grads[0], ctx.group), None


class _GatherSum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Group) -> Tensor:
        ctx.group = group
        return gather_sequence(x, group)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return scatter_sum(grads[0], ctx.group), None


def from_sequence_parts(x: Tensor, group: Group) -> Tensor:
    """[b, s/tp, w] of each rank -> [b, s, w] on all. Each rank uses a different part of it. Differentiable."""
    if group.size == 1:
        return x
    result: Tensor = _GatherSum.apply(x, group)  # type: ignore[no-untyped-call]
    return result


class _Copied(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Group) -> Tensor:
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return ctx.group.all_reduce(grads[0].clone(memory_format=torch.contiguous_format)), None


class _Summed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Group) -> Tensor:
        return group.all_reduce(x.clone())

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return grads[0], None


def copied(x: Tensor, group: Group) -> Tensor:
    """x, equal on all ranks, for a use that differs by rank: its gradient is the sum of theirs."""
    if group.size == 1:
        return x
    result: Tensor = _Copied.apply(x, group)  # type: ignore[no-untyped-call]
    return result


def summed(x: Tensor, group: Group) -> Tensor:
    """The sum of x over the ranks, for a use that is equal on all of them."""
    if group.size == 1:
        return x
    result: Tensor = _Summed.apply(x, group)  # type: ignore[no-untyped-call]
    return result


def row(x: Tensor, weight: Tensor, bias: Tensor | None, group: Group, beside: Tensor | None = None) -> Tensor:
    """x [b, s, in / tp] times weight [out, in / tp], summed over tp -> [b, s/tp, out]. The bias is added once.

    beside: a partial sum [b, s, out] of this rank that is included in the sum.
    """
    alone = group.size == 1
    out = linear(x, weight, bias if alone else None, group=None if alone else group)
    out = out if beside is None else out + beside
    if alone:
        return out
    out = to_sequence_parts(out, group)
    return out if bias is None else out + bias


def to_sequence_parts(x: Tensor, group: Group) -> Tensor:
    """Partial sums [b, s, h] -> [b, s/tp, h] of the sum, differentiable."""
    result: Tensor = _ScatterSum.apply(x, group)  # type: ignore[no-untyped-call]
    return result


def embed(tokens: Tensor, weight: Tensor, first_row: int, group: Group) -> Tensor:
    """Looks tokens [b, s] up in a table split over tp: weight [rows, h] from row `first_row` on -> [b, s/tp, h]."""
    if group.size == 1:
        return F.embedding(tokens, weight)
    local = tokens - first_row
    elsewhere = (local < 0) | (local >= weight.shape[0])
    rows = F.embedding(local.masked_fill(elsewhere, 0), weight)
    return to_sequence_parts(rows.masked_fill(elsewhere[..., None], 0.0), group)


IGNORED = -1  # a target without a loss
_CAPPED_ROWS = 128  # tokens per block of capped logits in the backward pass


class _CrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, logits: Tensor, targets: Tensor, first: int, group: Group, softcap: float | None
    ) -> Tensor:
        # A copy that is changed in place, so that only the logits and their softmax exist.
        values = logits.to(torch.float64 if logits.dtype == torch.float64 else torch.float32, copy=True)
        if softcap is not None:
            values.div_(softcap).tanh_().mul_(softcap)
        highest = group.all_reduce(values.amax(-1), dist.ReduceOp.MAX)
        local = targets - first
        elsewhere = (local < 0) | (local >= logits.shape[-1])
        local = local.masked_fill(elsewhere, 0)
        shifted = values.sub_(highest[..., None])
        picked = shifted.gather(-1, local[..., None]).squeeze(-1).masked_fill(elsewhere, 0.0)
        softmax = shifted.exp_()
        sums = group.all_reduce(torch.stack((softmax.sum(-1), picked)))
        softmax.div_(sums[0][..., None])
        # A capped logit is the logarithm of its probability plus the log-sum-exp of its row.
        total = None if softcap is None else highest + sums[0].log()
        ctx.save_for_backward(softmax, local, elsewhere, total)
        ctx.dtype, ctx.softcap = logits.dtype, softcap
        return sums[0].log() - sums[1]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        softmax, local, elsewhere, total = ctx.saved_tensors
        here = (~elsewhere).to(softmax.dtype)
        # This function owns the tensor and uses it once. Changing it in place avoids a third copy of the logits.
        for row in range(len(softmax)) if total is not None else ():
            _uncapped(softmax[row], local[row], here[row], total[row], ctx.softcap)
        if total is None:
            softmax.scatter_add_(-1, local[..., None], -here[..., None])
        return softmax.mul_(grads[0][..., None]).to(ctx.dtype), None, None, None, None


def _uncapped(softmax: Tensor, local: Tensor, here: Tensor, total: Tensor, softcap: float) -> None:
    """Converts probabilities [s, vocab] to gradients of the logits before their softcap, in blocks of tokens."""
    for first in range(0, len(softmax), _CAPPED_ROWS):
        rows = slice(first, first + _CAPPED_ROWS)
        part = softmax[rows]
        tanh = part.log().add_(total[rows, None]).div_(softcap).clamp_(-1, 1)
        part.scatter_add_(-1, local[rows, None], -here[rows, None]).mul_(tanh.square_().neg_().add_(1))


def cross_entropy(
    logits: Tensor, targets: Tensor, first: int, group: Group, softcap: float | None = None, *, ignores: bool = False
) -> Tensor:
    """Sum of the losses in nats; logits [b, s, vocab / tp] from vocabulary entry `first` on, targets [b, s].

    softcap c: logits become c tanh(logit / c). ignores: targets that are IGNORED have no loss.
    """
    losses = token_losses(logits, targets, first, group, softcap)
    return (losses.masked_fill(targets == IGNORED, 0.0) if ignores else losses).sum()


def token_losses(logits: Tensor, targets: Tensor, first: int, group: Group, softcap: float | None) -> Tensor:
    """The losses of tokens [b, s] in nats, as in `cross_entropy`, without regard to IGNORED."""
    losses: Tensor = _CrossEntropy.apply(logits, targets, first, group, softcap)  # type: ignore[no-untyped-call]
    return losses
