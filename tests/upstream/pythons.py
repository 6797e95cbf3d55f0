"""The interpreters that have the frameworks, below the folder that MESHWRIGHT_UPSTREAM names (`make test-upstream`)."""

from __future__ import annotations

import os
import subprocess
from functools import cache
from pathlib import Path

FOLDER = os.environ.get("MESHWRIGHT_UPSTREAM", "")


def python_of(target: str) -> str:
    """The interpreter for a target: that of its own environment, else the one that most frameworks share."""
    root = Path(FOLDER).absolute()
    own = root / "of" / target / "bin" / "python"
    return str(own if own.exists() else root / "bin" / "python")


@cache
def has(target: str, module: str) -> bool:
    """Whether the interpreter for a target imports a module."""
    try:
        done = subprocess.run([python_of(target), "-c", f"import {module}"], capture_output=True, check=False)
    except FileNotFoundError:
        return False
    return done.returncode == 0
