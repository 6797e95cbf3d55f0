"""Reads command lines as people keep them: files of options, shell scripts with variables, arrays and continuations."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from ...errors import FieldProblem
from .option_lists import Option, OptionList

# Options of torchrun and the variables that say how many ranks there are.
LAUNCHER = {"--nnodes": "num_nodes", "--nproc-per-node": "gpus_per_node"}
_IGNORED = ("--node-rank", "--master-addr", "--master-port", "--rdzv-backend", "--rdzv-endpoint", "--rdzv-id",
            "--tee", "--log-dir", "--max-restarts", "--standalone", "--role")  # fmt: skip
_COUNTS = {
    "NNODES": "num_nodes", "NUM_NODES": "num_nodes", "SLURM_NNODES": "num_nodes", "GPUS_PER_NODE": "gpus_per_node",
    "NPROC_PER_NODE": "gpus_per_node", "WORLD_SIZE": "world",
}  # fmt: skip
_ASSIGNED = re.compile(
    r"^\s*(?:export\s+|readonly\s+|local\s+|declare\s+)?([A-Za-z_]\w*)="
    r"(\"[^\"]*\"|'[^']*'|\$\(\([^()]*\)\)|[^\s()#;]*)\s*;?\s*(?:#.*)?$"
)
_STATEMENT = re.compile(r"""(?:"[^"]*"|'[^']*'|(?:^|\s)\#.*|[^;])+""")  # up to a `;` outside quotes and comments
_VARIABLE = re.compile(r"\$\{([A-Za-z_]\w*)(?::?[-=]([^}]*))?\}|\$([A-Za-z_]\w*)")
_SUM = re.compile(r"\$\(\(([\d\s+*/()-]+)\)\)")


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
    # num_nodes, gpus_per_node and world, where they are stated.
    ranks: dict[str, int] = field(default_factory=dict)
    # Variable -> value assigned in the text.
    environment: dict[str, str] = field(default_factory=dict)
    # Values that cannot be read.
    problems: list[FieldProblem] = field(default_factory=list)

    def record(self, option: Option, value: Any, line: int, path: str) -> None:
        """Stores the value of an option, or the problem where the option does not accept it."""
        if (wrong := option.wrong(value)) is not None:
            self.fail(option.name, wrong, line, path)
        else:
            self.lines[option.name] = line
            self.settings[option.name] = value

    def fail(self, name: str, text: str, line: int, path: str, hint: str = "") -> None:
        """Stores a problem with an option."""
        self.lines[name] = line
        self.problems.append(FieldProblem(text, file=path, line=line, field=name, hint=hint))

    def add(self, other: Arguments, path: str) -> None:
        """Adds the settings of the file `path`."""
        self.settings |= other.settings
        self.lines |= other.lines
        self.files |= dict.fromkeys(other.lines, path)
        self.unknown |= other.unknown
        self.ranks |= other.ranks
        self.environment |= other.environment
        self.problems += other.problems


def read_arguments(path: str, text: str, options: OptionList) -> Arguments:
    """The options in `text`, typed as `options` says. Wrong values become problems, unknown options are listed."""
    arguments = Arguments()
    words = list(_words(text, arguments))
    position = 0
    while position < len(words):
        word, line = words[position]
        position += 1
        if not word.startswith("--") or len(word) < 3:
            continue
        name, equals, attached = word.partition("=")
        values = [attached] if equals else []
        option = options.options.get(name)
        while not equals and position < len(words) and _takes(option, name, len(values), words[position][0]):
            values.append(words[position][0])
            position += 1
        if launcher_name(name) in LAUNCHER:
            if values and values[0].isdigit():
                arguments.ranks[LAUNCHER[launcher_name(name)]] = int(values[0])
        elif launcher_name(name) in _IGNORED:
            continue
        elif option is None:
            arguments.unknown.setdefault(name, line)
        elif option.kind != "flag" and not values:
            arguments.fail(name, "has no value", line, path)
        elif option.kind != "flag" and any("$" in value for value in values):
            hint = "give it a value in the file; only plain assignments (NAME=8) are followed"
            arguments.fail(name, f"`{values[0]}` is not set here", line, path, hint)
        else:
            arguments.record(option, _typed(option, values), line, path)
    return arguments


def launcher_name(name: str) -> str:
    """torchrun takes every option in two spellings."""
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
    """The value of an option; a word that is not of its type stays as it is."""
    if option.kind == "flag":
        return True
    values = [_converted(word, option.kind) for word in words]
    return values if option.many else values[0]


def _converted(word: str, kind: str) -> Any:
    try:
        return {"int": int, "float": float}.get(kind, str)(word)
    except ValueError:
        return word


def _words(text: str, arguments: Arguments) -> Iterator[tuple[str, int]]:
    """(word, line number), variables filled in; assignments are taken out of the text."""
    values: dict[str, str] = {}
    numbered = enumerate(text.splitlines(), 1)
    for number, line in ((number, part) for number, whole in numbered for part in _STATEMENT.findall(whole)):
        if assigned := _ASSIGNED.match(line):
            name, value = assigned[1], _filled(assigned[2].strip("\"'"), values)
            values[name] = value
            arguments.environment[name] = value
            if name in _COUNTS and value.isdigit():
                arguments.ranks[_COUNTS[name]] = int(value)
            if not value.startswith("--"):
                continue
        line = _filled(re.sub(r"(?:^|\s)#.*$", "", line).rstrip().rstrip("\\"), values)
        line = re.sub(r"[A-Za-z_]\w*\+?=\($|[A-Za-z_]\w*\+?=\((?=\s*--)", " ", line)  # the head of an array
        for word in _split(line):
            yield word.strip("\"'"), number


def _filled(text: str, values: dict[str, str]) -> str:
    def fill(match: re.Match[str]) -> str:
        name, default = match[1] or match[3], match[2]
        if name in values:
            return values[name]
        return default if default is not None else match[0]

    text = _VARIABLE.sub(fill, text)
    return _SUM.sub(lambda match: str(_arithmetic(match[1])), text)


def _arithmetic(text: str) -> int:
    """Whole numbers with + - * and / from left to right by precedence, as the shell does."""
    factors = re.findall(r"[-+*/]|\d+", text)
    total = 0
    sign = 1
    term = None
    operator = ""
    for part in [*factors, "+"]:
        if part.isdigit():
            value = int(part)
            term = value if term is None else (term * value if operator == "*" else term // max(value, 1))
        elif part in "*/":
            operator = part
        else:
            total += sign * (term or 0)
            sign, term = (1 if part == "+" else -1), None
    return total


def _split(line: str) -> list[str]:
    try:
        return shlex.split(line, comments=False)
    except ValueError:  # a quote that spans lines
        return line.split()
