"""The load-balancing loss of experts (Switch Transformers, arXiv 2101.03961, 2.2).

Each layer of experts adds coefficient x sum over experts of load x mean score. The load of an expert is the number of
tokens that chose it over the mean of all experts; it has no gradient. Load and score are those of a micro-batch
(aux_loss of Megatron Core, moe_utils.py, switch_load_balancing_loss_func) or of each sequence (seq_aux_loss there;
DeepSeek-V3, arXiv 2412.19437, 2.1.2). The loss of a step is the mean over its sequences.

No activation carries the loss. Its gradient depends on the scores of one layer and is added to them in the backward
pass of that layer. transformers sums loads and scores over all layers before it multiplies them. Stages would have to
exchange loads for that, and one layer's imbalance could cancel that of another. The two losses are equal for a single
layer of experts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ...cost_models.specs.model import MixtureOfExperts, ModelSpec
from ..parallel.comm import Group


@dataclass(frozen=True)
class Balancing:
    """The coefficient of the loss, and the tokens that it covers."""

    per_token: float  # coefficient divided by the tokens of a step, so that all reductions of gradients are sums
    per_sequence: bool  # loads are counted per sequence; else per micro-batch

    @classmethod
    def of(cls, model: ModelSpec, tokens_per_step: int) -> Balancing | None:
        """None for a model without the loss."""
        if not model.moe_aux_loss_coeff:
            return None
        return cls(model.moe_aux_loss_coeff / tokens_per_step, model.moe_aux_loss_per_sequence)

    def loss(
        self, spec: MixtureOfExperts, scores: Tensor, chosen: Tensor, num_sequences: int, groups: Sequence[Group]
    ) -> Tensor:
        """This rank's part of the loss of a layer, from the scores [n, experts] of its tokens and their experts [n, k].

        num_sequences: sequences of the tokens, which are ordered by sequence. groups: the groups whose ranks have other
        tokens of the same sequences.
        """
        parts = num_sequences if self.per_sequence else 1
        load = loads(chosen.view(parts, -1), spec.experts, scores.dtype, groups)
        shares = scores if spec.router_scores == "softmax" else scores / scores.sum(-1, keepdim=True)
        return self.per_token * (shares.view(parts, -1, spec.experts).sum(1) * load).sum()


def loads(chosen: Tensor, experts: int, dtype: torch.dtype, groups: Sequence[Group]) -> Tensor:
    """Load of each expert over the mean, [parts, experts], from choices [parts, any] on all ranks of the groups."""
    with torch.no_grad():
        counts = torch.zeros(len(chosen), experts, dtype=dtype, device=chosen.device)
        counts.scatter_add_(1, chosen, torch.ones_like(chosen, dtype=dtype))
        for group in groups:
            counts = group.all_reduce(counts)
        return counts / counts.mean(-1, keepdim=True)


class _WithLoss(torch.autograd.Function):
    """Identity on a tensor. The backward pass gives a loss the gradient 1."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, loss: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor]:
        return grads[0], grads[0].new_ones(())


def with_loss(x: Tensor, loss: Tensor) -> Tensor:
    """`x`, whose backward pass also runs that of `loss` (like MoEAuxLossAutoScaler of Megatron Core)."""
    out: Tensor = _WithLoss.apply(x, loss)  # type: ignore[no-untyped-call]
    return out
