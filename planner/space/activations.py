"""Masks of the rules on saved activations: recomputed modules and offload."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ...cost_models.arrays import Ints, Mask
from ...cost_models.layouts import MODULES, module_mask
from ...cost_models.offload_modules import OF_EXPERTS
from ...cost_models.problem import Problem
from ...cost_models.specs.model import MixtureOfExperts, ModelSpec

Columns = Mapping[str, Ints]


def present_modules(model: ModelSpec) -> int:
    """Bit mask of the recompute modules that the model has."""
    blocks = model.feed_forwards
    lacks = {
        "moe": not model.is_moe,
        "mla": not any(attention.is_mla for attention in model.attentions),
        "attn": not model.attentions,
        "mlp": all(isinstance(block, MixtureOfExperts) for block in blocks),
        "shared": not any(isinstance(block, MixtureOfExperts) and block.shared_inner for block in blocks),
    }
    return module_mask(name for name in MODULES if not lacks.get(name, False))


def modules_shape(x: Columns, problem: Problem) -> Mask:
    return np.asarray(x["recompute_modules"] & ~present_modules(problem.model) == 0)


def offloaded_shape(x: Columns, problem: Problem) -> Mask:
    alone = (x["pp"] == 1) & (x["recompute"] == 0) & (x["offload_layers"] < problem.model.num_layers)
    return np.asarray((x["offload_layers"] == 0) | (alone & (not problem.on_host)))


def layers_shape(x: Columns, problem: Problem) -> Mask:
    return np.asarray(x["recompute_layers"] < -(-problem.model.num_layers // x["pp"]))


def offload_modules(x: Columns, problem: Problem) -> Mask:
    has = 0 if problem.on_host else -1 if problem.model.is_moe else ~OF_EXPERTS
    return np.asarray(x["offload_modules"] & ~has == 0)


def offloaded_once(x: Columns, problem: Problem) -> Mask:
    # Megatron Core rejects both together. With all activations offloaded (`offload: act`) either has no effect.
    return np.asarray((x["offload_layers"] == 0) | (x["offload_modules"] == 0))
