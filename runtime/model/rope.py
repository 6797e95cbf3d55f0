"""Rotary positions (arXiv 2104.09864): how fast each pair of a head turns, scaled as the model says, and the turn."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from ...cost_models.specs.model import Attention, ModelSpec, RopeScaling


def rotated_width(model: ModelSpec, attention: Attention) -> int:
    """How many of a head's elements turn: the first ones, or with latents those that all heads share."""
    return attention.rope_head_dim if attention.is_mla else int(attention.head_dim * model.partial_rotary_factor)


@dataclass(frozen=True)
class Rotation:
    """How the heads of a layer turn."""

    width: int  # elements of a head that turn
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
    """Radians per token [width / 2], as transformers has them (5.23, modeling_rope_utils.py), in float64."""
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
    """The share of each frequency that stays: all where it turns often within the first length, none where rarely."""
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
    """Rotary positions, halves as in Hugging Face's Llama: x [b, s, heads, d]; cos, sin [s, w/2]. Of a head the first w
    turn, the others stay."""
    width = 2 * cos.shape[-1]
    if width < x.shape[-1]:
        return torch.cat([rotate(x[..., :width], cos, sin), x[..., width:]], dim=-1)
    first, second = x.chunk(2, dim=-1)
    cos, sin = cos[:, None], sin[:, None]
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)
