"""Learned numbers by distance and head on the scores of attention (T5, arXiv 1910.10683, section 2.1)."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from .block import Block, Context

_FARTHEST = 128  # tokens; all distances from here on share a number (`relative_attention_max_distance` of T5Config)


class RelativeBias(Block):
    """The table of a stack, heads split over tp. All layers of the stack add its numbers to their scores."""

    reads_again = False  # the gradient of a lookup needs no row

    def __init__(self, context: Context, buckets: int, heads: int, hidden: int, *, causal: bool) -> None:
        super().__init__(context)
        self.causal = causal
        self.add("table", [buckets, heads], 1, std=context.numerics.std(hidden))

    def forward(self, length: int) -> Tensor:
        """[heads / tp, length, length]: a number for each pair of query and key."""
        table = self.tensor("table")
        places = torch.arange(length, device=table.device)
        buckets = buckets_of(places - places[:, None], len(table), causal=self.causal)
        out: Tensor = _LookUp.apply(table, buckets)  # type: ignore[no-untyped-call]
        return out


def buckets_of(distances: Tensor, number: int, *, causal: bool) -> Tensor:
    """The row of a table of `number` rows for each distance, the place of a key less that of a query.

    Half of the rows are for single distances, the other half for ranges that grow by a constant factor. Where attention
    is not causal, the second half of all rows is for keys after the query.
    """
    rows = number if causal else number // 2
    first = torch.zeros_like(distances) if causal else (distances > 0) * rows
    far = (-distances).clamp(min=0) if causal else distances.abs()
    single = rows // 2
    ranged = torch.log(far.float() / single) / math.log(_FARTHEST / single) * (rows - single)
    ranged = (single + ranged.clamp(min=0, max=rows).long()).clamp(max=rows - 1)
    return first + torch.where(far < single, far, ranged)


class _LookUp(torch.autograd.Function):
    """Rows [n, heads] by buckets [q, k] -> [heads, q, k]. Gradients of a row are summed in fp32: there are as many as
    pairs of tokens."""

    @staticmethod
    def forward(ctx: Any, table: Tensor, buckets: Tensor) -> Tensor:
        ctx.save_for_backward(buckets)
        ctx.rows = len(table)
        return table.t()[:, buckets]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        (buckets,) = ctx.saved_tensors
        (grad,) = grads
        wide = torch.float64 if grad.dtype == torch.float64 else torch.float32
        sums = torch.zeros(len(grad), ctx.rows, dtype=wide, device=grad.device)
        for of_head, each in zip(sums, grad, strict=True):
            of_head.index_add_(0, buckets.flatten(), each.flatten().to(wide))
        return sums.t().to(grad.dtype).contiguous(), None
