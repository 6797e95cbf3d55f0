"""A file of options, and the script that gives them to a program as words."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from ....errors import FieldProblem
from ..launchers.base import comment
from ..option_lists import OptionList, option_list
from ..options import Settings
from .setup import RlSetup

SCRIPT = "launch.sh"


class GivenOption(NamedTuple):
    """An option of a file."""

    line: int
    value: Any
    added: str = ""  # `+` or `++` before its name


Given = dict[str, GivenOption]
Effect = Callable[[str, GivenOption], str]  # of an option that a plan does not write; "" for none


@dataclass(frozen=True, kw_only=True)
class OptionFile(ABC):
    """The options of a framework with a recorded list of them."""

    framework: str  # of the list
    file: str
    # Whether a cluster of Ray runs the command, also on one node.
    submits: bool = False
    # Shell that prints the words of the lines that come in, each on a line of its own.
    words: ClassVar[str] = ""

    @property
    def options(self) -> OptionList:
        """Those of the release."""
        return option_list(self.framework)[0]

    @abstractmethod
    def lines(self, settings: Settings) -> Iterator[str]:
        """The lines of the file."""

    @abstractmethod
    def shown(self, value: Any) -> str:
        """A value as the file spells it."""

    @abstractmethod
    def read(self, text: str) -> tuple[Given, list[FieldProblem]]:
        """The options of a text, and lines that are none."""

    @abstractmethod
    def wrong(self, name: str, given: Given) -> tuple[str, str] | None:
        """Why the framework does not take an option, or a value of it, and a hint; None where it does."""

    def files(self, setup: RlSetup, header: tuple[str, ...], settings: Settings, command: str, beyond: str,
              needs: str = "") -> dict[str, str]:  # fmt: skip
        """The options, and the script. command: it takes them as words; beyond: an example of words of a user; needs:
        lines of the script before the command."""
        script = (
            "#!/usr/bin/env bash\n" + comment((*header, *self._ray(setup), f"  bash {SCRIPT} {beyond}"))
            + 'set -euo pipefail\nhere=$(cd "$(dirname "$0")" && pwd)\n'
            f"mapfile -t words < <(sed -E '/^[[:space:]]*(#|$)/d; s/^[[:space:]]*//' \"$here/{self.file}\""
            f'{self.words})\n{needs}exec {command} "${{words[@]}}" "$@"\n'
        )  # fmt: skip
        return {self.file: comment(header) + "".join(f"{line}\n" for line in self.lines(settings)), SCRIPT: script}

    def _ray(self, setup: RlSetup) -> tuple[str, ...]:
        """How to start Ray, where it must run before the script."""
        nodes = setup.num_gpus // min(setup.num_gpus, setup.gpus_per_node)
        if nodes > 1:
            return (f"Start Ray on the {nodes} nodes first: `ray start --head` on one, `ray start --address=HEAD:6379` "
                    "on the", "others. Then, on the first:")  # fmt: skip
        return ("Start Ray first: `ray start --head`. Then:",) if self.submits else ()

    def check(self, files: Mapping[str, str], expected: Mapping[str, str], effect: Effect) -> list[FieldProblem]:
        """Unknown options, values of wrong types, options that differ from the plan's or change its step, and lines
        that the script lacks. expected: its files."""
        if absent := [name for name in (self.file, SCRIPT) if name not in files]:
            return [FieldProblem("missing", file=name, hint="`emit` writes it") for name in absent]
        given, problems = self.read(files[self.file])
        planned, _ = self.read(expected[self.file])
        for name, option in given.items():
            text, hint = self.wrong(name, given) or ("", "")
            if not text and name in planned and option.value != planned[name].value:
                text = f"is {self.shown(option.value)}; the plan has {self.shown(planned[name].value)}"
            if not text and name not in planned:
                text = effect(name, option)
            if text:
                problems.append(FieldProblem(text, file=self.file, line=option.line, field=name, hint=hint))
        problems += [FieldProblem(f"missing; the plan has {self.shown(option.value)}", file=self.file, field=name)
                     for name, option in planned.items() if name not in given]  # fmt: skip
        kept = files[SCRIPT].splitlines()
        return problems + [FieldProblem(f"`{line}` is missing", file=SCRIPT, hint="`emit` writes it")
                           for line in expected[SCRIPT].splitlines()[1:]
                           if not line.startswith("#") and line not in kept]  # fmt: skip

    def not_judged(self, files: Mapping[str, str], expected: Mapping[str, str], effect: Effect) -> tuple[str, ...]:
        """The options that the framework takes, the plan does not write, and that have no known effect. expected: files
        of the plan."""
        given, _ = self.read(files.get(self.file, ""))
        planned, _ = self.read(expected[self.file])
        return tuple(name for name, option in given.items() if name not in planned
                     and self.wrong(name, given) is None and not effect(name, option))  # fmt: skip


def numbered_lines(text: str) -> Iterator[tuple[int, str]]:
    """(number from 1, line) of lines that are neither empty nor comments."""
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip() and not line.lstrip().startswith("#"):
            yield number, line.strip()
