"""YAML of programs that hand one block of it to the trainer, and what trackers record of a run."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from ....errors import InputError
from ....profiles.io.document import Document, FieldPath
from ..argv import Arguments
from ..reading import may_change

_MICRO = "per_device_train_batch_size"
_RECORDED = "wandb_version"
# Words of a training that is more than a step of the model that learns.
_OTHER_WAYS = re.compile(r"(?i)\b([a-z]?dpo|ppo|grpo|kto|orpo|simpo|rlhf|distill\w*|rewards?)\b")
_PATHS = re.compile(r"name|dir|path|project|tag|output|run|data")
_NODES, _PER_NODE = ("num_nodes", "nodes", "nnodes"), ("gpus_per_node", "num_gpus_per_node", "n_gpus_per_node")


def unfolded(document: Document, arguments: Arguments, known: Collection[str]) -> Document:
    """The document with the options of the block that the trainer gets at the top; others as they are.

    known: options of the trainer. Those that stand in other blocks come to the top too, under their name or with that
    of the block before it (`model: {name_or_path: ...}`). The program's other options are named and not read,
    unless a name has a word of a layout in it. Raises InputError for a run's record by W&B, which holds the options of
    the model among those of the training.
    """
    data = document.data if isinstance(document.data, Mapping) else {}
    if _RECORDED in data:
        raise InputError.of([document.problem((_RECORDED,), "it is what W&B recorded of a run, no config",
                                              "give the config or the command that started the run")])  # fmt: skip
    holders = [name for name, block in data.items() if isinstance(block, Mapping) and _MICRO in block]
    if _MICRO in data or len(holders) != 1:
        return document
    holder = holders[0]
    arguments.notes.append(f"the options of the block `{holder}` are taken for those of the trainer")
    flat, aside = dict(data[holder]), list[str]()
    places: dict[str, FieldPath] = {name: (holder, name) for name in flat}
    for name, given in data.items():
        if name == holder:
            continue
        left = given
        if isinstance(given, Mapping) and name not in known:
            options = _options_in(name, given, known, flat)
            flat |= {option: given[key] for option, key in options.items()}
            places |= {option: (name, key) for option, key in options.items()}
            left = {key: each for key, each in given.items() if not (
                key in options.values() or _ranks(key, each, arguments))}  # fmt: skip
        if _trains_otherwise(name, given, known):
            arguments.gaps.append(document.problem((name,), f"`{given}`: another way to train"))
        elif name in known or not _is_plain(name, left):
            flat[name], places[name] = left, (name,)
        elif left != {}:
            aside.append(name)
    if aside:
        arguments.notes.append(f"{', '.join(aside)}: of the program's own, taken to change no step")
    return replace(document, data=flat, base=(), line_of=lambda path: document.line(
        (*places[str(path[0])], *path[1:]) if path and path[0] in places else path))  # fmt: skip


def _options_in(name: str, block: Mapping[str, Any], known: Collection[str], taken: Collection[str]) -> dict[str, str]:
    """Option of the trainer -> its key in a block."""
    return {option: key for key in block for option in (key, f"{name}_{key}")
            if option in known and option not in taken}  # fmt: skip


def _trains_otherwise(name: str, value: Any, known: Collection[str]) -> bool:
    """Whether a text of the program's own names another way to train."""
    return (isinstance(value, str) and name not in known and not _PATHS.search(name)
            and _OTHER_WAYS.search(value) is not None)  # fmt: skip


def _ranks(key: str, value: Any, arguments: Arguments) -> bool:
    """Whether a key states nodes or their GPUs, which go to the arguments."""
    fact = "num_nodes" if key in _NODES else "gpus_per_node" if key in _PER_NODE else ""
    if fact and isinstance(value, int) and value > 0:
        arguments.ranks[fact] = value
    return bool(fact)


def _is_plain(name: str, value: Any) -> bool:
    """Whether no name in a value has a word of a layout."""
    if isinstance(value, Mapping):
        return all(_is_plain(str(key), each) for key, each in value.items())
    if isinstance(value, list):
        return all(_is_plain(name, each) for each in value)
    return value in (None, False) or not may_change(name)
