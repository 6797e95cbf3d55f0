"""Composes many configs of verl by Hydra, on a machine without a GPU. Run it by the Python that has both:

    python verl_compose.py < cases.jsonl > verdicts.jsonl

A case is a list of overrides. Its verdict is null or what Hydra says. The tree is trainer/config of the installed verl,
which is not imported.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

# Those beside this script are no packages of it.
sys.path[:] = [path for path in sys.path if Path(path or ".").resolve() != Path(__file__).resolve().parent]


HYDRA: Any = importlib.import_module("hydra")


def tree() -> Path:
    """The folder of the installed config."""
    spec = importlib.util.find_spec("verl")
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit("verl is not installed")
    return Path(next(iter(spec.submodule_search_locations))) / "trainer" / "config"


def verdict(overrides: list[str]) -> str | None:
    """None, or why Hydra stops."""
    try:
        HYDRA.compose("ppo_trainer", overrides=overrides)
    except HYDRA.errors.HydraException as error:
        return str(error).splitlines()[0]
    return None


def main() -> None:
    with HYDRA.initialize_config_dir(str(tree()), version_base=None):
        for line in sys.stdin:
            print(json.dumps(verdict(json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
