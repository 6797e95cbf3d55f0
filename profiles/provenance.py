"""Which files of facts a plan rests on."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from .calibration import SHIPPED_FILE
from .registry import gpu_file, node_file

_HERE = Path(__file__).parent


def files_behind(gpus: Iterable[str], nodes: Iterable[str], stack: str) -> dict[str, Path]:
    """Name -> file, of the hardware, nodes, stack and measured efficiencies; inline descriptions have no file."""
    files = {
        "measured/fits": _HERE / "measured" / "fits.yaml",
        "measured/assumptions": _HERE / "measured" / "assumptions.yaml",
        "measured/calibrated": SHIPPED_FILE,
    }
    for name in gpus:
        if (path := gpu_file(name)) is not None:
            files[f"hardware/{name}"] = path
    for name in nodes:
        if (path := node_file(name)) is not None:
            files[f"nodes/{name}"] = path
    own = _HERE / "stacks" / f"{stack}.yaml"
    if own.exists():
        files[f"stacks/{stack}"] = own
    elif Path(stack).is_file():
        files[stack] = Path(stack)
    return files
