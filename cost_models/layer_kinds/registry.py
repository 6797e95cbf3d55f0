"""The kinds of mixers: a line each."""

from __future__ import annotations

from ..specs.model import Mixer
from . import gated_delta_net, mamba2
from .base import MixerKind

MIXERS: tuple[MixerKind, ...] = (mamba2.KIND, gated_delta_net.KIND)
_BY_SPEC = {kind.spec: kind for kind in MIXERS}
BY_NAME = {kind.name: kind for kind in MIXERS}


def kind_of(mixer: Mixer) -> MixerKind:
    """The kind that a mixer is of."""
    return _BY_SPEC[type(mixer)]
