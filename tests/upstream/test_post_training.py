"""Files of post-training against the programs that read them: Hydra on verl's config, the loaders of NeMo-RL and AReaL,
and OpenRLHF's train_ppo_ray until it trains."""

from __future__ import annotations

import json
import os
import random
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from meshwright.planner.api import plan_rl
from meshwright.planner.document.rl_plan import RlPlan
from meshwright.planner.targets.post_training.check import check_rl
from meshwright.planner.targets.post_training.emit import emit_rl

from ..planner.targets.drawn_placements import drawn, planned
from ..table import Row
from .pythons import has, python_of

COUNT = 200


@dataclass(frozen=True)
class Program:
    """A program that reads the options of a framework."""

    script: str  # beside this file
    module: str  # that its interpreter has
    file: str  # of the options
    trainer: str | None = None  # None: all plans of the table
    engine: str = "vllm"
    checkout: str = ""  # variable with the folder of its source, where no wheel has it


PROGRAMS = {
    "verl": Program("verl_compose.py", "hydra", "verl.overrides"),
    "nemo-rl": Program("nemo_rl_config.py", "torchdata", "nemo-rl.overrides", "megatron", checkout="NEMO_RL_PATH"),
    "areal": Program("areal_config.py", "lark", "areal.overrides", "megatron", "sglang"),
    "openrlhf": Program("openrlhf_parser.py", "openrlhf", "openrlhf.args", "deepspeed"),
}


def plans_for(to: str) -> list[RlPlan]:
    """Plans whose layouts are drawn anew."""
    program = PROGRAMS[to]
    if program.trainer is None:
        return planned(experts=True)
    small: dict[str, Any] = {
        "model": "llama-3.2-1b", "cluster": "4xh100-sxm-80gb", "output": 300, "prompts": 16, "reward": "rule",
        "trainer": program.trainer, "engine": program.engine}  # fmt: skip
    others: list[dict[str, Any]] = [{"algorithm": "ppo", "updates": 2}] if to != "nemo-rl" else [
        {"model": "qwen3-30b-a3b", "cluster": "dgx-h100:2"}, {"trainer": "accelerate", "updates": 2}]  # fmt: skip
    return [plan_rl(**{**small, **more}) for more in (
        {"lag": 1, "kl": True}, *others, {"algorithm": "dapo", "lag": 2})]  # fmt: skip


def words_of(to: str, text: str) -> list[str]:
    """The words of a file, as its script gives them."""
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    return [word for line in lines for word in line.split(" ")] if PROGRAMS[to].file.endswith(".args") else lines


def verdicts(to: str, cases: list[list[str]]) -> list[str | None]:
    """None, or what the program says."""
    text = "".join(json.dumps(words) + "\n" for words in cases)
    command = [python_of(to), str(Path(__file__).with_name(PROGRAMS[to].script))]
    done = subprocess.run(command, input=text, text=True, capture_output=True, check=False)
    said = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(said) == len(cases), done.stderr[-2000:]
    return said


def misspelt(text: str, numbers: random.Random) -> str:
    """One option of a file with its last letter twice."""
    lines = text.splitlines()
    at = numbers.choice([i for i, line in enumerate(lines) if line[0] not in "#+" or line.startswith("++")])
    end = next((i for i, letter in enumerate(lines[at]) if letter in "= "), len(lines[at]))
    lines[at] = f"{lines[at][:end]}{lines[at][end - 1]}{lines[at][end:]}"
    return "".join(f"{line}\n" for line in lines)


@pytest.mark.parametrize("to", PROGRAMS)
def test_its_program_takes_every_plan_and_no_misspelt_one(to: str, row: Row) -> None:
    program = PROGRAMS[to]
    if not has(to, program.module) or (program.checkout and program.checkout not in os.environ):
        row(to, "its program takes", "not run")
        pytest.skip(f"{program.checkout or program.module} is not there")
    plans = drawn(plans_for(to), to, COUNT)
    written = [emit_rl(plan, to, plan.best.choice).files for plan in plans]
    numbers = random.Random(1)
    right = [files[program.file] for files in written]
    wrong = [misspelt(text, numbers) for text in right]
    said = verdicts(to, [words_of(to, text) for text in (*right, *wrong)])
    accepted, refused = said[:COUNT].count(None), COUNT - said[COUNT:].count(None)
    row(to, "its program takes", f"{accepted} of {COUNT} plans of post-training")
    row(to, "it refuses misspelt", f"{refused} of {COUNT}")
    found = sum(bool(check_rl(plan, {**files, program.file: text}).problems)
                for plan, files, text in zip(plans, written, wrong, strict=True))  # fmt: skip
    row(to, "`check` refuses misspelt", f"{found} of {COUNT}")
    assert [each for each in said[:COUNT] if each is not None] == []
    assert (refused, found) == (COUNT, COUNT)


def test_hydra_takes_degrees_by_answer(row: Row) -> None:
    """A plan by verl's dynamic context parallelism, and none of its two options misspelt."""
    if not has("verl", "hydra"):
        row("verl", "takes degrees by answer", "not run")
        pytest.skip("hydra is not there")
    plan = plan_rl(model="qwen3-4b", cluster="dgx-a100-40gb:1", prompts=8, samples=8, output=4000, output_p90=9000,
                   output_max=65000, kl=True, target="verl", lengths_rule="dynamic")  # fmt: skip
    right = words_of("verl", emit_rl(plan, "verl").files["verl.overrides"])
    wrong = [[word.replace(name, name[:-1]) for word in right]
             for name in ("dynamic_context_parallel", "max_seqlen_per_dp_cp_rank")]  # fmt: skip
    accepted, *refused = verdicts("verl", [right, *wrong])
    row("verl", "takes degrees by answer", f"{int(accepted is None)} of 1 plan, {refused.count(None)} of 2 misspelt")
    assert accepted is None
    assert None not in refused
