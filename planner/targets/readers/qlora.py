"""Options of the QLoRA repository's own program, in those of TrainingArguments and TRL.

Source: artidoro/qlora 7f4e95a6, qlora.py: TrainingArguments (defaults), get_accelerate_model (bits, adapters of all
linear modules but the head) and DataCollatorForCausalLM (a source and its target, each cut to its own length).
"""

from __future__ import annotations

from ..argv import Arguments

_LENGTHS = {"source_max_len": 1024, "target_max_len": 256}
_BITS, _WHOLE, _TYPE = "bits", "full_finetune", "quant_type"
KINDS = {**dict.fromkeys((*_LENGTHS, _BITS), "int"), _WHOLE: "bool", "double_quant": "bool", _TYPE: "str",
         "lora_modules": "any", "max_memory_MB": "any"}  # fmt: skip
_DEFAULTS = {"per_device_train_batch_size": 1, "gradient_accumulation_steps": 16, "optim": "paged_adamw_32bit",
             "gradient_checkpointing": True}  # fmt: skip
_WIDE = (16, 32)


def renamed(arguments: Arguments) -> None:
    """Brings the options of the program into those that are read, with its defaults; leaves other programs alone."""
    given = arguments.settings
    if not given.keys() & _LENGTHS.keys() or not given.keys() & {_BITS, _WHOLE, _TYPE}:
        return
    bits, whole = given.get(_BITS, 4), given.get(_WHOLE) is True
    if whole and bits not in _WIDE:
        place = _WHOLE if _BITS not in given else _BITS
        arguments.fail(place, f"full_finetune of weights of {bits} bits", arguments.lines.get(place, 0),
                       arguments.files.get(place, ""), "--bits 16, or adapters")  # fmt: skip
    if not whole and bits not in (4, 8, *_WIDE):
        arguments.gap(_BITS, f"`{bits}` has no counterpart in a plan")
    first = next(name for name in _LENGTHS if name in given)
    arguments.replace(first, {"max_length": sum(given.get(name, default) for name, default in _LENGTHS.items())})
    given.pop(next((name for name in _LENGTHS if name in given), ""), None)
    if not whole:
        adapters = {"use_peft": True, "lora_target_modules": "all-linear", "load_in_4bit": bits == 4,
                    "load_in_8bit": bits == 8}  # fmt: skip
        arguments.replace(_BITS, adapters)
        given.setdefault("lora_r", 64)
    if whole:
        given.pop("lora_r", None)
    if not whole and bits == 4 and given.get(_TYPE, "nf4") != "nf4":
        arguments.notes.append(f"{_TYPE} {given[_TYPE]}: priced as nf4, which has as many bits")
    for name in KINDS:
        given.pop(name, None)
    for name, value in _DEFAULTS.items():
        given.setdefault(name, value)
