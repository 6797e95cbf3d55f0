"""Options of people's own programs on TrainingArguments, under the names of TRL.

Sources: shibing624/MedicalGPT 5a0991ea, training/supervised_finetuning.py (use_peft, lora_rank 8, target_modules `all`:
every linear module but the head) and pretraining.py (block_size); QwenLM/Qwen 2df8e8a, finetune.py
(use_lora, q_lora: weights in 4 bits; rank 64 of every linear module but the head), as that of the examples
of QwenLM/Qwen3 before 82ddf00; lm-sys/FastChat 0e6d3e4b, train/train_lora.py (adapters always, rank 8 of queries and
values).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from ..argv import Arguments

_NAMES = {"lora_rank": "lora_r", "target_modules": "lora_target_modules", "use_lora": "use_peft",
          "q_lora": "load_in_4bit", "block_size": "max_length", "max_seq_len": "max_length"}  # fmt: skip
# Layers put on GPUs by their memory, where one process trains; of several each takes its own GPU.
_PLACES, _BY_MEMORY = "device_map", ("auto", "balanced", "balanced_low_0", "sequential")
_LENGTHS = ("max_source_length", "max_target_length")
KINDS = {"lora_rank": "int", "target_modules": "any", "use_lora": "bool", "q_lora": "bool",
         **dict.fromkeys(("block_size", "max_seq_len", *_LENGTHS), "int"), _PLACES: "any"}  # fmt: skip
# Program -> whose it is, and the adapters that it trains where its options leave them open.
_DEFAULTS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "finetune.py": ("Qwen", {"lora_r": 64, "lora_target_modules": "all-linear"}),
    "train_lora.py": ("FastChat", {"lora_r": 8, "lora_target_modules": ["q_proj", "v_proj"]}),
}
_ALWAYS = "train_lora.py"  # trains adapters without a switch
_SWITCHES = ("use_lora", "q_lora")
_TRL = re.compile(r"(^|[/ ])(trl|(run_)?(sft|dpo|grpo|orpo|reward)\w*)(\.py)?( |$)")
_ADAPTERS = ("lora_r", "lora_target_modules")


def renamed(arguments: Arguments) -> None:
    """Brings the options of such a program into those that are read. A rank without a switch is a gap where TRL, which
    asks for one, does not run."""
    given = arguments.settings
    if given.get("target_modules") == "all":
        given["target_modules"] = "all-linear"
    switch = next((name for name in _SWITCHES if given.get(name)), "")
    for name, known in _NAMES.items():
        if name in given:
            arguments.replace(name, {known: given[name]})
    if switch or _name(arguments) == _ALWAYS:
        _open_adapters(arguments, _NAMES.get(switch, "use_peft"))
    if all(isinstance(given.get(name), int) for name in _LENGTHS):  # a source and its target, each cut to its length
        total = sum(given[name] for name in _LENGTHS)
        arguments.replace(_LENGTHS[0], {"max_length": total})
    for name in _LENGTHS:
        given.pop(name, None)
    places = given.pop(_PLACES, "auto" if _PLACES in arguments.lines else None)  # `auto` is left out of settings
    if places in _BY_MEMORY and max(arguments.ranks.values(), default=1) == 1:
        given[_PLACES] = places
    stated = next((name for name in _ADAPTERS if name in given), "")
    if stated and "use_peft" not in given and arguments.program and not _TRL.search(arguments.program):
        given.pop(stated)
        arguments.gap(stated, "the program decides whether adapters are trained, and it is not TRL's")


def _name(arguments: Arguments) -> str:
    """The file of the program; empty where no command names it."""
    words = re.findall(r"[\w.-]+\.py\b", arguments.program)
    return str(words[-1]) if words else ""


def _open_adapters(arguments: Arguments, switch: str) -> None:
    """The adapters whose rank or modules a program decides: its defaults where they are known, else a gap."""
    given, program = arguments.settings, _name(arguments)
    owner, defaults = _DEFAULTS.get(program, ("", {}))
    taken = {name: value for name, value in defaults.items() if name not in given}
    arguments.replace(switch, {"use_peft": True, **taken})
    if taken:
        text = ", ".join(f"{name} {','.join(value) if isinstance(value, list) else value}"
                         for name, value in taken.items())  # fmt: skip
        arguments.notes.append(f"{text}: the default of {program} of {owner}; `--arg NAME=VALUE` sets another")
    elif "lora_r" not in given:
        arguments.gap("use_peft", "the rank of adapters is the program's own default: `--arg lora_r=RANK` sets it")
