"""`meshwright env`: what a bug report needs."""

from __future__ import annotations

import platform
import sys
from importlib import metadata
from pathlib import Path

import typer

from ... import _version
from ..console import FORMAT_VERSION, Terminal
from ..screens import listings as listings_screen

_PACKAGES = ("numpy", "pydantic", "typer", "rich", "pulp", "highspy")
_OPTIONAL = ("torch", "scipy", "matplotlib", "dask", "ray", "transformers")


def command(context: typer.Context) -> None:
    """Print versions and paths, to paste into a bug report.

    Does not load the listed packages.

    \b
    Example:
      meshwright env
    """
    terminal: Terminal = context.obj
    facts = environment()
    if terminal.settings.json:
        terminal.write_json({"format_version": FORMAT_VERSION, "kind": "environment", **facts})
    terminal.show(listings_screen.environment_screen(facts))


def environment() -> dict[str, object]:
    """Versions (null: not installed) and paths."""
    return {
        "meshwright": _version.__version__,
        "python": platform.python_version(),
        "executable": sys.executable,
        "platform": platform.platform(),
        "installed_at": str(Path(_version.__file__).parent),
        "packages": {name: _installed(name) for name in _PACKAGES},
        "optional": {name: _installed(name) for name in _OPTIONAL},
        "nvidia_driver": _driver(),
    }


def _installed(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _driver() -> str | None:
    """The version of the NVIDIA kernel module, where there is one."""
    path = Path("/sys/module/nvidia/version")
    return path.read_text().strip() if path.exists() else None
