"""Parses a command line into typed options and holds all results of reading a launch config."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ...errors import FieldProblem
from .option_lists import Option, OptionList
from .shell.values import marks, shown

# Options of torchrun that set the number of ranks.
LAUNCHER = {"--nnodes": "num_nodes", "--nproc-per-node": "gpus_per_node"}
_IGNORED = ("--node-rank", "--master-addr", "--master-port", "--rdzv-backend", "--rdzv-endpoint", "--rdzv-id",
            "--tee", "--log-dir", "--max-restarts", "--standalone", "--role")  # fmt: skip
_SET = "give its value by --arg NAME=VALUE, that of a positional parameter by --arg VALUE in turn"


@dataclass
class Arguments:
    """The content of command lines and configs, by option."""

    # Option -> value, of its type.
    settings: dict[str, Any] = field(default_factory=dict)
    # Option -> line, from 1.
    lines: dict[str, int] = field(default_factory=dict)
    # Option -> path of the file that it is in.
    files: dict[str, str] = field(default_factory=dict)
    # Option that the release does not have -> line.
    unknown: dict[str, int] = field(default_factory=dict)
    # Name with underscores for the hyphens of an option, which a release refuses and some forks accept -> line.
    respelled: dict[str, int] = field(default_factory=dict)
    # Unknown option of a job that has otherwise the same options -> line.
    of_equals: dict[str, int] = field(default_factory=dict)
    # The unknown options that are switched off.
    off: set[str] = field(default_factory=set)
    # num_nodes, gpus_per_node and world, where they are stated.
    ranks: dict[str, int] = field(default_factory=dict)
    # The word that stands for a number of nodes that is not set, or the file with their names; "": none.
    open_nodes: str = ""
    # Whether micro-batches are cut by tokens: their number follows from the data.
    by_tokens: bool = False
    # Whether its launcher starts one rank unless `ranks` says otherwise.
    alone: bool = False
    # Variable -> value assigned in the text.
    environment: dict[str, str] = field(default_factory=dict)
    # Place of a positional parameter -> the name that the script gives it.
    parameters: dict[int, str] = field(default_factory=dict)
    # Values that cannot be read.
    problems: list[FieldProblem] = field(default_factory=list)
    # Values that the release does not know, and values that only a run or its user can give.
    unclear: list[FieldProblem] = field(default_factory=list)
    # Block that something outside the files makes -> its problem, where an option that they do not set matters.
    blocks: dict[str, FieldProblem] = field(default_factory=dict)
    # Options that are not understood and may change the layout, the model or the batch. An import fills this list.
    gaps: list[FieldProblem] = field(default_factory=list)
    # Fields of a plan that a gap leaves open although the options of the fields are read.
    open_fields: set[str] = field(default_factory=set)
    # One sentence per assumed fact.
    notes: list[str] = field(default_factory=list)
    # The script that the command starts, with its folder; "" where there is none.
    program: str = ""
    # Name -> text of files that the command reads. They were passed with it, or the script writes them.
    texts: dict[str, str] = field(default_factory=dict)

    def record(self, option: Option, value: Any, line: int, path: str) -> None:
        """Stores the value of an option, or the problem where the option does not accept it."""
        if (wrong := option.wrong_type(value)) is not None:
            self.fail(option.name, wrong, line, path)
        elif (wrong := option.wrong(value)) is not None:
            self.doubt(option.name, wrong, line, path)
        else:
            if option.name in self.settings and self.settings[option.name] != value:
                both = f"lines {self.lines[option.name]} and {line}"
                self.notes.append(f"{option.name} is given twice with two values ({both}): the last is taken")
            self.unclear = [doubt for doubt in self.unclear if doubt.field != option.name]
            self.lines[option.name] = line
            self.settings[option.name] = value

    def fail(self, name: str, text: str, line: int, path: str, hint: str = "") -> None:
        """Stores a problem with an option."""
        self.lines[name] = line
        self.problems.append(FieldProblem(text, file=path, line=line, field=name, hint=hint))

    def doubt(self, name: str, text: str, line: int, path: str, hint: str = "") -> None:
        """Stores that the value of an option is not clear."""
        self.lines[name] = line
        self.unclear.append(FieldProblem(text, file=path, line=line, field=name, hint=hint))

    def gap(self, name: str, text: str) -> None:
        """Stores that an option has no counterpart in a plan."""
        self.gaps.append(FieldProblem(text, file=self.files.get(name, ""), line=self.lines.get(name, 0), field=name))

    def replace(self, old: str, new: Mapping[str, Any]) -> None:
        """Replaces an option by new ones on its line. A value given under a new name stays."""
        line, file = self.lines.get(old, 0), self.files.get(old, "")
        self.settings.pop(old, None)
        for name, value in new.items():
            self.settings.setdefault(name, value)
            self.lines.setdefault(name, line)
            self.files.setdefault(name, file)

    def problems_under(self, option: str) -> list[FieldProblem]:
        """The problems of a file, for the reader of the file that names it by `option`."""
        return [problem._replace(field=option, message=f"{problem.field}: {problem.message}".removeprefix(": "))
                for problem in self.problems]  # fmt: skip

    def add(self, other: Arguments, path: str) -> None:
        """Adds the settings of the file `path`, or of the files that they name themselves."""
        self.settings |= other.settings
        self.lines |= other.lines
        self.files |= {name: other.files.get(name, path) for name in other.lines}
        self.unknown |= other.unknown
        self.respelled |= other.respelled
        self.of_equals |= other.of_equals
        self.off |= other.off
        self.ranks |= other.ranks
        self.open_nodes = self.open_nodes or other.open_nodes
        self.alone |= other.alone
        self.environment |= other.environment
        self.parameters |= other.parameters
        self.problems += other.problems
        self.unclear += other.unclear
        self.blocks |= other.blocks
        self.gaps += other.gaps
        self.open_fields |= other.open_fields
        self.notes += other.notes
        self.program = self.program or other.program
        self.texts |= other.texts


def read_words(
    words: Sequence[tuple[str, int]], options: OptionList, arguments: Arguments, path: str,
    holders: Collection[str] = ()) -> list[tuple[str, int]]:  # fmt: skip
    """Parses options from (word, line) by the types in `options`. Wrong values become problems. Returns the unknown
    words that belong to no option; they may hold further options.
    holders: unknown words that may hold options, and are no value of one without a type.
    """
    position, loose = 0, []
    while position < len(words):
        word, line = words[position]
        position += 1
        if not word.startswith("--") or len(word) < 3:
            loose += [(word, line)] if marks(word) else []
            continue
        written, equals, attached = word.partition("=")
        if (name := option_name(written, options)) != written:
            arguments.respelled[written] = arguments.lines[written] = line
        option = options.options.get(name)
        values = [attached] if equals else _values(words[position:], option, name, holders)
        position += 0 if equals else len(values)
        if launcher_name(name) in LAUNCHER and option is None:
            if values and values[0].isdigit():
                arguments.ranks[LAUNCHER[launcher_name(name)]] = int(values[0])
        elif launcher_name(name) in _IGNORED:
            continue
        elif option is None and marks(name):
            loose.append((name, line))
        elif option is None:
            arguments.unknown.setdefault(name, line)
            arguments.off |= {name} if [value.lower() for value in values] == ["false"] else set()
            arguments.lines.setdefault(name, line)
        elif option.kind != "flag" and not values:
            arguments.fail(name, "has no value", line, path)
        elif option.kind != "flag" and any(marks(value) for value in values):
            value, by, reason = shown(next(value for value in values if marks(value))).partition(" by ")
            text = f"`{value}` depends on `{reason}`" if by else f"`{value}` is not set here"
            arguments.doubt(name, text, line, path, _SET)
        else:
            arguments.record(option, _typed(option, values), line, path)
    return loose


def _values(words: Sequence[tuple[str, int]], option: Option | None, name: str, holders: Collection[str]) -> list[str]:
    """The words that an option takes as its values, of those behind it."""
    out: list[str] = []
    for word, _ in words:
        if not _takes(option, name, len(out), word) or (option is None and word in holders):
            break
        out.append(word)
    return out


def option_name(name: str, options: OptionList) -> str:
    """An option as the release spells it; some forks have underscores for its hyphens."""
    return name if name in options.options or launcher_name(name) not in options.options else launcher_name(name)


def launcher_name(name: str) -> str:
    """An option of torchrun with hyphens: torchrun accepts hyphens and underscores."""
    return name.replace("_", "-")


def _takes(option: Option | None, name: str, have: int, word: str) -> bool:
    """Whether the next word is a value of the option before it."""
    if word.startswith("--") or word in (")", "("):
        return False
    if launcher_name(name) in (*LAUNCHER, *_IGNORED) and option is None:
        return have < 1
    if option is None:
        return have < 1 and not word.endswith(".py")
    return option.kind != "flag" and (option.many or have < 1)


def _typed(option: Option, words: list[str]) -> Any:
    """The typed value of an option. A word of another type is returned unchanged."""
    if option.kind == "flag":
        return True
    values = [_converted(word, option.kind) for word in words]
    return values if option.many else values[0]


def _converted(word: str, kind: str) -> Any:
    try:
        return {"int": int, "float": float}.get(kind, str)(word)
    except ValueError:
        return word
