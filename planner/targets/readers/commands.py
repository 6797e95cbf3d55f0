"""Commands in a shell script that start a training by options of argparse, as the document that they make.

Source: transformers 5.24, hf_argparser.py: a bool without a value is true, a list has several values.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ....errors import FieldProblem, InputError
from ....profiles.io.document import Document, FieldPath
from ....profiles.io.reader import read_document
from ..argv import Arguments
from ..scripts import ranks_of
from ..several_jobs import chosen
from ..shell.jobs import slurm_variables
from ..shell.nearby import is_script, started_script
from ..shell.values import marks, shown
from . import engine_files

if TYPE_CHECKING:
    from ..shell.followed import Command, Followed

# (words of a command) -> the place of the first option of its program; None where it starts another program.
Starts = Callable[[Sequence[str]], int | None]
# Keys of a document with the ranks that its command starts, and with the program.
RANKS, PROGRAM = "ranks of the command", "program of the command"
# Key with the files of options that the script writes itself: path -> text.
_WRITTEN = "files of the script"
_OPTIONS_FILE = re.compile(r".+\.(ya?ml|json)")
_OF_RUN = re.compile(r"\s*(num_processes|num_machines|machine_rank|main_process_\w+):")
# Options that sweeps change and no step depends on: jobs that differ in them alone are one.
_ASIDE = re.compile(r"learning_rate|lr|lr_\w+|min_lr|(data_)?seed|output_dir|(run|exp|experiment)_name|wandb_\w+|"
                    r"warmup_\w+|weight_decay|num_train_epochs|num_epochs|max_steps|dataset(_\w+)?|data_(path|dir)|"
                    r"train_file|beta|(logging|save|eval|hub|adam)_\w+|report_to|temperature|"
                    r"lora_(alpha|dropout)")  # fmt: skip
_NULLS = ("null", "Null", "NULL", "~")
Load = Callable[[str, str, Sequence[str]], Document]


def _plain(path: str, text: str, given: Sequence[str]) -> Document:
    return read_document(path, text)


def from_command(program: str, starts: Starts, load: Load = _plain) -> Load:
    """A reader of documents that takes a shell script by the command of `program`; other texts by `load`."""

    def read(path: str, text: str, given: Sequence[str]) -> Document:
        if not is_script(path, text):
            return load(path, text, given)
        followed, jobs = jobs_of(path, text, given, lambda words: starts(words) is not None and any(
            word.startswith("--") for word in words), program)  # fmt: skip
        return only(path, jobs, [_document(path, text, job, starts(job.words) or 0, followed) for job in jobs], given)

    return read


def prepared(document: Document, arguments: Arguments) -> Document:
    """The document without its ranks, which go to the arguments, and without values that only a run knows."""
    if not isinstance(document.data, dict) or RANKS not in document.data:
        return document
    ranks, gaps = document.data.pop(RANKS)
    arguments.ranks |= ranks
    arguments.gaps += gaps
    arguments.program = document.data.pop(PROGRAM)
    for path, text in document.data.pop(_WRITTEN).items():
        if (written := engine_files.beside(path, text)) is not None:
            arguments.add(written, f"{document.name}: {path}")
    for name, text in [*document.data.items()]:
        if isinstance(text, str) and re.fullmatch(r"\$\{.*\}", text):
            arguments.doubt(name, f"`{text}` is set when it runs", document.line((name,)), document.name,
                            "give its value: --arg NAME=VALUE")  # fmt: skip
            del document.data[name]
    return document


def jobs_of(path: str, text: str, given: Sequence[str], is_job: Callable[[Sequence[str]], bool],
            program: str) -> tuple[Followed, list[Command]]:  # fmt: skip
    """The commands of a script that start a program. given: words of --arg; those with a dot in their name are options,
    those without `=` positional parameters.

    Raises InputError where there is none."""
    from ..shell.script import follow

    variables = dict(word.partition("=")[::2] for word in given if "=" in word and "." not in word.partition("=")[0])
    followed = follow(text, slurm_variables(text) | variables, [word for word in given if "=" not in word])
    jobs = [command for command in followed.commands if is_job(command.words)]
    if not jobs:
        raise InputError.of([_elsewhere(program, followed)._replace(file=path)])
    return followed, jobs


def _elsewhere(program: str, followed: Followed) -> FieldProblem:
    """The file with the options of a program that is started without any: `PROGRAM FILE.yaml`."""
    for command in followed.commands:
        words = [shown(word) for word in command.words]
        file = next((word for word in words if _OPTIONS_FILE.fullmatch(word)), "")
        if file and f" {program} " in f" {' '.join(words)} ":
            return FieldProblem(f"its options are in {file}", line=command.line, hint="give that file")
    for command in followed.commands:
        if (place := started_script(command.words)) is not None:
            name = shown(command.words[place])
            return FieldProblem(f"starts {name} and no {program}", line=command.line, hint="give that script")
    return FieldProblem(f"starts no {program}")


def only(path: str, jobs: Sequence[Command], documents: Sequence[Document], given: Sequence[str]) -> Document:
    """The document of the jobs of a script, or of the one that --arg chooses. Raises InputError where it chooses none
    of several with different options."""
    bearing = [{name: value for name, value in made.data.items() if not _ASIDE.fullmatch(name)} for made in documents]
    unlike = [place for place, made in enumerate(bearing) if made not in bearing[:place]]
    if len(unlike) == 1:
        return documents[0]
    options = [{name: value for name, value in documents[place].data.items() if name not in (RANKS, PROGRAM, _WRITTEN)}
               for place in unlike]  # fmt: skip
    place, problem = chosen([jobs[place].line for place in unlike], options, given)
    if problem is not None:
        raise InputError.of([problem._replace(file=path)])
    return documents[unlike[place]]


def value_of(text: str) -> Any:
    """The value of a word: a number, a switch, null, a mapping or a list in brackets, or its text. Of a path the last
    part is enough; a value that only a run knows stands as `${NAME}`. Raises InputError for broken brackets."""
    unknown = marks(text if "/" not in text else text.rpartition("/")[2])
    if unknown:
        name = re.sub(r"[${}]", "", unknown[0])
        return f"${{{name}}}"
    if marks(text) or text.strip()[:1] in ("", "#"):
        return shown(text)
    value = read_document("--arg", text).data
    start = text.strip()[0]
    typed = (isinstance(value, int | float) or (value is None and text.strip() in _NULLS)
             or (isinstance(value, Mapping | list) and start in "{[") or (isinstance(value, str) and start in "'\""))
    return value if typed else text


def _word(text: str) -> Any:
    """The value of a word, which argparse takes as text where it is no value of YAML."""
    try:
        return value_of(text)
    except InputError:
        return text


def _document(path: str, text: str, job: Command, start: int, followed: Followed) -> Document:
    """The options of a command, those that name the file of accelerate too."""
    lines = job.lines or (job.line,) * len(job.words)
    data: dict[str, Any] = {}
    places: dict[FieldPath, int] = {}
    words = [*zip(job.words, lines, strict=True)]
    for index, (word, line) in enumerate(words):
        if index >= start and word.startswith("--"):
            name, equals, attached = word[2:].partition("=")
            data[name], places[name,] = _values(words[index + 1 :]) if not equals else _word(attached), line
        elif index < start and word.partition("=")[0] == "--config_file":
            named = word.partition("=")[2] or words[index + 1][0]
            data["--config_file"], places["--config_file",] = shown(named), line
    texts = {each for each in data.values() if isinstance(each, str)}
    data[_WRITTEN] = {shown(name): known for name, body in followed.files.items()
                      if shown(name) in texts and (known := _known(body)) is not None}  # fmt: skip
    data[RANKS] = ranks_of((*job.around, *job.words[:start]), followed, path, text)
    data[PROGRAM] = shown(job.words[start - 1])
    return Document(path, data, line_of=lambda at: places.get(at, job.line))


def _known(text: str) -> str | None:
    """A text that the script writes, without ranks that only a run knows; None where a run decides on more of it."""
    lines = ["" if marks(line) and _OF_RUN.match(line) else line for line in text.splitlines()]
    return None if any(marks(line) for line in lines) else "\n".join(lines)


def _values(following: Sequence[tuple[str, int]]) -> Any:
    """The value behind an option: true where there is none, a list of several."""
    end = next((index for index, (word, _) in enumerate(following) if word.startswith("--")), len(following))
    values = [_word(word) for word, _ in following[:end]]
    return True if not values else values[0] if len(values) == 1 else values


def of_program(pattern: str, needed: Mapping[str, Any] | Sequence[str] = ()) -> Starts:
    """The place behind the words that match a pattern as one text; needed: options of which one is there."""

    def starts(words: Sequence[str]) -> int | None:
        text, ends = "", []
        for word in words:
            text += shown(word) + " "
            ends.append(len(text))
        found = re.search(pattern, text)
        names = {word.partition("=")[0].removeprefix("--") for word in words}
        if found is None or (needed and not names & set(needed)):
            return None
        return next(index + 1 for index, end in enumerate(ends) if end >= found.end())

    return starts
