"""Multi-token prediction (DeepSeek-V3, arXiv 2412.19437, section 2.2): modules that look further than one token.

Module k joins what the model made of a token with the embedding of the k-th token after it, runs one more layer, and
predicts the token after that one. Embedding and output projection are those of the model.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from ...cost_models.specs.model import ModelSpec
from .block import Block, Context
from .norms import Norm

# The share of these losses in what is minimised, all modules together: the larger of the two of section 4.2.
PREDICTION_WEIGHT = 0.3


class Prediction(Block):
    """One module, without embedding and projection; [b, s/tp, h] -> [b, s/tp, h]. norm: the one before the head."""

    def __init__(self, context: Context, spec: ModelSpec, layer: Block) -> None:
        super().__init__(context)
        self.hidden_norm = Norm(context, spec.hidden, spec.norm_bias)
        self.token_norm = Norm(context, spec.hidden, spec.norm_bias)
        self.add("projection", [spec.hidden, 2 * spec.hidden])
        self.layer = layer
        self.norm = Norm(context, spec.hidden, spec.norm_bias)

    def joined(self, x: Tensor, following: Tensor) -> Tensor:
        """What the layer takes, of what the layers before made of a token, and the embedding of one after it."""
        both = torch.cat([self.hidden_norm(x), self.token_norm(following)], dim=-1)
        # At once in a split backward pass: the planner lets no gradient of it wait.
        return F.linear(both, self.tensor("projection"))
