"""meshwright: find the parallel layout that trains a large model fastest on the GPUs you have.

The public names load on first use (PEP 562), so that `import meshwright` stays quick.
"""

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

from ._version import __version__

if TYPE_CHECKING:
    from .planner.api import evaluate, load_plan, plan
    from .planner.studies.what_if import what_if

# In a checkout the subpackages lie beside this folder, not inside it (pyproject.toml, [tool.setuptools.package-dir]).
_HERE = os.path.dirname(__file__)
if not os.path.exists(os.path.join(_HERE, "planner")):
    __path__.append(os.path.dirname(_HERE))

_HOME = {
    "plan": "planner.api",
    "evaluate": "planner.api",
    "load_plan": "planner.api",
    "what_if": "planner.studies.what_if",
}

__all__ = ["__version__", "evaluate", "load_plan", "plan", "what_if"]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
