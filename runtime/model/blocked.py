"""Causal attention with windows, softcaps and sinks, computed in blocks of queries with torch operations.

Like flash attention it keeps queries, keys, values, output and log-sum-exp, and recomputes the scores in the backward
pass. It skips keys before the window. No torch kernel has all three features without compilation.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

_ELEMENTS = 1 << 21  # scores of one tensor that exist at a time


@dataclass(frozen=True)
class Scores:
    """Changes of scores before their softmax."""

    window: int | None = None  # tokens that a query sees, including itself; None: all before it
    softcap: float | None = None  # c: scores become c tanh(score / c)

    def cuts(self, length: int) -> bool:
        """Whether the window is shorter than sequences of `length`."""
        return self.window is not None and self.window < length


@dataclass(frozen=True)
class _Part:
    """A block of queries, and the keys that at least one of them sees."""

    rows: slice
    columns: slice
    hidden: Tensor  # [rows, columns], True where a query does not see a key


def _parts(q: Tensor, scores: Scores) -> Iterator[_Part]:
    batch, heads, length, _ = q.shape
    seen = length if scores.window is None else min(scores.window, length)
    number = max(_ELEMENTS // (batch * heads * max(seen, 1)), 16)
    for first in range(0, length, number):
        last = min(first + number, length)
        start = max(first + 1 - seen, 0)
        distance = torch.arange(first, last, device=q.device)[:, None] - torch.arange(start, last, device=q.device)
        yield _Part(slice(first, last), slice(start, last), (distance < 0) | (distance >= seen))


def _scores(q: Tensor, k: Tensor, part: _Part, how: Scores) -> tuple[Tensor, Tensor | None]:
    """Scores of queries [b, g, r, n, d] and keys [b, g, 1, m, d] in float32 or wider, and the tanh of a softcap."""
    raw = q @ k.transpose(-1, -2)
    values = raw.to(_wide(q)).mul_(q.shape[-1] ** -0.5)
    tanh = None
    if how.softcap is not None:
        tanh = values.div_(how.softcap).tanh_()
        values = tanh * how.softcap
    return values.masked_fill_(part.hidden, float("-inf")), tanh


def _wide(x: Tensor) -> torch.dtype:
    return torch.float64 if x.dtype == torch.float64 else torch.float32


def _grouped(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """q [b, heads, s, d] as [b, g, heads / g, s, d], with the g heads of k and v [b, g, 1, s, d]."""
    batch, groups = k.shape[:2]
    return q.view(batch, groups, -1, *q.shape[2:]), k[:, :, None], v[:, :, None]


class _Blocked(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None, how: Scores) -> Tensor:
        q = q.contiguous()
        grouped, keys, values = _grouped(q, k, v)
        out = q.new_empty(*grouped.shape[:-1], v.shape[-1])
        sums = q.new_empty(grouped.shape[:-1], dtype=_wide(q))
        sink = None if sinks is None else sinks.to(sums.dtype).view(1, k.shape[1], -1, 1)
        for part in _parts(q, how):
            scores, _ = _scores(grouped[..., part.rows, :], keys[..., part.columns, :], part, how)
            total = scores.logsumexp(-1)
            total = total if sink is None else torch.logaddexp(total, sink)
            weights = scores.sub_(total[..., None]).exp_().to(q.dtype)
            out[..., part.rows, :] = weights @ values[..., part.columns, :]
            sums[..., part.rows] = total
        ctx.save_for_backward(q, k, v, out, sums, sinks)
        ctx.how = how
        return out.view(*q.shape[:-1], v.shape[-1])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, out, sums, sinks = ctx.saved_tensors
        grouped, keys, values = _grouped(q, k, v)
        grad = grads[0].contiguous().view(out.shape)
        share = (grad.to(sums.dtype) * out).sum(-1)  # the softmax subtracts this from each score gradient
        grad_q = torch.empty_like(grouped)
        grad_k, grad_v = (torch.zeros_like(x, dtype=sums.dtype) for x in (k, v))
        for part in _parts(q, ctx.how):
            rows, columns = part.rows, part.columns
            scores, tanh = _scores(grouped[..., rows, :], keys[..., columns, :], part, ctx.how)
            weights = scores.sub_(sums[..., rows, None]).exp_()
            of_scores = (grad[..., rows, :] @ values[..., columns, :].transpose(-1, -2)).to(sums.dtype)
            of_scores.sub_(share[..., rows, None]).mul_(weights).mul_(q.shape[-1] ** -0.5)
            if tanh is not None:
                of_scores.mul_(1 - tanh.square())
            narrow = of_scores.to(q.dtype)
            grad_q[..., rows, :] = narrow @ keys[..., columns, :]
            grad_k[:, :, columns].add_((narrow.transpose(-1, -2) @ grouped[..., rows, :]).sum(2))
            grad_v[:, :, columns].add_((weights.to(q.dtype).transpose(-1, -2) @ grad[..., rows, :]).sum(2))
        grad_sinks = None
        if sinks is not None:
            kept = (sinks.to(sums.dtype).view(1, k.shape[1], -1, 1) - sums).exp_()
            grad_sinks = kept.mul_(share).sum((0, 3)).neg_().view_as(sinks).to(sinks.dtype)
        return grad_q.view_as(q), grad_k.to(k.dtype), grad_v.to(v.dtype), grad_sinks, None


def blocked(q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None, how: Scores) -> Tensor:
    """Causal attention: q [b, heads, s, d], k and v [b, heads or fewer, s, d].

    sinks [heads]: a score per head that takes a share of the softmax without a value (arXiv 2309.17453; learned, as in
    gpt-oss).
    """
    out: Tensor = _Blocked.apply(q, k, v, sinks, how)  # type: ignore[no-untyped-call]
    return out
