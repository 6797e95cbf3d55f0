"""Reads DeepSpeed's JSON beside a command of Megatron-DeepSpeed: ZeRO stage, offload, curriculum.

Sources: deepspeedai/Megatron-DeepSpeed 3.0, megatron/arguments.py; DeepSpeed edaa7221, engine.py
(_do_optimizer_sanity_check) and bf16_optimizer.py.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from ..argv import Arguments
from ..cpu_offload import FACT
from ..deepspeed.compression import without_rounding
from ..deepspeed.target import CONFIG as DEEPSPEED
from ..option_lists import option_list
from ..options import Entry, Facts, Settings
from ..reading import read_facts

# The option that names DeepSpeed's JSON.
CONFIG = "--deepspeed_config"
# ZeRO stage -> the options of today that shard the same states.
_SHARDED: Mapping[int, Settings] = {
    0: {}, 1: {"--use-distributed-optimizer": True},
    2: {"--use-distributed-optimizer": True, "--use-megatron-fsdp": True,
        "--data-parallel-sharding-strategy": "optim_grads"},
    3: {"--use-distributed-optimizer": True, "--use-megatron-fsdp": True,
        "--data-parallel-sharding-strategy": "optim_grads_params"},
}  # fmt: skip

# The setting and the fact of the software that runs instead of Megatron Core: a version of profiles/catalogue/stacks.
_STACK, STACK = "--deepspeed", "stack_of_engine"
_PLAIN, _FLASH = "megatron-deepspeed-2022", "megatron-deepspeed-flash2"
_FLASH_OPTION = "--use-flash-attn"  # and those of DeepSpeed's fork with another end: -v2, -triton, -builder

# Fact of the JSON -> the option of the command that states it, too.
_SAME = {"workload.global_batch": "--global-batch-size", "micro_batch": "--micro-batch-size"}


def modernise(arguments: Arguments) -> None:
    """The ZeRO stage, from the JSON of --deepspeed_config if it is given, or else from --zero-stage."""
    given = arguments.settings
    deepspeed, stage = given.pop("--deepspeed", None), given.pop("--zero-stage", None)
    config = str(given.pop(CONFIG, ""))
    arguments.unclear = [doubt for doubt in arguments.unclear if doubt.field != CONFIG]
    if not deepspeed:
        return
    if (path := _json_of(arguments.texts, config)) is not None:
        stage = _read_json(arguments, path)
    elif stage is None:
        arguments.gap(CONFIG, "the ZeRO stage is in this file: give it as a further FILE")
        arguments.open_fields |= {"zero", "shard", "offload"}
        return
    elif config:
        note = f"ZeRO stage {stage:g} is that of --zero-stage: the JSON of --deepspeed_config is not here"
        arguments.notes.append(note)
    if stage == 0 and given.get("--bf16") and "--no-pipeline-parallel" not in arguments.lines:
        stage = 1
        arguments.notes.append("bf16 at ZeRO stage 0: its pipeline runs DeepSpeed's BF16_Optimizer, which shards "
                               "states as stage 1 does")  # fmt: skip
    arguments.replace("--zero-stage", _SHARDED.get(int(stage), {}))
    flash = any(name.startswith(_FLASH_OPTION) for name in (*given, *arguments.unknown))
    given[_STACK] = _FLASH if flash else _PLAIN
    arguments.notes.append(f"the engine is DeepSpeed: priced on the stack {given[_STACK]}")


def _json_of(texts: Mapping[str, str], name: str) -> str | None:
    """The path of DeepSpeed's JSON; None where it is missing or still a template."""
    own = re.split(r"[/\\]", name)[-1]
    for path, text in texts.items():
        if re.split(r"[/\\]", path)[-1] == own or (path.endswith(".json") and '"zero_optimization"' in text):
            try:
                data = json.loads(text)
            except ValueError:
                continue
            if isinstance(data, dict):
                return path
    return None


def _read_json(arguments: Arguments, path: str) -> int:
    """The ZeRO stage of DeepSpeed's JSON. Its offload goes to the settings, its gaps and problems to those here."""
    options, _ = option_list("deepspeed")
    inner = DEEPSPEED.import_files({path: arguments.texts[path]}, options, ())
    facts = without_rounding(read_facts(inner, DEEPSPEED.table(options)), inner)
    arguments.problems += inner.problems_under(CONFIG)
    arguments.gaps += inner.gaps
    arguments.notes += [note for note in inner.notes if note not in arguments.notes]
    for name in facts.get(FACT, {}):
        arguments.gap(CONFIG, f"{name}, which is no technique of Megatron")
    if facts.get("offload") == "opt":
        arguments.settings.setdefault("--optimizer-cpu-offload", True)
    _check_precision(arguments, str(facts.get("precision", "")))
    for fact, name in _SAME.items():
        here, there = arguments.settings.get(name), facts.get(fact)
        if isinstance(here, int) and there is not None and here != there:
            arguments.gap(CONFIG, f"it has {there} for {name}, the command {here}")
    return int(facts.get("zero", 0))


def _check_precision(arguments: Arguments, precision: str) -> None:
    """A gap where the JSON trains in another number format than the options of the command."""
    stated = next((name for name in ("bf16", "fp16") if arguments.settings.get(f"--{name}")), "fp32")
    if precision in ("bf16", "fp16") and precision != stated:
        arguments.gap(CONFIG, f"it trains in {precision}, the command in {stated}")


def compared_fields(facts: Facts) -> dict[str, Any] | None:
    """The fields that layouts are compared with, on the stack of DeepSpeed: its pipeline runs 1F1B, with the states of
    ZeRO-1 at most, and its modules are recomputed as the script has it. None for other scripts."""
    if STACK not in facts:
        return None
    states = {"pp": 1} if facts["zero"] > 1 else {"zero": facts["zero"]}
    recompute = facts.get("recompute", {})
    held = {"recompute": recompute.get("mode", "none"), "recompute_layers": recompute.get("layers", 0)}
    return {**states, **held, "schedule": "1f1b", "cp": facts["cp"], "offload": facts["offload"]}


ENTRY = Entry((STACK,), (_STACK,), lambda setup: {},
              lambda settings, facts: {STACK: settings[_STACK]} if _STACK in settings else {})  # fmt: skip
