"""The files of facts that a plan rests on."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from ..io.folders import CATALOGUE, MEASURED
from ..io.registry import gpu_file, load_gpu, node_file
from .calibration import OTHER_FILE, SHIPPED_FILE, fitted_formats


def files_behind(gpus: Iterable[str], nodes: Iterable[str], stack: str) -> dict[str, Path]:
    """Name -> file, of the hardware, nodes, stack and measured efficiencies; inline descriptions have no file."""
    files = {
        "measured/fits": MEASURED / "fits.yaml",
        "measured/assumptions": MEASURED / "assumptions.yaml",
        "measured/calibrated": SHIPPED_FILE,
    }
    for name in gpus:
        if (path := gpu_file(name)) is not None:
            files[f"hardware/{name}"] = path
            if fitted_formats(load_gpu(name)):
                files["measured/calibrated_other"] = OTHER_FILE
    for name in nodes:
        if (path := node_file(name)) is not None:
            files[f"nodes/{name}"] = path
    shipped = CATALOGUE / "stacks" / f"{stack}.yaml"
    if shipped.exists():
        files[f"stacks/{stack}"] = shipped
    elif Path(stack).is_file():
        files[stack] = Path(stack)
    return files
