"""Tensor parallelism with sequence parallelism (arXiv 2205.05198), as autograd functions on plain tensors.

Between its regions an activation is [batch, seq / tp, hidden]. A column-parallel product gathers the sequence and
keeps only its own part of it for the backward pass, where it gathers again; a row-parallel one sums and scatters it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from .comm import Group


def gather_sequence(x: Tensor, group: Group) -> Tensor:
    """[b, s/tp, h] of each rank -> [b, s, h]."""
    batch, part, width = x.shape
    out = x.new_empty(group.size * batch, part, width)
    group.all_gather(out, x.contiguous())
    if batch == 1:
        return out.view(1, group.size * part, width)
    return out.view(group.size, batch, part, width).transpose(0, 1).reshape(batch, group.size * part, width)


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
    def forward(ctx: Any, x: Tensor, group: Group, num_weights: int, *tensors: Tensor | None) -> tuple[Tensor, ...]:
        weights, biases = tensors[:num_weights], tensors[num_weights:]
        ctx.group, ctx.has_bias = group, [bias is not None for bias in biases]
        ctx.save_for_backward(x, *weights)
        whole = gather_sequence(x, group)
        return tuple(F.linear(whole, w, b) for w, b in zip(weights, biases, strict=True) if w is not None)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, *weights = ctx.saved_tensors
        whole = gather_sequence(x, ctx.group).flatten(0, 1)
        grad_x: Tensor | None = None
        grad_weights, grad_biases = [], []
        for grad, weight, has_bias in zip(grads, weights, ctx.has_bias, strict=True):
            flat = grad.flatten(0, 1)
            grad_weights.append(flat.t() @ whole)
            grad_biases.append(flat.sum(0) if has_bias else None)
            grad_x = grad @ weight if grad_x is None else grad_x.add_(grad @ weight)
        if grad_x is None:
            raise RuntimeError("a column-parallel product without weights")
        return scatter_sum(grad_x, ctx.group), None, None, *grad_weights, *grad_biases


def column(x: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor | None], group: Group) -> list[Tensor]:
    """Products of one input with several weights [out / tp, in]: x [b, s/tp, in] -> [b, s, out / tp] each."""
    if group.size == 1:
        return [F.linear(x, w, b) for w, b in zip(weights, biases, strict=True)]
    result: tuple[Tensor, ...] = _Column.apply(x, group, len(weights), *weights, *biases)  # type: ignore[no-untyped-call]
    return list(result)


class _ScatterSum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Group) -> Tensor:
        ctx.group = group
        return scatter_sum(x, group)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return gather_sequence(grads[0], ctx.group), None


def row(x: Tensor, weight: Tensor, bias: Tensor | None, group: Group) -> Tensor:
    """x [b, s, in / tp] times weight [out, in / tp], summed over tp -> [b, s/tp, out]. The bias is added once."""
    if group.size == 1:
        return F.linear(x, weight, bias)
    out = to_sequence_parts(F.linear(x, weight), group)
    return out if bias is None else out + bias


def to_sequence_parts(x: Tensor, group: Group) -> Tensor:
    """Partial sums [b, s, h] -> [b, s/tp, h] of the sum, differentiable."""
    result: Tensor = _ScatterSum.apply(x, group)  # type: ignore[no-untyped-call]
    return result


def embed(tokens: Tensor, weight: Tensor, first_row: int, group: Group) -> Tensor:
    """Rows of a table split over tp: tokens [b, s], weight [rows, h] from row `first_row` on -> [b, s/tp, h]."""
    if group.size == 1:
        return F.embedding(tokens, weight)
    local = tokens - first_row
    elsewhere = (local < 0) | (local >= weight.shape[0])
    found = F.embedding(local.masked_fill(elsewhere, 0), weight)
    return to_sequence_parts(found.masked_fill(elsewhere[..., None], 0.0), group)


class _CrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor, first: int, group: Group) -> Tensor:
        # A copy of its own, changed in place: logits and their softmax are all that there ever is.
        values = logits.to(torch.float64 if logits.dtype == torch.float64 else torch.float32, copy=True)
        highest = group.all_reduce(values.amax(-1), dist.ReduceOp.MAX)
        local = targets - first
        elsewhere = (local < 0) | (local >= logits.shape[-1])
        local = local.masked_fill(elsewhere, 0)
        shifted = values.sub_(highest[..., None])
        picked = shifted.gather(-1, local[..., None]).squeeze(-1).masked_fill(elsewhere, 0.0)
        softmax = shifted.exp_()
        sums = group.all_reduce(torch.stack((softmax.sum(-1), picked)))
        softmax.div_(sums[0][..., None])
        ctx.save_for_backward(softmax, local, elsewhere)
        ctx.dtype = logits.dtype
        return (sums[0].log() - sums[1]).sum()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None]:
        softmax, local, elsewhere = ctx.saved_tensors
        here = (~elsewhere).to(softmax.dtype)
        # The tensor is this function's own and used once: changed in place, the logits cost no third copy.
        softmax.scatter_add_(-1, local[..., None], -here[..., None])
        return softmax.mul_(grads[0]).to(ctx.dtype), None, None, None


def cross_entropy(logits: Tensor, targets: Tensor, first: int, group: Group) -> Tensor:
    """Sum of the losses in nats; logits [b, s, vocab / tp] from token `first` on, targets [b, s]."""
    result: Tensor = _CrossEntropy.apply(logits, targets, first, group)  # type: ignore[no-untyped-call]
    return result
