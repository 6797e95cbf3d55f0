"""The options of accelerate or DeepSpeed for a recipe of transformers' Trainer: a file beside it, or a block inside it.

Source: transformers 5.13, training_args.py (deepspeed: a path, or the options themselves).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from ....errors import FieldProblem
from ..accelerate.target import CONFIG as OF_ACCELERATE
from ..argv import Arguments
from ..deepspeed.compression import without_rounding
from ..deepspeed.not_read import PRECISION_OPEN
from ..deepspeed.target import CONFIG as OF_DEEPSPEED
from ..foreign import is_recipe
from ..option_lists import option_list
from ..reading import fields_of, read_facts
from . import accelerator_block
from .shipped import options_of

# The option of `accelerate launch` that names its file; the file is given beside the recipe.
CONFIG_FILE = "--config_file"
DEEPSPEED = "deepspeed"
_OF_FILES = {CONFIG_FILE: ("accelerate", OF_ACCELERATE), DEEPSPEED: ("deepspeed", OF_DEEPSPEED)}


def beside(path: str, text: str) -> Arguments | None:
    """The facts of an accelerate YAML or a DeepSpeed JSON, under the option that names such a file; the file that
    accelerator_config names."""
    if is_recipe(text):
        return None
    if '"zero_optimization"' in text:
        return _facts_of(DEEPSPEED, path, text)
    if "distributed_type:" in text:
        return _facts_of(CONFIG_FILE, path, text)
    return accelerator_block.beside(path, text)


def modernise(arguments: Arguments) -> None:
    """Reads the options of DeepSpeed inside the recipe; names files of DeepSpeed and accelerate that are not given."""
    if isinstance(file := arguments.settings.get(CONFIG_FILE), str):
        text = f"the sharding is in {file}: give it as a further FILE"
        arguments.gaps.append(FieldProblem(text, file=arguments.files.get(CONFIG_FILE, ""),
                                           line=arguments.lines.get(CONFIG_FILE, 0), field=CONFIG_FILE))  # fmt: skip
    given, path = arguments.settings.get(DEEPSPEED), arguments.files.get(DEEPSPEED, "")
    line = arguments.lines.get(DEEPSPEED, 0)
    if isinstance(given, str) and (shipped := options_of(given)) is not None:
        release, block = shipped
        arguments.notes.append(f"{given} is taken as {release} ships it: another one is given as a further FILE")
        arguments.add(inside(block, path, line), path)
    elif isinstance(given, str) and given:
        text = f"the ZeRO stage is in {given}: give it as a further FILE"
        arguments.gaps.append(FieldProblem(text, file=path, line=line, field=DEEPSPEED))
    elif isinstance(given, Mapping) and "facts" not in given:
        arguments.add(inside(given, path, line), path)


def inside(block: Mapping[str, Any], path: str, line: int) -> Arguments:
    """The facts of DeepSpeed's options that stand in the recipe, all in the line of the block."""
    out = _facts_of(DEEPSPEED, f"{DEEPSPEED}.json", json.dumps(block))
    for name in ("problems", "gaps"):
        setattr(out, name, [each._replace(file=path, line=line) for each in getattr(out, name)])
    file = out.settings[DEEPSPEED]
    file["lines"] = dict.fromkeys(file["lines"], line)
    out.lines[DEEPSPEED] = line
    return out


def amend(arguments: Arguments, changes: Mapping[str, Any], option: str) -> None:
    """Reads DeepSpeed's file again with the options `changes`, which `option` of the recipe sets."""
    file, (target, config) = arguments.settings[DEEPSPEED], _OF_FILES[DEEPSPEED]
    path, line = arguments.files.get(option, ""), arguments.lines.get(option, 0)
    stated = Arguments(settings=file["settings"] | changes, lines=file["lines"] | dict.fromkeys(changes, line),
                       files=dict.fromkeys(file["lines"], arguments.files.get(DEEPSPEED, ""))
                       | dict.fromkeys(changes, path))  # fmt: skip
    facts = without_rounding(read_facts(stated, config.table(option_list(target)[0])), stated)
    arguments.settings[DEEPSPEED] = {"facts": facts, "settings": stated.settings, "lines": stated.lines}
    of_recipe = [problem._replace(field=option) for problem in stated.problems if problem.field in changes]
    stated.problems = [problem for problem in stated.problems if problem.field not in changes]
    arguments.problems += of_recipe + stated.problems_under(DEEPSPEED)
    arguments.gaps += stated.gaps


def _facts_of(option: str, path: str, text: str) -> Arguments:
    target, config = _OF_FILES[option]
    options, _ = option_list(target)
    inner, table = config.import_files({path: text}, options, ()), config.table(options)
    facts = without_rounding(read_facts(inner, table), inner)
    out = Arguments(problems=inner.problems_under(option), gaps=inner.gaps, ranks=inner.ranks,
                    open_fields=fields_of(inner, table),
                    notes=[note for note in inner.notes if note != PRECISION_OPEN])  # fmt: skip
    stated = {name: value for name, value in inner.settings.items() if value is not None}
    out.settings[option], out.lines[option] = {"facts": facts, "settings": stated, "lines": inner.lines}, 1
    return out
