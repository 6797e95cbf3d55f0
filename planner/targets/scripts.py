"""Reads options from files that start a training: a shell script, or a plain list of options.

A script is followed, not run (shell/script.py, loaded with the first script: plans need none). The reader takes the
one command with options of a layout. It rejects two such commands unless their options are equal.
"""

from __future__ import annotations

import posixpath
import re
import shlex
from collections.abc import Mapping, Sequence
from itertools import compress
from typing import TYPE_CHECKING, Any

from ...errors import FieldProblem
from .argv import Arguments, option_name, read_words
from .launched import DEVICES, launched
from .option_lists import OptionList
from .several_jobs import chosen
from .shell.jobs import pbs_ranks, slurm_variables
from .shell.nearby import others_begin
from .shell.values import MISSING, UNKNOWN, UNSET, marks, shown, without

if TYPE_CHECKING:
    from .shell.followed import Command, Followed

# Variables that set the number of ranks where the command does not.
_COUNTS = {
    "NNODES": "num_nodes", "NUM_NODES": "num_nodes", "SLURM_NNODES": "num_nodes", "GPUS_PER_NODE": "gpus_per_node",
    "NPROC_PER_NODE": "gpus_per_node", "NUM_GPUS_PER_NODE": "gpus_per_node", "WORLD_SIZE": "world",
}  # fmt: skip
# Names of programs beside a training: they make its data or weights, or use its weights.
_NO_TRAINING = re.compile(
    r"generat|evaluat|eval_|convert|checkpoint_util|export|merge|preprocess|inference|server|quantize|prune")
# Options of programs that name a file with options.
_FILES = ("--config", "--config-file", "--config_file", "--yaml-cfg", "--args-file")
# Files without options of a training.
_SETTINGS_OF_USERS = re.compile(r"bashrc|profile|activate|conda|module|\.env$|^set_env\.sh$|^setvars\.sh$")
# A positional parameter that a script gives a name: MODEL_SIZE=${2:-8B}
_PARAMETER = re.compile(r"(?m)^(?:export +)?([A-Za-z_]\w*)=[\"']?\$\{?(\d+)(?::?-[^}\n]*)?\}?[\"']?\s*(?:#.*)?$")
_NAMED = re.compile(r"([A-Za-z_]\w*|\d+)=(.*)", re.DOTALL)


def read_arguments(path: str, text: str, options: OptionList) -> Arguments:
    """The options of one file."""
    return read_scripts({path: text}, options)


def read_scripts(files: Mapping[str, str], options: OptionList, given: Sequence[str] = (),
                 wanted: frozenset[str] = frozenset()) -> Arguments:  # fmt: skip
    """The options in `files` (path -> text), which may source one another.

    given: positional parameters in order, `3=...` for the third, `NAME=value` for a variable.
    wanted: options of a layout that identify the command; empty: all options.
    """
    known = wanted or frozenset(options.options)
    begun = others_begin(files)
    arguments = Arguments()
    for path, text in files.items():
        if path in begun and len(begun) < len(files):
            continue
        if path.endswith(".json") or _is_named(path, files):  # the command, or a query of the script, names it
            arguments.texts[path] = text
            continue
        if text.lstrip().startswith("--") or is_list(text):
            part = Arguments()
            read_words(list(plain_words(text)), options, part, path)
        else:
            part = _read_script(path, text, options, given, files, known)
        arguments.add(part, path)
    return arguments


def _is_named(path: str, files: Mapping[str, str]) -> bool:
    """Whether a YAML file is one that another file names."""
    name = posixpath.basename(path)
    return name.endswith((".yaml", ".yml")) and any(name in text for other, text in files.items() if other != path)


def is_list(text: str) -> bool:
    """Whether a file holds options only."""
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.strip().startswith("#")]
    return bool(lines) and lines[0].startswith("--")


def plain_words(text: str) -> list[tuple[str, int]]:
    """(word, line) in a file of options, without any expansion."""
    out = []
    for number, line in enumerate(text.splitlines(), 1):
        bare = re.sub(r"(?:^|\s)#.*$", "", line).rstrip().rstrip("\\")
        try:
            words = shlex.split(bare, comments=False)
        except ValueError:  # a quote that spans lines
            words = bare.split()
        out += [(word, number) for word in words]
    return out


