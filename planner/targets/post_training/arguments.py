"""A file of arguments of a command line, one option with its values per line."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from ....errors import FieldProblem
from ..options import Settings
from ..scripts import read_arguments
from .option_file import Given, GivenOption, OptionFile, numbered_lines


@dataclass(frozen=True, kw_only=True)
class Arguments(OptionFile):
    """The arguments of a framework."""

    # Of options that no list has.
    open_prefixes: tuple[str, ...] = ()
    words: ClassVar[str] = " | tr -s ' ' '\\n'"

    def lines(self, settings: Settings) -> Iterator[str]:
        for name, value in settings.items():
            yield name if value is True else f"{name} {self.shown(value)}"

    def shown(self, value: Any) -> str:
        return " ".join(map(str, value)) if isinstance(value, list) else str(value)

    def read(self, text: str) -> tuple[Given, list[FieldProblem]]:
        found = read_arguments(self.file, text, self.options)
        unknown = {name: GivenOption(line, None) for name, line in {**found.unknown, **found.respelled}.items()}
        known = {name: GivenOption(found.lines[name], value) for name, value in found.settings.items()}
        hint = "one `--option value` per line"
        stray = [FieldProblem(f"`{line}` is no option", file=self.file, line=number, hint=hint)
                 for number, line in numbered_lines(text) if not line.startswith("--")]  # fmt: skip
        return {**known, **unknown}, [*found.problems, *found.unclear, *stray]

    def wrong(self, name: str, given: Given) -> tuple[str, str] | None:
        options = self.options
        if name in options.options or name.startswith(self.open_prefixes):
            return None
        return f"{self.framework} {options} has no such option", options.near(name)
