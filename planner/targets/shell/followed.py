"""What following a script gives."""

from __future__ import annotations

from dataclasses import dataclass, field

from .values import Variables


@dataclass(frozen=True)
class Command:
    """A command that a script would start."""

    words: tuple[str, ...]
    # From 1, in the file that is read; the line of each word where it stands there.
    line: int
    lines: tuple[int, ...] = ()


@dataclass
class Followed:
    """What following a script gave."""

    commands: list[Command] = field(default_factory=list)
    variables: Variables = field(default_factory=Variables)
    # Variable -> line of its last assignment.
    lines: dict[str, int] = field(default_factory=dict)
    # File -> text of a here-document.
    files: dict[str, str] = field(default_factory=dict)
    # Text of a mark -> the values that it may have.
    choices: dict[str, set[str]] = field(default_factory=dict)
    # Names of files that are sourced and not there.
    not_there: dict[str, int] = field(default_factory=dict)
