"""The kinds of mixers: a line each."""

from __future__ import annotations

from ..specs.model import Mixer
from . import (
    compressed_attention,
    gated_delta_net,
    gated_linear_attention,
    graph_convolution,
    kimi_delta_attention,
    mamba,
    mamba2,
    pararnn,
    rwkv7,
    short_convolution,
)
from .base import MixerKind

MIXERS: tuple[MixerKind, ...] = (
    mamba.KIND, mamba2.KIND, gated_delta_net.KIND, kimi_delta_attention.KIND, gated_linear_attention.KIND,
    rwkv7.KIND, short_convolution.KIND, compressed_attention.KIND, pararnn.KIND, graph_convolution.KIND,
)  # fmt: skip
_BY_SPEC = {kind.spec: kind for kind in MIXERS}
BY_NAME = {kind.name: kind for kind in MIXERS}


def kind_of(mixer: Mixer) -> MixerKind:
    """The kind that a mixer is of."""
    return _BY_SPEC[type(mixer)]
