"""The framework's own parser on emitted files: in a process of its own, since frameworks do much when imported."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..document.plan import Plan
from .setup import Setup

_FOLDER = Path(__file__).parent  # of the targets; each has its parser script in a folder of its own
_MODULES = {"torchtitan": "torchtitan", "deepspeed": "deepspeed", "accelerate": "accelerate"}
# What a user adds to launch.sh, without which Megatron's parser has nothing to check.
_MEGATRON_USER = ("--tokenizer-type", "NullTokenizer", "--mock-data", "--lr", "1e-4", "--train-iters", "10")
MEGATRON_PATH, BRIDGE_PATH = "MEGATRON_PATH", "MEGATRON_BRIDGE_PATH"


def case(target: str, files: Mapping[str, str], setup: Setup) -> dict[str, Any]:
    """What the parser script of `target` is given for the files of one plan."""
    world = setup.layout.num_gpus
    exported = re.findall(r"^export (CUDA_\w+)=(\S+)$", files.get("launch.sh", ""), re.MULTILINE)
    machine = {"world": world, "environment": dict(exported), "capability": setup.capability or 9.0}
    if target == "megatron":
        lines = (line for line in files["megatron.args"].splitlines() if not line.startswith("#"))
        words = [word for line in lines for word in line.split()]
        return {"argv": [*words, *_MEGATRON_USER], **machine}
    if target == "megatron-bridge":
        return {"module": files["bridge_plan.py"], **machine}
    if target == "torchtitan":
        return {"module": files["torchtitan_plan.py"], "world": world}
    if target == "deepspeed":
        return {"config": json.loads(files["ds_config.json"]), "dp": setup.layout.dp}
    arguments = json.loads(files["training_arguments.json"])
    return {"yaml": files["accelerate.yaml"], "arguments": arguments, "world": world}


def verdicts(
    target: str, cases: Sequence[Mapping[str, Any]], python: str = sys.executable, source: str = ""
) -> list[str | None]:
    """For each case what the framework says against it, None where it accepts. Raises RuntimeError if it breaks.

    python: the one that has the framework; source: a checkout to take it from.
    """
    words = [python, str(_FOLDER / target.replace("-", "_") / "parser.py"), *([source] if source else [])]
    text = "".join(json.dumps(each) + "\n" for each in cases)
    environment = {"OMP_NUM_THREADS": "1", **os.environ}
    done = subprocess.run(words, input=text, text=True, capture_output=True, env=environment, check=False)
    found = [json.loads(line) for line in done.stdout.splitlines()]
    if len(found) != len(cases):
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise RuntimeError(f"{target}'s parser gave {len(found)} of {len(cases)} verdicts: {last}")
    return found


def megatron_source(environment: Mapping[str, str]) -> str | None:
    """The checkout of Megatron-LM that MEGATRON_PATH names."""
    source = environment.get(MEGATRON_PATH, "")
    return source if source and (Path(source) / "megatron" / "training").is_dir() else None


def bridge_source(environment: Mapping[str, str]) -> str | None:
    """The checkout of Megatron-Bridge that MEGATRON_BRIDGE_PATH names, and the Megatron-LM of its submodule."""
    bridge = Path(environment.get(BRIDGE_PATH, ""))
    core = megatron_source({MEGATRON_PATH: str(bridge / "3rdparty" / "Megatron-LM")})
    found = (bridge / "src" / "megatron" / "bridge" / "training").is_dir()
    return f"{bridge / 'src'}{os.pathsep}{core}" if found and core else None


def installed(target: str) -> str | None:
    """Where the framework's parser is to be taken from (\"\": the installed package), None if it is not here."""
    if importlib.util.find_spec("torch") is None:
        return None
    if target == "megatron":
        return megatron_source(os.environ)
    if target == "megatron-bridge":
        return bridge_source(os.environ)
    return "" if importlib.util.find_spec(_MODULES[target]) is not None else None


def ask(target: str, files: Mapping[str, str], plan: Plan, choice: int) -> tuple[bool, str | None]:
    """(whether the framework is here, what its parser says against the files of layout `choice`)."""
    source = installed(target)
    if source is None:
        return False, None
    return True, verdicts(target, [case(target, files, Setup.of(plan, choice))], source=source)[0]
