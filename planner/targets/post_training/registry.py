"""The frameworks of post-training that files are written for: one line each."""

from __future__ import annotations

from ....errors import UnknownNameError
from ..areal.target import AREAL
from ..nemo_rl.target import NEMO_RL
from ..openrlhf.target import OPENRLHF
from ..slime.target import SLIME
from ..verl.target import VERL
from .base import RlTarget

RL_TARGETS: dict[str, RlTarget] = {target.name: target for target in (VERL, NEMO_RL, SLIME, AREAL, OPENRLHF)}


def rl_target(name: str) -> RlTarget:
    """Raises UnknownNameError."""
    if name not in RL_TARGETS:
        raise UnknownNameError("framework of post-training", name, RL_TARGETS, hint=f"known: {', '.join(RL_TARGETS)}")
    return RL_TARGETS[name]
