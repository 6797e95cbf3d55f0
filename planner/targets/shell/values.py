"""Values of a shell script, and marks for values that are known only at run time.

A mark stands in a text for an unknown value. It contains no space, so that word splitting is unchanged.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

# An unset variable, a missing positional parameter, and anything else: `$(date)`.
UNSET, MISSING, UNKNOWN, _END = "\ue000", "\ue001", "\ue002", "\ue003"
MARK = re.compile(f"[{UNSET}{MISSING}{UNKNOWN}]([^{_END}]*){_END}")
# The text of a mark is moved to a private plane, whose characters have no meaning in a shell.
_PLANE = 0xF0000
_ELEMENT = re.compile(r"\[([^\]]+)\]=(.*)", re.DOTALL)
Value = str | list[str]
# Variables that every shell sets.
_OF_THE_SHELL = ("?", "$", "!", "-", "RANDOM", "HOSTNAME", "PWD", "HOME", "USER", "SECONDS", "LINENO", "BASH_SOURCE")
# Variables with the place of a process, which launchers set: PMIx, PMI, Open MPI, MVAPICH, PALS, Slurm.
_OF_A_RANK = re.compile(r"(PMIX?|OMPI_COMM_WORLD(_LOCAL|_NODE)?|MV2_COMM_WORLD(_LOCAL)?|PALS)_(LOCAL_)?RANK(ID)?"
                        r"|SLURM_(PROC|LOCAL|NODE)ID")


def mark(kind: str, text: str) -> str:
    """A mark of a kind for the value of `text`."""
    return kind + "".join(chr(_PLANE + ord(character) % 0xFFFE) for character in text) + _END


def _readable(text: str) -> str:
    return "".join(chr(ord(character) - _PLANE) for character in text)


def marks(text: str, kinds: str = UNSET + MISSING + UNKNOWN) -> list[str]:
    """The texts of the marks of some kinds."""
    return [_readable(found[1]) for found in MARK.finditer(text) if found[0][0] in kinds]


def shown(text: str) -> str:
    """The text with each mark in its spelling in the script."""
    return MARK.sub(lambda found: _readable(found[1]), text)


def without(text: str, kinds: str) -> str:
    """The text without the marks of some kinds, as the shell drops an unset variable."""
    return MARK.sub(lambda found: "" if found[0][0] in kinds else found[0], text)


def is_mark(text: str) -> bool:
    """Whether the text is exactly one mark."""
    return MARK.fullmatch(text) is not None


def appended(old: Value, new: Value) -> Value:
    """The value after `NAME+=new`: a longer text, or further items of an array."""
    if isinstance(old, str) and isinstance(new, str):
        return old + new
    return [*([old] if isinstance(old, str) else old), *([new] if isinstance(new, str) else new)]


def keyed(name: str, items: Sequence[str]) -> dict[str, Value]:
    """The elements of `name=([key]=value ...)` by `name[key]`."""
    found = [_ELEMENT.fullmatch(item) for item in items]
    return {f"{name}[{element[1]}]": element[2] for element in found if element is not None}


@dataclass
class Variables:
    """The variables and positional parameters of a script at one point."""

    values: dict[str, Value] = field(default_factory=dict)
    # None: not known how many there are.
    arguments: list[str] | None = None
    # Positional parameters given by number.
    numbered: dict[int, str] = field(default_factory=dict)
    # Variables that scripts which are started see, too.
    exported: set[str] = field(default_factory=set)

    def copy(self) -> Variables:
        return Variables({name: list(value) if isinstance(value, list) else value
                          for name, value in self.values.items()},
                         None if self.arguments is None else list(self.arguments), dict(self.numbered),
                         set(self.exported))  # fmt: skip

    def passed(self, beside: Collection[str], arguments: list[str]) -> Variables:
        """Those of a script that is started with `arguments`. beside: further variables that are passed to it."""
        seen = self.exported | set(beside)
        values: dict[str, Value] = {name: value for name, value in self.values.items()
                                    if name in seen and isinstance(value, str)}
        return Variables(values, arguments, exported=seen)

    def shift(self, count: int) -> None:
        """Drops the first positional parameters."""
        if self.arguments is not None:
            self.arguments = self.arguments[count:]
        self.numbered = {number - count: text for number, text in self.numbered.items() if number > count}

    def get(self, name: str) -> Value:
        """The value of `$name`, or a mark."""
        if name.isdigit():
            return self._positional(int(name))
        if name in ("@", "*"):
            return list(self.arguments) if self.arguments is not None else mark(UNSET, f"${name}")
        if name == "#":
            return mark(MISSING, "$#") if self.arguments is None else str(len(self.arguments))
        if name not in self.values and (name in _OF_THE_SHELL or _OF_A_RANK.fullmatch(name)):
            return mark(UNKNOWN, f"${name}")
        return self.values.get(name, mark(UNSET, f"${name}"))

    def _positional(self, number: int) -> str:
        if number == 0:
            return mark(UNKNOWN, "$0")
        if number in self.numbered:
            return self.numbered[number]
        if self.arguments is not None:
            return self.arguments[number - 1] if number <= len(self.arguments) else mark(UNSET, f"${number}")
        return mark(MISSING, f"${number}")
