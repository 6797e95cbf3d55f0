"""Attention with windows, softcaps, sinks and biases of scores, computed in blocks of queries with torch operations.

Like flash attention it keeps queries, keys, values, output and log-sum-exp, and recomputes the scores in the backward
pass. It skips keys before the window. No torch kernel has all these features without compilation; the one that takes a
bias makes its gradient for every sequence, as large as all scores.
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
    causal: bool = True  # a query sees no later tokens

    def cuts(self, length: int) -> bool:
        """Whether the window is shorter than sequences of `length`."""
        return self.window is not None and self.window < length


PLAIN = Scores()  # no change


@dataclass(frozen=True)
class _Part:
    """A block of queries, and the keys that at least one of them sees."""

    rows: slice
    columns: slice
    hidden: Tensor | None  # [rows, columns], True where a query does not see a key; None: it sees all


def _parts(q: Tensor, scores: Scores) -> Iterator[_Part]:
    batch, heads, length, _ = q.shape
    seen = length if scores.window is None else min(scores.window, length)
    number = max(_ELEMENTS // (batch * heads * max(seen, 1)), 16)
    for first in range(0, length, number):
        last = min(first + number, length)
        if not scores.causal:
            yield _Part(slice(first, last), slice(0, length), None)
            continue
        start = max(first + 1 - seen, 0)
        distance = torch.arange(first, last, device=q.device)[:, None] - torch.arange(start, last, device=q.device)
        yield _Part(slice(first, last), slice(start, last), (distance < 0) | (distance >= seen))


def _scores(
    q: Tensor, k: Tensor, part: _Part, how: Scores, bias: Tensor | None, padding: Tensor | None
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """Scores of queries [b, g, r, s, d] and keys [b, g, 1, s, d] of a part in float32 or wider, and the tanh of a
    softcap. bias: [g, r, s, s]. padding: True [b, s] for keys that no query sees."""
    raw = q[..., part.rows, :] @ k[..., part.columns, :].transpose(-1, -2)
    values = raw.to(_wide(q)).mul_(q.shape[-1] ** -0.5)
    tanh = None
    if how.softcap is not None:
        tanh = values.div_(how.softcap).tanh_()
        values = tanh * how.softcap
    if bias is not None:
        values.add_(bias[..., part.rows, part.columns])
    if padding is not None:
        values.masked_fill_(padding[:, None, None, None, part.columns], float("-inf"))
    return values if part.hidden is None else values.masked_fill_(part.hidden, float("-inf")), tanh


def _wide(x: Tensor) -> torch.dtype:
    return torch.float64 if x.dtype == torch.float64 else torch.float32


def _grouped(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """q [b, heads, s, d] as [b, g, heads / g, s, d], with the g heads of k and v [b, g, 1, s, d]."""
    batch, groups = k.shape[:2]
    return q.view(batch, groups, -1, *q.shape[2:]), k[:, :, None], v[:, :, None]


class _Blocked(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None, how: Scores, bias: Tensor | None,
        padding: Tensor | None,
    ) -> Tensor:  # fmt: skip
        q = q.contiguous()
        grouped, keys, values = _grouped(q, k, v)
        # Tokens before heads, so that the product behind it takes this tensor and not a copy, which would be kept, too.
        out = q.new_empty(len(q), q.shape[2], *grouped.shape[1:3], v.shape[-1]).permute(0, 2, 3, 1, 4)
        sums = q.new_empty(grouped.shape[:-1], dtype=_wide(q))
        sink = None if sinks is None else sinks.to(sums.dtype).view(1, k.shape[1], -1, 1)
        biases = None if bias is None else bias.view(*grouped.shape[1:3], *bias.shape[1:])
        for part in _parts(q, how):
            scores, _ = _scores(grouped, keys, part, how, biases, padding)
            total = scores.logsumexp(-1)
            total = total if sink is None else torch.logaddexp(total, sink)
            weights = scores.sub_(total[..., None]).exp_().to(q.dtype)
            out[..., part.rows, :] = weights @ values[..., part.columns, :]
            sums[..., part.rows] = total
        ctx.save_for_backward(q, k, v, out, sums, sinks, bias, padding)
        ctx.how = how
        return out.flatten(1, 2)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, out, sums, sinks, bias, padding = ctx.saved_tensors
        grouped, keys, values = _grouped(q, k, v)
        grad = grads[0].contiguous().view(out.shape)
        grad_q = torch.empty_like(grouped)
        grad_k, grad_v = (torch.zeros_like(x, dtype=sums.dtype) for x in (k, v))
        biases = None if bias is None else bias.view(*grouped.shape[1:3], *bias.shape[1:])
        grad_bias = None if biases is None else torch.zeros_like(biases)
        grad_sinks = None if sinks is None else torch.zeros_like(sinks, dtype=sums.dtype)
        for part in _parts(q, ctx.how):
            rows, columns = part.rows, part.columns
            scores, tanh = _scores(grouped, keys, part, ctx.how, biases, padding)
            weights = scores.sub_(sums[..., rows, None]).exp_()
            of_scores = (grad[..., rows, :] @ values[..., columns, :].transpose(-1, -2)).to(sums.dtype)
            # The softmax subtracts this from each score gradient.
            share = (grad[..., rows, :].to(sums.dtype) * out[..., rows, :]).sum(-1)
            if sinks is not None and grad_sinks is not None:
                kept = (sinks.to(sums.dtype).view(1, k.shape[1], -1, 1) - sums[..., rows]).exp_()
                grad_sinks.sub_(kept.mul_(share).sum((0, 3)).view_as(sinks))
            of_scores.sub_(share[..., None]).mul_(weights)
            if grad_bias is not None:  # each of its elements is in one part
                grad_bias[..., rows, columns] = of_scores.sum(0)
            of_scores.mul_(q.shape[-1] ** -0.5)
            if tanh is not None:
                of_scores.mul_(1 - tanh.square())
            narrow = of_scores.to(q.dtype)
            grad_q[..., rows, :] = narrow @ keys[..., columns, :]
            grad_k[:, :, columns].add_((narrow.transpose(-1, -2) @ grouped[..., rows, :]).sum(2))
            grad_v[:, :, columns].add_((weights.to(q.dtype).transpose(-1, -2) @ grad[..., rows, :]).sum(2))
        of_sinks = None if grad_sinks is None or sinks is None else grad_sinks.to(sinks.dtype)
        of_bias = None if grad_bias is None or bias is None else grad_bias.view_as(bias)
        return grad_q.view_as(q), grad_k.to(k.dtype), grad_v.to(v.dtype), of_sinks, None, of_bias, None


def blocked(
    q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None = None, how: Scores = PLAIN, bias: Tensor | None = None,
    padding: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """Attention: q [b, heads, s, d], k and v [b, heads or fewer, s, d].

    sinks [heads]: a score per head that takes a share of the softmax without a value (arXiv 2309.17453; learned, as in
    gpt-oss). bias [heads, s, s]: added to scaled and capped scores. padding: True [b, s] for keys that no query sees; a
    row has others, too, in front of them where attention is causal.
    """
    out: Tensor = _Blocked.apply(q, k, v, sinks, how, bias, padding)  # type: ignore[no-untyped-call]
    return out
