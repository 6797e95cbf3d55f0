"""The launch script of a DeepSpeed JSON: the ranks that it starts, and the JSON that it writes by a here-document."""

from __future__ import annotations

from collections.abc import Sequence

from ....errors import FieldProblem, InputError
from ..argv import Arguments
from ..scripts import ranks_of
from ..shell.jobs import slurm_variables
from ..shell.values import marks, shown

_CONFIG = ("--deepspeed_config", "--deepspeed")


def read(path: str, text: str, given: Sequence[str]) -> tuple[Arguments, dict[str, str]]:
    """The ranks of the command that takes such a JSON, and the files that it names and the script writes (path ->
    text). given: positional parameters and variables (`NAME=VALUE`). Options of the program are named and not read.

    Raises InputError for a script without such a command, or with several of unlike ranks.
    """
    from ..shell.script import follow

    variables = dict(word.partition("=")[::2] for word in given if "=" in word)
    followed = follow(text, slurm_variables(text) | variables, [word for word in given if "=" not in word])
    arguments, found, names = Arguments(), list[tuple[dict[str, int], list[FieldProblem]]](), set[str]()
    for job in followed.commands:
        words = [shown(word) for word in job.words]
        start = next((place for place, word in enumerate(words) if word.endswith(".py")), None)
        if start is None or not any(word.partition("=")[0] in _CONFIG for word in words[start:]):
            continue
        found.append(ranks_of((*job.around, *job.words[: start + 1]), followed, path, text))
        names |= {word.rpartition("=")[2] for word in words[start:]}
        arguments.notes.append(f"{words[start]}: its own options are not read beside DeepSpeed's JSON")
    if not found:
        raise InputError.of([FieldProblem("starts no program with --deepspeed_config", file=path)])
    if any(ranks != found[0][0] for ranks, _ in found):
        raise InputError.of([FieldProblem(f"starts {len(found)} programs on unlike numbers of ranks", file=path)])
    arguments.ranks, arguments.gaps = found[0]
    arguments.notes = list(dict.fromkeys(arguments.notes))
    return arguments, {shown(name): body for name, body in followed.files.items()
                       if shown(name) in names and not marks(body)}  # fmt: skip
