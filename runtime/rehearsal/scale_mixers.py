"""`--scale-down` of mixers other than attention: fewer and narrower heads that the ranks can still split."""

from __future__ import annotations

from dataclasses import replace

from ...cost_models.layer_kinds.gated_delta_net import GatedDeltaNet
from ...cost_models.layer_kinds.mamba2 import Mamba2
from ...cost_models.specs.model import Mixer
from ...errors import UnsupportedError

_CHUNKS = 4  # chunks of a sequence, so that states pass between chunks


def small_mixer(mixer: Mixer, shrink: float, tp: int, cp: int, seq_len: int) -> Mixer:
    """The mixer of a model `shrink` times as wide, for tp x cp ranks and sequences of `seq_len`."""
    if isinstance(mixer, Mamba2):
        return _mamba2(mixer, shrink, tp, cp, seq_len)
    if isinstance(mixer, GatedDeltaNet):
        return _gated_delta_net(mixer, shrink, tp * cp)
    raise UnsupportedError(f"no rehearsal of the mixer {mixer.kind}", hint="leave out `--scale-down`")


def _mamba2(mixer: Mamba2, shrink: float, tp: int, cp: int, seq_len: int) -> Mamba2:
    """A Mamba-2 mixer with one group per rank if the model has enough, else one group that the cp ranks share."""
    groups = tp * cp if mixer.groups % (tp * cp) == 0 else tp
    heads = tp * cp * (2 if mixer.heads > mixer.groups else 1)
    return replace(
        mixer, heads=heads, groups=groups, head_dim=eighths(mixer.inner * shrink / heads, mixer.head_dim),
        state=eighths(mixer.groups * mixer.state * shrink / groups, mixer.state),
        chunk=min(mixer.chunk, max(seq_len // _CHUNKS, 1)),
    )  # fmt: skip


def _gated_delta_net(mixer: GatedDeltaNet, shrink: float, ranks: int) -> GatedDeltaNet:
    values = ranks * mixer.value_heads // mixer.key_heads
    return replace(
        mixer, key_heads=ranks, value_heads=values,
        key_head_dim=eighths(mixer.keys * shrink / ranks, mixer.key_head_dim),
        value_head_dim=eighths(mixer.values * shrink / values, mixer.value_head_dim),
    )  # fmt: skip


def eighths(value: float, most: int | None = None) -> int:
    """The nearest multiple of 8, at least 8 and at most `most`."""
    near = max(round(value / 8) * 8, 8)
    return near if most is None else min(near, most)
