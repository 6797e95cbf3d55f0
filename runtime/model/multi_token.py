"""Multi-token prediction (DeepSeek-V3, arXiv 2412.19437, section 2.2): modules that predict later tokens.

Module k combines the hidden state of a token with the embedding of the k-th token after it, runs one more layer, and
predicts the following token. Embedding and output projection are those of the model.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from ...cost_models.specs.model import ModelSpec
from .block import Block, Context
from .norms import Norm

# Weight of these losses in the total loss, over all modules: the larger of the two values in section 4.2.
PREDICTION_WEIGHT = 0.3


class Prediction(Block):
    """One module without embedding and projection; [b, s/tp, h] -> [b, s/tp, h]. norm: the norm before the head."""

    def __init__(self, context: Context, spec: ModelSpec, layer: Block) -> None:
        super().__init__(context)
        self.hidden_norm = Norm(context, spec.hidden, spec.norm_bias)
        self.token_norm = Norm(context, spec.hidden, spec.norm_bias)
        self.add("projection", [spec.hidden, 2 * spec.hidden])
        self.layer = layer
        self.norm = Norm(context, spec.hidden, spec.norm_bias)

    def joined(self, x: Tensor, following: Tensor) -> Tensor:
        """The input of the layer, from the hidden state of a token and the embedding of a later one."""
        both = torch.cat([self.hidden_norm(x), self.token_norm(following)], dim=-1)
        # Not deferred in a split backward pass, as in the planner.
        return F.linear(both, self.tensor("projection"))
