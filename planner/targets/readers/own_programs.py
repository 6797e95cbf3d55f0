"""YAML of programs that hand one block of it to TrainingArguments, and what trackers record of a run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from ....errors import InputError
from ....profiles.io.document import Document, FieldPath
from ..argv import Arguments

_MICRO = "per_device_train_batch_size"
_RECORDED = "wandb_version"


def unfolded(document: Document, arguments: Arguments) -> Document:
    """The document with the options of its block of TrainingArguments at the top; others as they are.

    Raises InputError for a run's record by W&B, which holds the options of the model among those of the training.
    """
    data = document.data
    if not isinstance(data, Mapping):
        return document
    if _RECORDED in data:
        raise InputError.of([document.problem((_RECORDED,), "it is what W&B recorded of a run, no config",
                                              "give the config or the command that started the run")])  # fmt: skip
    if _MICRO in data:
        return document
    holders = [name for name, block in data.items() if isinstance(block, Mapping) and _MICRO in block]
    if len(holders) != 1:
        return document
    holder, block = holders[0], data[holders[0]]
    arguments.notes.append(f"the options of the block `{holder}` are taken for those of TrainingArguments")

    def line_of(path: FieldPath) -> int:
        return document.line((holder, *path) if path and path[0] in block else path)

    flat = {name: given for name, given in data.items() if name != holder} | dict(block)
    return replace(document, data=flat, line_of=line_of, base=())
