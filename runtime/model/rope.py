"""Rotary positions (arXiv 2104.09864): the scaled frequencies of a model, and the rotation."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from ...cost_models.specs.model import Attention, ModelSpec
from ...cost_models.specs.rope_scaling import RopeScaling


def rotated_width(model: ModelSpec, attention: Attention) -> int:
    """The number of rotary elements of a head: the first ones, or in latent attention those that all heads share."""
    return attention.rope_head_dim if attention.is_mla else int(attention.head_dim * model.partial_rotary_factor)


@dataclass(frozen=True)
class Rotation:
    """The rotary parameters of a layer."""

    width: int  # rotary elements of a head
    theta: float  # base of the frequencies
    scaling: RopeScaling | None  # of the positions

    @classmethod
    def of(cls, model: ModelSpec, attention: Attention) -> Rotation:
        width, windowed = rotated_width(model, attention), model.window_rope_theta
        if windowed is not None and attention.window is not None:
            return cls(width, windowed, None)
        return cls(width, model.rope_theta or 1.0, model.trained_scaling)

    @property
    def amplitude(self) -> float:
        return 1.0 if self.scaling is None else self.scaling.amplitude


def frequencies(rotation: Rotation) -> Tensor:
    """Radians per token [width / 2] in float64, as in transformers (5.23, modeling_rope_utils.py)."""
    width, theta, scaling = rotation.width, rotation.theta, rotation.scaling
    turns = theta ** -(torch.arange(0, width, 2, dtype=torch.float64) / width)
    if scaling is None:
        return turns
    slow = turns / scaling.factor
    if scaling.kind == "linear":
        return slow
    kept = _llama3(scaling, turns) if scaling.kind == "llama3" else _yarn(scaling, theta, width)
    return slow * (1 - kept) + turns * kept


def _llama3(scaling: RopeScaling, turns: Tensor) -> Tensor:
    """The unscaled share of each frequency: 1 for many turns within the original length, 0 for few."""
    rounds = (scaling.original_max_positions or 0) * turns / (2 * math.pi)
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    return ((rounds - low) / (high - low)).clamp(0, 1) if high > low else (rounds >= low).to(turns)


def _yarn(scaling: RopeScaling, theta: float, width: int) -> Tensor:
    """The same by the index of the frequency (arXiv 2309.00071, section 3.2)."""

    def index(rounds: float) -> float:
        length = scaling.original_max_positions or 1
        return width * math.log(length / (rounds * 2 * math.pi)) / (2 * math.log(theta))

    first, last = index(scaling.beta_fast), index(scaling.beta_slow)
    if scaling.truncate:
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, width - 1)
    last += 0.001 if first == last else 0  # as there: no division by 0
    return 1 - ((torch.arange(width // 2, dtype=torch.float64) - first) / (last - first)).clamp(0, 1)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotates x [b, s, heads, d] by cos, sin [s, w/2], in halves as in transformers' Llama.

    The first w elements of a head rotate; the others are unchanged.
    """
    width = 2 * cos.shape[-1]
    if width < x.shape[-1]:
        return torch.cat([rotate(x[..., :width], cos, sin), x[..., width:]], dim=-1)
    first, second = x.chunk(2, dim=-1)
    cos, sin = cos[:, None], sin[:, None]
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)
