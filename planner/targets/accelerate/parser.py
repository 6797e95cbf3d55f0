"""Reads many configs with accelerate itself, on a machine without a GPU. Run it by the Python that has accelerate:

    python parser.py < cases.jsonl > verdicts.jsonl

A case is {yaml, arguments, world}. Its verdict is null or an error message. load_config_from_file rejects unknown keys
at the top level only, so this script looks nested keys up in the launch parser. It passes sizes to ParallelismConfig
and its mesh, and the arguments to TrainingArguments.
"""

from __future__ import annotations

import contextlib
import json
import math
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

answers, sys.stdout = sys.stdout, sys.stderr
if __name__ == "__main__":
    del sys.path[0]  # this folder: a module in it would shadow one of the framework that has its name
from accelerate.commands.config.config_args import load_config_from_file  # noqa: E402
from accelerate.commands.launch import launch_command_parser  # noqa: E402
from accelerate.parallelism_config import ParallelismConfig  # noqa: E402
from accelerate.utils import TorchContextParallelConfig  # noqa: E402
from transformers import TrainingArguments  # noqa: E402

folder = Path(tempfile.mkdtemp())
known = {action.dest for action in launch_command_parser()._actions}
sizes = {f"parallelism_config_{name}_size": f"{name}_size" for name in ("dp_replicate", "dp_shard", "tp", "cp", "sp")}


def check_ranks(text: str, world: int) -> str | None:
    """The verdict of accelerate on its YAML file, for a number of ranks."""
    path = folder / "accelerate.yaml"
    path.write_text(text, encoding="utf-8")
    config = load_config_from_file(str(path))
    blocks = {**config.fsdp_config, **config.parallelism_config}
    if missing := sorted(set(blocks) - known):
        return f"no option {missing[0]}"
    degrees = {sizes[name]: value for name, value in config.parallelism_config.items() if name in sizes}
    strategy = config.parallelism_config.get("parallelism_config_cp_comm_strategy")
    handler = TorchContextParallelConfig(cp_comm_strategy=strategy) if strategy else None
    product = config.num_processes
    if degrees:
        mesh = ParallelismConfig(**degrees, cp_handler=handler)._get_mesh()
        product = math.prod(mesh[1])
    if product != world or config.num_processes != world:
        return f"{product} ranks in the mesh, {config.num_processes} processes, {world} GPUs"
    return None


def arguments(case: dict[str, Any]) -> TrainingArguments:
    """The arguments without the precision, which needs a GPU."""
    half = case["arguments"].get("bf16") or case["arguments"].get("fp16")
    return TrainingArguments(output_dir=str(folder), use_cpu=not half, **{
        name: value for name, value in case["arguments"].items() if name not in ("bf16", "fp16")
    })  # fmt: skip


def check(case: dict[str, Any]) -> str | None:
    if (objection := check_ranks(case["yaml"], case["world"])) is not None:
        return objection
    arguments(case)
    return None


def verdict(case: dict[str, Any], check: Callable[[dict[str, Any]], str | None]) -> str | None:
    try:
        with contextlib.redirect_stdout(sys.stderr):
            return check(case)
    except SystemExit as error:
        return f"exit {error.code}"
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def answer(check: Callable[[dict[str, Any]], str | None]) -> None:
    """Prints the verdict on each case of the input."""
    for line in sys.stdin:
        print(json.dumps(verdict(json.loads(line), check)), file=answers, flush=True)


if __name__ == "__main__":
    answer(check)
