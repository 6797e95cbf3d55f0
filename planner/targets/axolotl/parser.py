"""Reads many files with Axolotl itself, on a machine without a GPU. Run it by the Python that has Axolotl:

    python parser.py < cases.jsonl > verdicts.jsonl

A case is {recipe, world, capability}. Its verdict is null or an error message. validate_config reads the file for the
GPU and applies its rules. It ignores unknown options, so this script looks them up. It passes the degrees to the
function that makes the mesh of accelerate.
"""

from __future__ import annotations

import math
import runpy
import sys
from pathlib import Path
from typing import Any

del sys.path[0]  # this folder: a module in it would shadow one of the framework that has its name
_ACCELERATE = runpy.run_path(str(Path(__file__).parents[1] / "accelerate" / "parser.py"))
import yaml  # noqa: E402
from axolotl.utils.config import validate_config  # noqa: E402
from axolotl.utils.dict import DictDefault  # noqa: E402
from axolotl.utils.distributed import _get_parallel_config_kwargs  # noqa: E402
from axolotl.utils.schemas.config import AxolotlInputConfig  # noqa: E402
from axolotl.utils.schemas.fsdp import FSDPConfig  # noqa: E402

_YOURS = {"base_model": "model", "datasets": [{"path": "data", "type": "alpaca"}], "learning_rate": 1e-5,
          "num_epochs": 1, "output_dir": "out"}  # fmt: skip
_SIZES = ("tensor_parallel_size", "context_parallel_size", "dp_shard_size", "dp_replicate_size")


def check(case: dict[str, Any]) -> str | None:
    given = yaml.safe_load(case["recipe"])
    block = given.get("fsdp_config", {})
    unknown = [*set(given) - set(AxolotlInputConfig.model_fields), *set(block) - set(FSDPConfig.model_fields)]
    if unknown:
        return f"no option {min(unknown)}"
    generation = f"sm_{round(case['capability'] * 10)}"
    capabilities = {"bf16": True, "fp8": True, "tf32": True, "n_gpu": case["world"], "compute_capability": generation}
    config = validate_config(DictDefault({**given, **_YOURS}), capabilities, {"torch_version": "2.13.0"})
    if not config.fsdp_config:
        return None
    degrees = _get_parallel_config_kwargs(case["world"], *(config[name] for name in _SIZES), is_fsdp=True)
    mesh = math.prod(degrees.values())
    return None if mesh == case["world"] else f"{mesh} ranks in the mesh, {case['world']} GPUs"


_ACCELERATE["answer"](check)
