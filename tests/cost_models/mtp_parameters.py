"""Parameters of multi-token-prediction modules, counted apart from the model."""

from __future__ import annotations

from meshwright.cost_models.quantities.params import layer_parameters, norm_parameters
from meshwright.cost_models.specs.model import ModelSpec


def mtp_parameters(model: ModelSpec) -> int:
    """All multi-token-prediction modules; embedding and head are shared with the model and not counted again.

    One module = its layers (one of the last kind unless it has a pattern) + norms of the hidden state and of the
    embedding (2h) + the projection of both back to h (2h·h) + its own final norm (h). Source: DeepSeek-V3, arXiv
    2412.19437, section 2.2, and the released weights (model.layers.61: enorm, hnorm, eh_proj, shared_head.norm).
    """
    if not model.mtp_layers:
        return 0
    layers = [model.kinds[index] for index in model.mtp_pattern or model.pattern[-1:]]
    around = 3 * norm_parameters(1, model.hidden, model.norm_bias) + 2 * model.hidden * model.hidden
    one = sum(sum(layer_parameters(model, layer).values()) for layer in layers) + around
    return one if model.mtp_shared else model.mtp_layers * one
