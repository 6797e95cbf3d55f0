"""Flash attention (arXiv 2307.08691) over parts of the keys: torch's kernels, and the sum of partial results."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

_ATEN = torch.ops.aten


@dataclass(frozen=True)
class Kernel:
    """Attention of q [b, heads, s, d] over k and v [b, fewer heads, n, d]; causal only where s = n.

    forward(q, k, v, causal): output and log-sum-exp [b, heads, s]. backward(grad, q, k, v, out, lse, causal): gradients
    of q, k and v. k and v may be a part of the keys if output and log-sum-exp are those over all keys.
    """

    forward: Callable[[Tensor, Tensor, Tensor, bool], tuple[Tensor, Tensor]]
    backward: Callable[[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, bool], tuple[Tensor, Tensor, Tensor]]


def _on_cpu(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> tuple[Tensor, Tensor]:
    result: tuple[Tensor, Tensor] = _ATEN._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, causal)
    return result


def _back_on_cpu(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, causal: bool
) -> tuple[Tensor, Tensor, Tensor]:
    result: tuple[Tensor, Tensor, Tensor] = _ATEN._scaled_dot_product_flash_attention_for_cpu_backward(
        grad.contiguous(), q, k, v, out, lse, 0.0, causal
    )
    return result


def _on_gpu(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> tuple[Tensor, Tensor]:
    result = _ATEN._scaled_dot_product_flash_attention(q, k, v, 0.0, causal)
    return result[0], result[1]


def _back_on_gpu(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, causal: bool
) -> tuple[Tensor, Tensor, Tensor]:
    seed = torch.empty(2, dtype=torch.uint64, device=q.device)  # of dropout, unused here
    result: tuple[Tensor, Tensor, Tensor] = _ATEN._scaled_dot_product_flash_attention_backward(
        grad, q, k, v, out, lse.contiguous(), None, None, q.shape[2], k.shape[2], 0.0, causal, seed, seed.new_empty(())
    )
    return result


CPU, GPU = Kernel(_on_cpu, _back_on_cpu), Kernel(_on_gpu, _back_on_gpu)


class Total:
    """Attention over the keys so far, in the dtype of log-sum-exp. All queries see the first part of the keys."""

    def __init__(self, out: Tensor, lse: Tensor) -> None:
        self.out, self.lse = out.to(lse.dtype), lse

    def add(self, rows: slice, out: Tensor, lse: Tensor) -> None:
        """Adds keys for the queries `rows`: weights both outputs by their shares of the sum of exponentials."""
        before, sums = self.out[:, :, rows], self.lse[:, :, rows]
        before.lerp_(out.to(before.dtype), torch.sigmoid(lse - sums)[..., None])
        sums.copy_(torch.logaddexp(sums, lse))
