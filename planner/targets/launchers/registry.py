"""All launchers: one line each."""

from __future__ import annotations

from ....errors import UnknownNameError
from . import hostfile, kubernetes, ray, skypilot, slurm, torchrun
from .base import Launcher

LAUNCHERS: dict[str, Launcher] = {
    module.LAUNCHER.name: module.LAUNCHER for module in (torchrun, slurm, kubernetes, hostfile, ray, skypilot)
}


def launcher(name: str) -> Launcher:
    """The launcher `name`. Raises UnknownNameError."""
    if name not in LAUNCHERS:
        raise UnknownNameError("launcher", name, LAUNCHERS)
    return LAUNCHERS[name]
