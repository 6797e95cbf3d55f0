"""The head: final norm, output projection, cross entropy."""

from __future__ import annotations

from collections.abc import Callable

import torch.nn.functional as F
from torch import Tensor

from ...cost_models.specs.model import ModelSpec
from ..parallel import tensor_parallel as tp
from .block import Block, Context
from .embedding import TokenTable
from .norms import Norm


class Head(Block):
    """Final norm, output projection, loss. `tied`: the module that holds the projection of tied embeddings."""

    def __init__(self, context: Context, spec: ModelSpec, tied: TokenTable | None) -> None:
        super().__init__(context)
        self.norm = Norm(context, spec.hidden, spec.norm_bias) if spec.final_norm else None
        self.first, _ = context.part(spec.vocab)
        self.scale, self.softcap = spec.logit_scale, spec.logit_softcap
        self.ignores = False  # whether some targets are IGNORED
        self.objective: Callable[[Tensor, Tensor], Tensor] | None = None  # of logits and targets; None: cross entropy
        self._tied = (tied,)  # in a tuple, so that it is not a submodule here
        self._add_projection(spec)

    def _add_projection(self, spec: ModelSpec) -> None:
        if self._tied[0] is None:
            self.add("projection", [spec.vocab, spec.hidden], 0, std=self.context.numerics.std(1))
        if spec.head_bias:
            self.add("projection_bias", [spec.vocab], 0, start=0.0)

    def logits(self, x: Tensor, norm: Norm | None = None) -> Tensor:
        """Logits without softcap: [b, s/tp, h] -> [b, s, vocab / tp]. norm: replaces the model's final norm."""
        norm = norm or self.norm
        x = x if norm is None else norm(x)
        x = x if self.scale == 1.0 else x * self.scale  # scaled here, where the tensor is narrower than the logits
        tied = self._tied[0]
        weight = self.tensor("projection") if tied is None else tied.tensor("tokens")
        return tp.column(x, [weight], [self.maybe("projection_bias")], self.context.group, deferrable=False)[0]

    def loss(self, x: Tensor, targets: Tensor, norm: Norm | None = None) -> Tensor:
        """Sum of the losses of all tokens, in nats, or the objective that replaces it."""
        logits = self.logits(x, norm)
        if self.objective is not None:
            return self.objective(logits, targets)
        return tp.cross_entropy(logits, targets, self.first, self.context.group, self.softcap, ignores=self.ignores)

    def scores(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Log-probabilities of targets [b, s], differentiable."""
        return -tp.token_losses(logits, targets, self.first, self.context.group, self.softcap)


class ValueHead(Head):
    """The head of a critic or a reward model: a number for each token in place of logits."""

    def _add_projection(self, spec: ModelSpec) -> None:
        # Whole on all tp ranks, each of which applies it to its own tokens.
        self.add("projection", [1, spec.hidden])

    def logits(self, x: Tensor, norm: Norm | None = None) -> Tensor:
        """Values: [b, s/tp, h] -> [b, s], equal on all tp ranks."""
        norm, group = norm or self.norm, self.context.group
        values = F.linear(x if norm is None else norm(x), self.tensor("projection")).squeeze(-1)
        part = values.shape[1]
        beside = (group.rank * part, (group.size - 1 - group.rank) * part)
        return tp.summed(F.pad(values, beside), group)

    def scores(self, logits: Tensor, targets: Tensor) -> Tensor:
        """The value after the tokens before each target [b, s], differentiable."""
        return logits
