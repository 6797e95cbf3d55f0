"""The result of following a script."""

from __future__ import annotations

from dataclasses import dataclass, field

from .values import Value, Variables


@dataclass(frozen=True)
class Command:
    """A command that a script would start."""

    words: tuple[str, ...]
    # Line of the command in the file, from 1, and the line of each word.
    line: int
    lines: tuple[int, ...] = ()
    # Words of the commands that pass it to a shell: `srun -n 8 bash -c "..."`.
    around: tuple[str, ...] = ()


@dataclass
class Followed:
    """The commands, variables and files found by following a script."""

    commands: list[Command] = field(default_factory=list)
    variables: Variables = field(default_factory=Variables)
    # Variable -> its value at the end of a script that is started.
    inner: dict[str, Value] = field(default_factory=dict)
    # Variable -> line of its last assignment.
    lines: dict[str, int] = field(default_factory=dict)
    # File -> text of a here-document.
    files: dict[str, str] = field(default_factory=dict)
    # Text of a mark -> its possible values.
    choices: dict[str, set[str]] = field(default_factory=dict)
    # Names of sourced files that are missing.
    not_there: dict[str, int] = field(default_factory=dict)
    # Names of scripts that are started and missing, with their lines.
    started: dict[str, int] = field(default_factory=dict)
