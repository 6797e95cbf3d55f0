"""Which experts a token goes to and with what weights: softmax or sigmoid scores, all experts or the best groups."""

from __future__ import annotations

import torch
from torch import Tensor

from ...cost_models.specs.model import MixtureOfExperts


def scored(spec: MixtureOfExperts, logits: Tensor) -> Tensor:
    """Scores [n, experts] out of logits, in float32, or float64 if the logits are.

    Softmax: Mixtral (arXiv 2401.04088, 2.1). Sigmoid: DeepSeek-V3 (arXiv 2412.19437, 2.1.2), without the bias that
    evens out the load there: it starts at zero and stays there.
    """
    wide = torch.float64 if logits.dtype == torch.float64 else torch.float32
    return logits.to(wide).sigmoid() if spec.router_scores == "sigmoid" else logits.softmax(-1, dtype=wide)


def route(spec: MixtureOfExperts, scores: Tensor, *, in_turn: bool = False) -> tuple[Tensor, Tensor]:
    """The `top_k` experts of each token and their weights, out of scores [n, experts]: [n, k] each, in the order of
    falling scores.

    in_turn: token after token gets the next `top_k` experts, so that each expert gets as many; the weights are those of
    these.
    """
    with torch.no_grad():
        chosen = _next(spec, scores) if in_turn else _eligible(spec, scores).topk(spec.top_k, dim=-1).indices
    weights = scores.gather(-1, chosen)
    if spec.router_normalised:
        weights = weights / weights.sum(-1, keepdim=True)
    return weights * spec.router_scale, chosen


def within_capacity(weights: Tensor, chosen: Tensor, experts: int, capacity: int) -> tuple[Tensor, Tensor]:
    """The `capacity` tokens of each expert, out of the weights and choices of all [n, k]: of those that chose it the
    ones with the largest weights; where fewer did, any others. Weights, 0 of the latter, and tokens, expert by expert
    [experts * capacity] (Megatron Core, moe_utils.py, apply_router_token_dropping by probs, padded).

    Equal weights, in fp32, go by position: the same two tokens at the start of a sequence have the same, but for what
    the order of a sum leaves.
    """
    table = weights.new_zeros(len(weights), experts).scatter(1, chosen, weights).t()
    with torch.no_grad():
        source = table.float().sort(dim=1, descending=True, stable=True).indices[:, :capacity]
    return table.gather(1, source).flatten(), source.flatten()


def _next(spec: MixtureOfExperts, scores: Tensor) -> Tensor:
    """[n, k] the experts, again and again."""
    places = torch.arange(len(scores) * spec.top_k, device=scores.device)
    return (places % spec.experts).view(-1, spec.top_k)


def _eligible(spec: MixtureOfExperts, scores: Tensor) -> Tensor:
    """Scores, of experts in none of a token's best groups 0. A group is as good as its best expert (DeepSeek-V2, arXiv
    2405.04434, 2.2.2), with sigmoid scores as its best two together (DeepseekV3TopkRouter in transformers)."""
    if spec.groups == 1:
        return scores
    grouped = scores.view(*scores.shape[:-1], spec.groups, -1)
    counted = 2 if spec.router_scores == "sigmoid" else 1
    quality = grouped.topk(min(counted, grouped.shape[-1]), dim=-1).values.sum(-1)
    best = quality.topk(spec.top_groups, dim=-1).indices
    elsewhere = torch.ones_like(quality, dtype=torch.bool).scatter(-1, best, False)
    return grouped.masked_fill(elsewhere[..., None], 0.0).flatten(-2)
