"""Commands of a script that start MaxText's training, as the document that their overrides make.

Source: MaxText e591f30c (2026-08-22), src/maxtext/configs/pyconfig.py: the first word behind the program is the file of
options, and `name=value` words change it. multihost_runner.py and XPK take the command as one word (`--COMMAND=...`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from ....errors import FieldProblem, InputError
from ....profiles.io.document import Document, FieldPath
from ..maxtext.model import DEFAULTS, HIDDEN
from ..shell.jobs import slurm_variables
from ..shell.nearby import is_script
from ..shell.values import shown
from .commands import Load, only
from .hydra import overrides

if TYPE_CHECKING:
    from ..shell.followed import Command

_TRAINS = re.compile(r"(?i)maxtext[./](trainers[./]pre_train[./])?train(\.py|_compile)?$")
_FILE = re.compile(r".+\.ya?ml")
# The option for the file that another changes; base.yml has the defaults, which need not be stated.
_BASE, _DEFAULTS = "base_config", "base.yml"


def from_script(load: Load) -> Load:
    """A reader of documents that takes a shell script by its command; other texts by `load`."""

    def read(path: str, text: str, given: Sequence[str]) -> Document:
        if not is_script(path, text):
            return load(path, text, given)
        variables = dict(word.partition("=")[::2] for word in given if "=" in word)
        jobs = [*_jobs(text, slurm_variables(text) | variables)]
        if not jobs:
            raise InputError.of([FieldProblem("starts no training of MaxText", file=path)])
        return only(path, jobs, [_document(path, job) for job in jobs], given)

    return read


def _jobs(text: str, variables: dict[str, str], above: int = 0) -> Iterator[Command]:
    """The commands that train, also those that are a word of another command. above: lines before the text."""
    from ..shell.followed import Command
    from ..shell.script import follow

    for command in follow(text, variables, []).commands:
        words = [shown(word) for word in command.words]
        if any(_TRAINS.search(word) for word in words):
            lines = command.lines or (command.line,) * len(words)
            yield Command(command.words, command.line + above, tuple(line + above for line in lines))
        for word in words:
            if " " in word.strip() and re.search(r"(?i)maxtext", word):
                yield from _jobs(re.sub(r"^--?\w+=", "", word), variables, above + command.line - 1)


def _document(path: str, job: Command) -> Document:
    """The overrides of a command, and the file that they change where it is not that of the defaults.

    Raises InputError with all values that cannot be read."""
    data: dict[str, object] = {}
    places: dict[FieldPath, int] = {}
    words = [*zip(map(shown, job.words), job.lines, strict=True)]
    start = next(index for index, (word, _) in enumerate(words) if _TRAINS.search(word))
    for word, line, found in overrides(path, words[start + 1 :]):
        if found is not None:
            name, data[name] = found
            places[name,] = line
        elif _FILE.fullmatch(word) and word.rpartition("/")[2] != _DEFAULTS:
            data[_BASE], places[_BASE,] = word, line
    if not {_BASE, "model_name"} & data.keys():  # the model of base.yml
        data.setdefault(HIDDEN, DEFAULTS[HIDDEN])
    return Document(path, data, line_of=lambda at: places.get(at, job.line))
