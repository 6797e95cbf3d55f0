"""Mixers other than attention, by the class of their sizes: one line each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ...cost_models.layer_kinds.gated_delta_net import GatedDeltaNet
from ...cost_models.layer_kinds.mamba2 import Mamba2
from ...cost_models.specs.model import Mixer
from .gated_delta_net import GatedDeltaNetMixer
from .mamba2 import Mamba2Mixer
from .mixer_block import MixerBlock

MIXERS: Mapping[type[Mixer], Callable[[Any, Any, int], MixerBlock]] = {
    Mamba2: Mamba2Mixer, GatedDeltaNet: GatedDeltaNetMixer
}  # fmt: skip