def _read_script(path: str, text: str, options: OptionList, given: Sequence[str], beside: Mapping[str, str],
                 known: frozenset[str]) -> Arguments:  # fmt: skip
    from .shell.script import follow

    named = [found for word in given if (found := _NAMED.fullmatch(word))]
    positional = [word for word in given if not _NAMED.fullmatch(word)]
    environment = slurm_variables(text) | {found[1]: found[2] for found in named if not found[1].isdigit()}
    numbered = {int(found[1]): found[2] for found in named if found[1].isdigit()}
    followed = follow(text, environment, positional or None, numbered, beside)
    jobs = [command for command in followed.commands if len(known.intersection(_names(command, options))) > 1]
    loose, jobs = [job for job in jobs if _is_option(job)], [job for job in jobs if not _is_option(job)]
    readings = [_read_job(path, job, followed, options) for job in jobs or _fragments(followed)]
    if any(trains(reading.program) for reading in readings):
        kept = [trains(reading.program) for reading in readings]
        jobs, readings = [*compress(jobs, kept)], [*compress(readings, kept)]
    distinct = [index for index, reading in enumerate(readings)
                if all(_differ(reading, other, known) for other in readings[:index])]  # fmt: skip
    arguments = readings[0] if readings else Arguments()
    if len(distinct) == 1 and jobs:
        arguments.of_equals = {name: line for reading in readings for name, line in reading.unknown.items()
                               if name not in {*arguments.unknown, *reading.off}}
    if len(distinct) > 1 and jobs:
        place, problem = chosen([jobs[index].line for index in distinct],
                                [_told(readings[index], known) for index in distinct], given)  # fmt: skip
        arguments = readings[distinct[place]]
        arguments.problems += [] if problem is None else [problem._replace(file=path)]
    elif not jobs:
        for reading in readings[1:]:
            arguments.add(reading, path)
        for command in followed.commands:  # a command with its options in another file
            launched((*command.around, *command.words), arguments)
    if not arguments.settings and (elsewhere := _elsewhere(followed)) is not None:
        arguments.problems.append(elsewhere._replace(file=path))
    _describe(arguments, followed, path, pbs_ranks(text))
    arguments.notes += [f"line {job.line} begins with {job.words[0]}, which starts nothing: the line before it lacks a "
                        "backslash, so its options are not read" for job in loose]  # fmt: skip
    arguments.parameters = {int(found[2]): found[1] for found in _PARAMETER.finditer(text)}
    return arguments


def _is_option(command: Command) -> bool:
    """Whether an option stands where a program should."""
    return command.words[0].startswith("--")


def _elsewhere(followed: Followed) -> FieldProblem | None:
    """The place of the options of a script without any: in a script that it starts, or in a file of its program."""
    for name, line in followed.started.items():
        return FieldProblem(f"starts {name}, which is not here", line=line, hint="give it as a further FILE")
    for command in followed.commands:
        pairs = zip(command.words, command.words[1:], strict=False)
        file = next((shown(value) for word, value in pairs if word in _FILES), "")
        if file and any(re.search(r"\.py$", shown(word)) for word in command.words):
            return FieldProblem(f"its program reads its options from {file}", line=command.line,
                                hint="give them as a file of lines `--option value`")  # fmt: skip
    return None


def trains(program: str) -> bool:
    """Whether a program may train, by its name."""
    return _NO_TRAINING.search(posixpath.basename(program)) is None


def _differ(reading: Arguments, other: Arguments, known: frozenset[str]) -> bool:
    """Whether two jobs have other options of a layout, or launchers that state other numbers of ranks."""
    counts = [{"num_nodes": 1, **job.ranks} for job in (reading, other) if job.ranks]
    return _told(reading, known) != _told(other, known) or (len(counts) == 2 and counts[0] != counts[1])


def _told(reading: Arguments, known: frozenset[str]) -> dict[str, Any]:
    """The options of a layout."""
    return {name: value for name, value in reading.settings.items() if name in known}


def _names(command: Command, options: OptionList) -> list[str]:
    return [option_name(word.partition("=")[0], options) for word in command.words if word.startswith("--")]


def _fragments(followed: Followed) -> list[Command]:
    """The values of variables that hold options, in a file that starts no command."""
    from .shell.followed import Command

    out = []
    for name, value in followed.variables.values.items():
        words = value if isinstance(value, list) else value.split()
        if any(word.startswith("--") for word in words):
            out.append(Command(tuple(part for word in words for part in word.split()), followed.lines.get(name, 0)))
    return out


def _read_job(path: str, job: Command, followed: Followed, options: OptionList) -> Arguments:
    """The options that a command passes to its program, and the ranks that its launcher starts."""
    arguments = Arguments()
    lines = job.lines or (job.line,) * len(job.words)
    start = next((index for index, word in enumerate(job.words) if re.search(r"\.py['\"]?$", shown(word))), -1)
    if start >= 0:
        arguments.program = shown(job.words[start])
    launched((*job.around, *job.words[: max(start, 0)]), arguments)
    words = list(zip(job.words, lines, strict=True))[start + 1 :]
    holders = [word for word, _ in words if any(choice.startswith("--") for choice in _choices(word, followed))]
    for word, line in read_words(words, options, arguments, path, holders):
        _loose(word, line, followed, options, arguments, path)
    return arguments


