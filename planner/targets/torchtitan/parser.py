"""Reads many config modules with torchtitan itself, without a GPU. Run it by the Python that has torchtitan:

    python parser.py [CHECKOUT] < cases.jsonl > verdicts.jsonl

A case is {module, world}: text of a config module with a function `plan`. Its verdict is null, or what torchtitan says:
its command line reads the module, ParallelDims checks the degrees, and every module named for a stage must be in the
model, built on the meta device. The script reports a compute capability of 9.0, because fp8 is checked without a GPU.
"""

from __future__ import annotations

import contextlib
import json
import sys
import tempfile
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any

answers, sys.stdout = sys.stdout, sys.stderr
if __name__ == "__main__":
    del sys.path[0]  # this folder: a module in it would shadow one of the framework that has its name
if len(sys.argv) > 1:
    sys.path.insert(0, sys.argv[1])

import torch  # noqa: E402

torch.cuda.get_device_capability = lambda *args, **kwargs: (9, 0)
import torchtitan.tools.utils as titan_utils  # noqa: E402

titan_utils.has_cuda_capability = lambda major, minor: True
from torchtitan.config import ConfigManager  # noqa: E402
from torchtitan.distributed.parallel_dims import ParallelDims  # noqa: E402

folder, numbers = Path(tempfile.mkdtemp()), count()
sys.path.insert(0, str(folder))


@cache
def modules_of(name: str, flavor: str, layers: int) -> frozenset[str]:
    """Names of all modules of a registered model."""
    module = __import__(f"torchtitan.models.{name}", fromlist=["model_registry"])
    with torch.device("meta"):
        return frozenset(dict(module.model_registry(flavor).model.build().named_modules()))


def parse(case: dict[str, Any]) -> Any:
    """The configuration that torchtitan makes of a module."""
    name = f"case_{next(numbers)}"
    (folder / f"{name}.py").write_text(case["module"], encoding="utf-8")
    try:
        with contextlib.redirect_stdout(sys.stderr):
            return ConfigManager().parse_args(["--module", name, "--config", "plan"])
    finally:
        sys.modules.pop(name, None)


def verdict(case: dict[str, Any]) -> str | None:
    try:
        config = parse(case)
        ParallelDims.from_config(config.parallelism, case["world"])
        parts = config.parallelism.module_fqns_per_model_part or []
        layers = getattr(config.model_spec.model, "layers", ())  # Flux has two lists of blocks, and no stages
        known = modules_of(config.model_spec.name, config.model_spec.flavor, len(layers))
        if missing := [module for part in parts for module in part if module not in known]:
            return f"no module {missing[0]}"
    except SystemExit as error:
        return f"exit {error.code}"
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None


if __name__ == "__main__":
    for line in sys.stdin:
        print(json.dumps(verdict(json.loads(line))), file=answers, flush=True)
