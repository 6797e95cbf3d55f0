"""The router: experts and weights of each token, from softmax or sigmoid scores over all experts or the best groups."""

from __future__ import annotations

import torch
from torch import Tensor

from ...cost_models.specs.model import MixtureOfExperts


def scored(spec: MixtureOfExperts, logits: Tensor) -> Tensor:
    """Scores [n, experts] of logits, in float32, or in float64 for float64 logits.

    Softmax: Mixtral (arXiv 2401.04088, 2.1). Sigmoid: DeepSeek-V3 (arXiv 2412.19437, 2.1.2).
    """
    wide = torch.float64 if logits.dtype == torch.float64 else torch.float32
    return logits.to(wide).sigmoid() if spec.router_scores == "sigmoid" else logits.softmax(-1, dtype=wide)


def route(
    spec: MixtureOfExperts, scores: Tensor, bias: Tensor | None = None, *, in_turn: bool = False
) -> tuple[Tensor, Tensor]:
    """The `top_k` experts of each token and their weights, from scores [n, experts]: [n, k] each, by falling scores.

    bias: [experts], added to the scores for the choice and not for the weights (DeepSeek-V3, arXiv 2412.19437, 2.1.2).
    in_turn: each token gets the next `top_k` experts round-robin, so that all experts have equal loads. The weights are
    the scores of these experts.
    """
    with torch.no_grad():
        ranked = scores if bias is None else scores + bias
        chosen = _next(spec, scores) if in_turn else _eligible(spec, ranked).topk(spec.top_k, dim=-1).indices
    weights = scores.gather(-1, chosen)
    if spec.router_normalised:
        weights = weights / weights.sum(-1, keepdim=True)
    return weights * spec.router_scale, chosen


def within_capacity(weights: Tensor, chosen: Tensor, experts: int, capacity: int) -> tuple[Tensor, Tensor]:
    """The `capacity` tokens of each expert, from the weights and choices of all tokens [n, k].

    An expert takes the tokens with the largest weights among those that chose it. Free places get other tokens with
    weight 0. Returns weights and tokens ordered by expert [experts * capacity] (Megatron Core, moe_utils.py,
    apply_router_token_dropping by probs, padded).

    Weights are compared in fp32, and ties are broken by position. Two sequences with the same first tokens have equal
    weights up to the rounding of sums.
    """
    table = weights.new_zeros(len(weights), experts).scatter(1, chosen, weights).t()
    with torch.no_grad():
        source = table.float().sort(dim=1, descending=True, stable=True).indices[:, :capacity]
    return table.gather(1, source).flatten(), source.flatten()


def _next(spec: MixtureOfExperts, scores: Tensor) -> Tensor:
    """[n, k] experts, assigned round-robin."""
    places = torch.arange(len(scores) * spec.top_k, device=scores.device)
    return (places % spec.experts).view(-1, spec.top_k)


def _eligible(spec: MixtureOfExperts, scores: Tensor) -> Tensor:
    """Scores, with minus infinity for experts outside a token's best groups.

    The score of a group is that of its best expert (DeepSeek-V2, arXiv 2405.04434, 2.2.2), or for sigmoid scores the
    sum of its best two (DeepseekV3TopkRouter in transformers).
    """
    if spec.groups == 1:
        return scores
    grouped = scores.view(*scores.shape[:-1], spec.groups, -1)
    counted = 2 if spec.router_scores == "sigmoid" else 1
    quality = grouped.topk(min(counted, grouped.shape[-1]), dim=-1).values.sum(-1)
    best = quality.topk(spec.top_groups, dim=-1).indices
    elsewhere = torch.ones_like(quality, dtype=torch.bool).scatter(-1, best, False)
    return grouped.masked_fill(elsewhere[..., None], -torch.inf).flatten(-2)
