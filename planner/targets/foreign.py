"""Files of another framework than the format that they are given to."""

from __future__ import annotations

import re
from collections.abc import Mapping

from ...errors import FieldProblem, InputError
from .argv import Arguments

# Keys of recipes, by framework.
_SWIFT = "swift_version|tuner_type|tuner_backend|train_type"
_FACTORY = "finetuning_type|cutoff_len"
_AXOLOTL = "base_model|micro_batch_size|sequence_len"
_TRAINER = "per_device_train_batch_size"
# A file with one of these keys is a recipe, which may hold the options of DeepSpeed or FSDP in a block.
_RECIPES = f"{_SWIFT}|{_FACTORY}|{_AXOLOTL}|{_TRAINER}|model_name_or_path|max_length"
_RECIPE = re.compile(rf"(?m)(^|[{{,])\s*\"?({_RECIPES})\"?\s*:")
# Keys that identify a file, its framework, and the format that reads it. The first match wins.
_LOOKS_LIKE = (
    (r"(?m)\bConfigContainer\b|^\s*(from|import) megatron\.bridge", "Megatron-Bridge", "megatron-bridge"),
    (r"(?m)^\s*(import nemo_run|from nemo\.collections import llm)", "NeMo 2", "nemo-recipe"),
    (r"(?m)^\s*(\w+=\S* +)*megatron (sft|pt|rlhf)\b|\bcli/_megatron/|^(tensor|pipeline|expert)_model_parallel_size:|"
     r"^\s*\"(tensor|pipeline|expert)_model_parallel_size\":", "ms-swift on Megatron-Core", "megatron-swift"),
    (rf"(?m)(^|[{{,])\s*\"?({_SWIFT})\"?\s*:", "ms-swift", "swift"),
    (rf"(?m)^\s*\"?({_FACTORY})\"?\s*:", "LLaMA-Factory", "llama-factory"),
    (rf"(?m)^({_AXOLOTL}):", "Axolotl", "axolotl"),
    (r"(?m)^(exp_manager|trainer):", "NeMo", "nemo"), (r"(?m)^(tokens|parallelism):", "nanotron", "nanotron"),
    (r"(?m)^(base_emb_dim|ici_\w+_parallelism|dcn_\w+_parallelism):", "MaxText", "maxtext"),
    (rf"(?ms)\A(?!.*^\s*\"?({_FACTORY}|{_SWIFT})\"?\s*:).*^\s*\"?{_TRAINER}\"?\s*:",
     "transformers' TrainingArguments", "hf-trainer"),
    (r"(?m)^(fsdp_config|distributed_type|compute_environment):", "accelerate", "accelerate"),
    (r"\"zero_optimization\"", "DeepSpeed", "deepspeed"),
    (r"(?m)^\[(parallelism|training)\]|\bTrainer\.Config\b", "torchtitan", "torchtitan"),
    (r"\bactor_rollout_ref\b", "verl", "verl"), (r"openrlhf[./]cli[./]train_", "OpenRLHF", "openrlhf"),
    (r"(?ms)^policy:.*^\s+(train_global_batch_size|dtensor_cfg|megatron_cfg):", "NeMo-RL", "nemo-rl"),
    (r"--(actor-num-nodes|rollout-batch-size)\b", "slime", "slime"),
    (r"--(num-layers|tensor-model-parallel-size)", "Megatron-LM", "megatron-args"),
)  # fmt: skip


def is_recipe(text: str) -> bool:
    """Whether a file has a key of recipes outside comments."""
    return _RECIPE.search(re.sub(r"(?m)(^|\s)#.*$", "", text)) is not None


def owner_hint(files: Mapping[str, str], format_name: str) -> str:
    """The format for files with keys of another framework; "" for files with keys of this one, or of none."""
    owners = _owners(files)
    return "" if format_name in owners or not owners else _hint(owners)


def refuse_foreign(arguments: Arguments, files: Mapping[str, str], framework: str, format_name: str) -> None:
    """Raises InputError for files of another framework.

    Such files have its keys and none of this one, or most of their keys or all are unknown here.
    """
    owners = _owners(files)
    if [*owners][:1] == [format_name]:
        return
    known, unknown = len(arguments.settings), len(arguments.unknown)
    none_of_it = bool(owners) and format_name not in owners
    if not none_of_it and (unknown <= known or (known and unknown < 4)):
        return
    hint = _hint(owners) if owners else "is it another framework's?"
    first, line = next(iter((arguments.unknown or arguments.lines).items()), ("", 0))
    count = f"{framework} has no such option, nor {unknown - 1} more of the {known + unknown} here"
    raise InputError.of([FieldProblem(count if unknown > 1 else f"no file of {framework}", file=next(iter(files)),
                                      line=line, field=first if unknown > 1 else "", hint=hint)])  # fmt: skip


def _owners(files: Mapping[str, str]) -> dict[str, str]:
    """Format -> framework of each whose keys are in the files, the most likely first."""
    text = "\n".join(files.values())
    return {name: owner for pattern, owner, name in _LOOKS_LIKE if re.search(pattern, text)}


def _hint(owners: Mapping[str, str]) -> str:
    name, owner = next(iter(owners.items()))
    return f"it looks like a file of {owner}: " + (f"`import {name}`" if name else "`import` does not read it")
