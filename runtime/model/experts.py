"""The block of routed and shared experts. It chooses the experts of each token; `dispatch` sends the tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from ...cost_models.specs.model import FeedForward, MixtureOfExperts
from ..parallel.split_backward import linear
from . import grouped
from .activations import activated
from .balancing import with_loss
from .block import Block, Context
from .dispatch import Dispatch, combine
from .mlp import Mlp
from .router import route, scored, within_capacity

CHOICE_BIAS = "choice_bias"  # name of the buffer added to scores for the choice of experts


class Experts(Block):
    """Routed experts. An ep rank holds some experts, an etp rank a part of each; a tp rank routes its own tokens.

    Shared experts are one dense block for all tokens.
    """

    choice_bias: Tensor | None  # [experts], in the choice of experts only; it does not train

    def __init__(self, context: Context, spec: MixtureOfExperts, hidden: int) -> None:
        super().__init__(context)
        self.spec, self.names = spec, ("gate", "up") if spec.gated else ("up",)
        self.add("router", [spec.experts, hidden])
        if spec.router_bias:
            self.add("router_bias", [spec.experts], start=0.0)
        # In fp32 as in transformers: rounded to bf16 it would choose other experts.
        bias = torch.zeros(spec.experts, dtype=torch.float32, device=context.device) if spec.choice_bias else None
        self.register_buffer(CHOICE_BIAS, bias)
        for name in self.names:
            self._expert(name, [spec.expert_inner, hidden], 1)
        self._expert("down", [hidden, spec.expert_inner], 2)
        shared = FeedForward(inner=spec.shared_inner, gated=spec.gated)
        self.shared = Mlp(context, shared, hidden, "shared") if spec.shared_inner else None
        if spec.shared_gate:
            self.add("shared_gate", [1, hidden])

    def _expert(self, name: str, shape: list[int], inner: int) -> None:
        """Adds a weight of all experts. `inner`: the dim of an expert's inner width."""
        group = self.context.experts
        self.add_split(name, [self.spec.experts, *shape], {0: group.ep, inner: group.etp}, expert=True)
        if self.spec.expert_bias:
            bias = [self.spec.experts, shape[0]]
            self.add_split(f"{name}_bias", bias, {0: group.ep, 1: group.etp}, expert=True, start=0.0)

    def forward(self, x: Tensor) -> Tensor:
        tokens = x.flatten(0, 1)
        logits = linear(tokens, self.tensor("router"), self.maybe("router_bias"))
        scores = scored(self.spec, logits)
        weights, chosen = route(self.spec, scores, self.choice_bias, in_turn=self.context.in_turn)
        if self.context.balancing is not None:
            loss = self.context.balancing.loss(self.spec, scores, chosen, len(x), self.context.sequence_groups)
            weights = with_loss(weights, loss)
        through: Callable[..., Tensor] = self._routed
        if self.spec.capacity_factor is not None:
            capacity = int(self.spec.capacity(len(tokens)))
            weights, chosen = within_capacity(weights, chosen, self.spec.experts, capacity)
            through = self._capped
        out = self.context.recompute.region("moe", through, tokens, weights.to(x.dtype), chosen).view_as(x)
        if self.shared is None:
            return out
        shared: Tensor = self.shared(x)
        gate = self.maybe("shared_gate")
        return out + (shared if gate is None else torch.sigmoid(linear(x, gate)) * shared)

    def _routed(self, tokens: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
        """tokens [n, h], weights and chosen experts [n, k] -> [n, h]."""
        flat = chosen.flatten()
        order = flat.argsort(stable=True)
        counts = self._counts(flat)
        return self._through(tokens, weights.flatten()[order], order // self.spec.top_k, counts)

    def _capped(self, tokens: Tensor, weights: Tensor, source: Tensor) -> Tensor:
        """The same with a fixed capacity: the tokens and their weights, ordered by expert."""
        counts = [len(source) // self.spec.experts] * self.spec.experts
        return self._through(tokens, weights, source, counts, uniform=True)

    def _through(
        self, tokens: Tensor, weights: Tensor, source: Tensor, counts: Sequence[int], *, uniform: bool = False
    ) -> Tensor:
        """Sends tokens `source` to their experts, `counts` per expert, and returns results in the original order."""
        if self.context.experts.size == 1:
            out = self._apply_experts(tokens[source], counts)
        else:
            dispatch = Dispatch(self.context.experts, counts, tokens, uniform=uniform)
            out = dispatch.back(self._apply_experts(dispatch.there(tokens[source]), dispatch.counts))
        return combine(out, weights, source, len(tokens))

    def _apply_experts(self, tokens: Tensor, counts: Sequence[int]) -> Tensor:
        """Applies this rank's experts to tokens ordered by expert."""
        inner = [grouped.linear(tokens, self.tensor(name), self.maybe(f"{name}_bias"), counts) for name in self.names]
        out = activated(self.context.recompute.inside("moe"), self.context.numerics.activation, *inner)
        return grouped.linear(out, self.tensor("down"), self._down_bias(), counts)

    def _counts(self, chosen: Tensor) -> list[int]:
        """Tokens per expert; as even as possible for a tensor without values."""
        if chosen.is_meta:
            base, extra = divmod(chosen.numel(), self.spec.experts)
            return [base + (expert < extra) for expert in range(self.spec.experts)]
        counts: list[int] = torch.bincount(chosen, minlength=self.spec.experts).tolist()
        return counts

    def _down_bias(self) -> Tensor | None:
        """The bias in this rank's columns and zeros elsewhere, so that the sum over etp contains it once."""
        bias = self.maybe("down_bias")
        if bias is None or self.context.experts.etp.size == 1:
            return bias
        width = self.tensor("down").shape[1]
        first, number = self.context.part(width, self.context.experts.etp)
        return F.pad(bias, (first, width - first - number))
