"""Options of people's own programs on TrainingArguments, under the names of TRL.

Sources: shibing624/MedicalGPT 5a0991ea, training/supervised_finetuning.py (use_peft, lora_rank 8, target_modules `all`:
every linear module but the head) and pretraining.py (block_size); QwenLM/Qwen 1.0 and FastChat, finetune.py (use_lora,
q_lora: weights in 4 bits).
"""

from __future__ import annotations

import re

from ..argv import Arguments

_NAMES = {"lora_rank": "lora_r", "target_modules": "lora_target_modules", "use_lora": "use_peft",
          "q_lora": "load_in_4bit", "block_size": "max_length", "max_seq_len": "max_length"}  # fmt: skip
# Layers put on GPUs by their memory, where one process trains; of several each takes its own GPU.
_PLACES, _BY_MEMORY = "device_map", ("auto", "balanced", "balanced_low_0", "sequential")
_LENGTHS = ("max_source_length", "max_target_length")
KINDS = {"lora_rank": "int", "target_modules": "any", "use_lora": "bool", "q_lora": "bool",
         **dict.fromkeys(("block_size", "max_seq_len", *_LENGTHS), "int"), _PLACES: "any"}  # fmt: skip
_TRL = re.compile(r"(^|[/ ])(trl|(run_)?(sft|dpo|grpo|orpo|reward)\w*)(\.py)?( |$)")
_ADAPTERS = ("lora_r", "lora_target_modules")


def renamed(arguments: Arguments) -> None:
    """Brings the options of such a program into those that are read. A rank without a switch is a gap where TRL, which
    asks for one, does not run."""
    given = arguments.settings
    if given.get("target_modules") == "all":
        given["target_modules"] = "all-linear"
    for name, known in _NAMES.items():
        if name in given:
            arguments.replace(name, {known: given[name]})
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
