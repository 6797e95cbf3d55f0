"""Reads many recipes with TRL itself, on a machine without a GPU. Run it by the Python that has TRL:

    python parser.py < cases.jsonl > verdicts.jsonl

A case is {recipe, ranks, world}. Its verdict is null, or what is said: accelerate's file as the parser of that target
reads it, the recipe by the TrlParser of TRL's script, then the configs of peft and of the quantisation.
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path
from typing import Any

del sys.path[0]  # this folder: a module in it would shadow one of the framework that has its name
_ACCELERATE = runpy.run_path(str(Path(__file__).parents[1] / "accelerate" / "parser.py"))
from trl import ModelConfig, ScriptArguments, SFTConfig, TrlParser, get_peft_config  # noqa: E402
from trl.scripts.utils import DatasetMixtureConfig  # noqa: E402
from trl.trainer.utils import get_quantization_config  # noqa: E402


def check(case: dict[str, Any]) -> str | None:
    if (objection := _ACCELERATE["check_ranks"](case["ranks"], case["world"])) is not None:
        return str(objection)
    folder: Path = _ACCELERATE["folder"]
    path = folder / "sft.yaml"
    path.write_text(case["recipe"], encoding="utf-8")
    parser = TrlParser((ScriptArguments, SFTConfig, ModelConfig, DatasetMixtureConfig))
    given = ["--config", str(path), "--output_dir", str(folder), "--use_cpu", "true", "--fp16", "false"]
    _, _, model, _ = parser.parse_args_and_config(args=given, fail_with_unknown_args=True)
    get_quantization_config(model)
    get_peft_config(model)
    return None


_ACCELERATE["answer"](check)
