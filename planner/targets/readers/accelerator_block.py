"""accelerator_config of a recipe: a block, its JSON as a string, or a JSON file beside the recipe.

Sources: transformers 5.12, training_args.py (_VALID_DICT_FIELDS), trainer_pt_utils.py (AcceleratorConfig) and
trainer.py (create_accelerator_and_postprocess); accelerate 1.15, utils/dataclasses.py (GradientAccumulationPlugin).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ....errors import FieldProblem, did_you_mean, nearest
from ....profiles.io.document import Document
from ...switches.overlaps import SYNC_EACH_BATCH
from ..argv import Arguments
from ..options import Entry, Facts, Settings
from ..switch_options import SWITCH
from .reader import reads

OPTION = "accelerator_config"
_STEPS = "gradient_accumulation_steps"
_KWARGS = "gradient_accumulation_kwargs"
_FIELDS = ("split_batches", "dispatch_batches", "even_batches", "use_seedable_sampler", "non_blocking", _KWARGS,
           "use_configured_state")  # fmt: skip
_KWARGS_FIELDS = ("num_steps", "adjust_scheduler", "sync_with_dataloader", "sync_each_batch")
# Options that a command line gives as JSON.
_DICT_FIELDS = (OPTION, "fsdp_config", "deepspeed", "gradient_checkpointing_kwargs", "lr_scheduler_kwargs")


def expanded(document: Document, arguments: Arguments, more: tuple[str, ...] = ()) -> Document:
    """The document with the blocks that it has as JSON in a string. more: further options with such blocks."""
    data = document.data
    if not isinstance(data, Mapping):
        return document
    blocks: dict[str, Any] = {}
    for name in (*_DICT_FIELDS, *more):
        if isinstance(text := data.get(name), str) and text.startswith("{"):
            try:
                blocks[name] = json.loads(text)
            except json.JSONDecodeError as error:
                arguments.problems.append(document.problem((name,), f"is not JSON: {error}", "a string in JSON"))
                blocks[name] = None
    return replace(document, data={**data, **blocks})


def beside(path: str, text: str) -> Arguments | None:
    """A JSON file that accelerator_config names; None for another file."""
    try:
        data = json.loads(text)
    except json.JSONDecodeError:
        return None
    if not isinstance(data, dict) or not set(data).intersection(_FIELDS):
        return None
    return Arguments(settings={OPTION: data}, lines={OPTION: 1})


def modernise(arguments: Arguments) -> None:
    """Names the file that is not given, and fields that change the batch."""
    given = arguments.settings
    block = given.get(OPTION)
    if isinstance(block, str):
        _gap(arguments, f"its fields are in {block}: give it as a further FILE")
    if not isinstance(block, Mapping):
        return
    kwargs = block.get(_KWARGS) or {}
    if not isinstance(kwargs, Mapping):
        _problem(arguments, f"{_KWARGS} `{kwargs}` is no block", f"fields: {', '.join(_KWARGS_FIELDS)}")
        return
    for name, known in (*((name, _FIELDS) for name in block), *((name, _KWARGS_FIELDS) for name in kwargs)):
        if name not in known:
            _problem(arguments, f"has no field `{name}`", did_you_mean(nearest(str(name), known)))
    if block.get("split_batches") is True:
        _gap(arguments, "split_batches: per_device_train_batch_size counts the sequences of all ranks")
    if (steps := kwargs.get("num_steps")) is None:
        return
    if type(steps) is not int or steps < 1:
        _problem(arguments, f"num_steps `{steps}` is not 1 or more", "")
    elif given.get(_STEPS, 1) not in (1, None):
        line = arguments.lines[_STEPS]
        _problem(arguments, f"num_steps {steps} here, and {_STEPS} {given[_STEPS]} in line {line}", "keep one")
    else:
        given[_STEPS] = steps


def synchronisation() -> Entry:
    """Whether sharded gradients are reduced after every micro-batch."""
    field = f"{SWITCH}{SYNC_EACH_BATCH.name}"

    def read(settings: Settings, facts: Facts) -> Facts:
        block = settings.get(OPTION)
        kwargs = block.get(_KWARGS) if isinstance(block, Mapping) else None
        each = isinstance(kwargs, Mapping) and kwargs.get("sync_each_batch") is True
        return {field: "on"} if each and facts["zero"] > 1 else {}

    return reads((field,), (OPTION,), read)


def _gap(arguments: Arguments, text: str) -> None:
    arguments.gaps.append(FieldProblem(text, OPTION, arguments.files.get(OPTION, ""), arguments.lines.get(OPTION, 0)))


def _problem(arguments: Arguments, text: str, hint: str) -> None:
    file, line = arguments.files.get(OPTION, ""), arguments.lines.get(OPTION, 0)
    arguments.problems.append(FieldProblem(text, OPTION, file, line, hint))
