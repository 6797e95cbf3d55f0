"""Reads many recipes with LLaMA-Factory itself, on a machine without a GPU. Run it by the Python that has it:

    python parser.py < cases.jsonl > verdicts.jsonl

A case is {recipe, ranks, world}. Its verdict is null or an error message. The parser of accelerate reads the ranks.
get_train_args reads the recipe and applies its rules; it opens neither model nor data.
"""

from __future__ import annotations

import os
import runpy
import sys
from pathlib import Path
from typing import Any

del sys.path[0]  # this folder: a module in it would shadow one of the framework that has its name
_ACCELERATE = runpy.run_path(str(Path(__file__).parents[1] / "accelerate" / "parser.py"))
# One rank of a job: it refuses to train outside of one.
os.environ |= {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29599"}
from llamafactory.hparams import get_train_args  # noqa: E402
from omegaconf import OmegaConf  # noqa: E402


def check(case: dict[str, Any]) -> str | None:
    if (objection := _ACCELERATE["check_ranks"](case["ranks"], case["world"])) is not None:
        return str(objection)
    given = {"model_name_or_path": "model", "dataset": "data", "output_dir": str(_ACCELERATE["folder"]),
             "use_cpu": True, "fp16": False}  # fmt: skip
    get_train_args(OmegaConf.to_container(OmegaConf.merge(OmegaConf.create(case["recipe"]), given)))
    return None


_ACCELERATE["answer"](check)