def _loose(word: str, line: int, followed: Followed, options: OptionList, arguments: Arguments, path: str) -> None:
    """A word that may hold options: empty where it is not set, or else its choices."""
    name = shown(word)
    unknown = marks(word, UNKNOWN)
    if without(word, UNSET + MISSING + UNKNOWN).strip("-") or name.startswith("$(seq "):  # values of another option
        return
    if not unknown and (open_text := _may_hold_options(word, followed)):
        hint = f"give the value of {name.lstrip('-$')} by --arg NAME=VALUE"
        arguments.unclear.append(FieldProblem(f"`{name}` {open_text}", file=path, line=line, hint=hint))
    elif not unknown:
        note = f"`{name}` is not set: taken as empty (--arg gives it)"
        arguments.notes += [note] if note not in arguments.notes else []
    if not unknown:
        return
    choices = _choices(word, followed)
    dashes = "--" if word.startswith("--") else ""
    held = sorted({dashes + part for choice in choices for part in choice.split() if dashes + part in options.options})
    if held or not choices:
        what = ", ".join(held) if held else "options"
        source = unknown[0].rpartition(" by ")[2]
        hint = "put what it prints in its place" if "(" in source else f"give the value of {source} by --arg"
        arguments.unclear += [FieldProblem(f"`{name}` may hold {what}", file=path, line=line, field=option, hint=hint)
                              for option in held or [""]]  # fmt: skip


def _choices(word: str, followed: Followed) -> list[str]:
    """The possible values of the unknown parts of a word."""
    return [choice for text in marks(word, UNKNOWN) for choice in followed.choices.get(text, ())]


def _may_hold_options(word: str, followed: Followed) -> str:
    """Why a word that is not set may be an option of a layout; "" where the shell would pass nothing."""
    if word.startswith("--"):
        return "is an option whose name is not set here"
    absent = [name for name in followed.not_there if not _SETTINGS_OF_USERS.search(name)]
    return f"may hold options: {', '.join(absent)} is not here" if absent and shown(word) != "$@" else ""


def ranks_of(words: Sequence[str], followed: Followed, path: str,
             text: str) -> tuple[dict[str, int], list[FieldProblem]]:  # fmt: skip
    """num_nodes, gpus_per_node and world, as far as the launcher, variables or directives of a script state them, and
    gaps in them."""
    arguments = Arguments()
    launched(words, arguments)
    _describe(arguments, followed, path, pbs_ranks(text))
    if "gpus_per_node" in arguments.ranks and any(posixpath.basename(word) == "deepspeed" for word in words):
        arguments.ranks.pop("world", None)  # its launcher is one task of a node and starts a rank for each GPU
    return arguments.ranks, arguments.gaps


def _describe(arguments: Arguments, followed: Followed, path: str, of_job: Mapping[str, int]) -> None:
    """Stores ranks, variables, and the files that the script writes or misses. of_job: ranks that a scheduler gives."""
    ends = followed.inner | followed.variables.values
    values = {name: shown(value) for name, value in ends.items() if isinstance(value, str)}
    arguments.environment |= values
    counts = {_COUNTS[name]: int(value) for name, value in values.items() if name in _COUNTS and value.isdigit()}
    if not arguments.ranks:
        slurm = {"num_nodes": "SLURM_NNODES", "gpus_per_node": "SLURM_GPUS_ON_NODE", "world": "SLURM_NTASKS"}
        stated = {key: int(values[name]) for key, name in slurm.items() if values.get(name, "").isdigit()}
        known = stated | counts if {"gpus_per_node", "world"}.isdisjoint(counts) else counts
        if "world" not in counts and {"gpus_per_node", "num_nodes"} <= known.keys():
            known.pop("world", None)  # tasks of Slurm may be fewer than GPUs: one of a node starts them all
        visible = values.get("CUDA_VISIBLE_DEVICES", "")
        seen = {"gpus_per_node": visible.count(",") + 1} if DEVICES.fullmatch(visible) and not arguments.alone else {}
        arguments.ranks |= known or of_job or seen
        if not known and "world" in of_job:
            arguments.gaps.append(FieldProblem("#PBS asks for nodes of unlike numbers of GPUs", file=path))
        if not arguments.ranks and arguments.alone:
            arguments.ranks["world"] = 1
    elif "world" not in arguments.ranks:
        arguments.ranks = {name: count for name, count in counts.items() if name != "world"} | arguments.ranks
    arguments.texts |= {posixpath.basename(shown(name)): text for name, text in followed.files.items()}
    arguments.notes += [f"`{name}` (line {line}) is sourced and missing: give it as a further FILE"
                        for name, line in followed.not_there.items()
                        if not _SETTINGS_OF_USERS.search(name)]  # fmt: skip
