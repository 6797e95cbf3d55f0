"""A file of Hydra's overrides, one per line."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from ....errors import FieldProblem, MeshwrightError
from ....profiles.io.reader import read_document
from ..option_lists import Option
from ..options import Settings
from .option_file import Given, GivenOption, OptionFile, numbered_lines

_OVERRIDE = re.compile(r"(\+{0,2})([A-Za-z_][\w.-]*)=(.*)")


@dataclass(frozen=True, kw_only=True)
class Overrides(OptionFile):
    """The overrides of a framework."""

    # Blocks that take further keys, which no list has.
    open_blocks: tuple[str, ...] = ()
    # Option of a dataclass that the list lacks, which `+` adds -> its kind.
    fields: Mapping[str, str] = field(default_factory=dict)
    # Part of a name -> the value of the option `choice` that its block is for.
    blocks: Mapping[str, str] = field(default_factory=dict)
    choice: str = ""

    def lines(self, settings: Settings) -> Iterator[str]:
        return (f"{name}={self.shown(value)}" for name, value in settings.items())

    def shown(self, value: Any) -> str:
        if value is None:
            return "null"
        if isinstance(value, list):
            return f"[{','.join(map(self.shown, value))}]"
        plain = not isinstance(value, str) or re.fullmatch(r"[A-Za-z][\w./-]*", value)
        return str(value) if plain else f"'{value}'"

    def read(self, text: str) -> tuple[Given, list[FieldProblem]]:
        out: Given = {}
        problems = []
        for number, line in numbered_lines(text):
            found = _OVERRIDE.fullmatch(line)
            try:
                if found is None:
                    raise ValueError
                out[found[2]] = GivenOption(number, read_document(self.file, found[3]).data, found[1])
            except (MeshwrightError, ValueError):
                problems.append(FieldProblem(f"`{line}` is no override", file=self.file, line=number,
                                             hint="one `option=value` per line"))  # fmt: skip
        return out, problems

    def wrong(self, name: str, given: Given) -> tuple[str, str] | None:
        return self._refused(name, given[name]) or self._misplaced(name, given)

    def _refused(self, name: str, given: GivenOption) -> tuple[str, str] | None:
        """Why the framework does not take an option, or a value of it."""
        options = self.options
        known = options.options.get(name)
        if known is not None and given.added == "+":
            return "is in its YAML, and `+` is for others", f"`{name}=` changes it"
        if known is None and name in self.fields and given.added:
            known = Option(name, self.fields[name])
        if known is not None:
            text, value = known.wrong_type(given.value), given.value
            shown = value if isinstance(value, str) else self.shown(value)
            return (text.replace(str(value), shown), "") if text else None
        parents = [name[: at.start()] for at in re.finditer(r"\.", name)]
        unlisted = Option("", "any")
        if name in self.fields or any(it in self.open_blocks or options.options.get(it, unlisted).kind == "object"
                                      for it in parents):  # fmt: skip
            return None if given.added else ("is not in its YAML", f"`+{name}=` adds it")
        return f"{self.framework} {options} has no such option", options.near(name)

    def _misplaced(self, name: str, given: Given) -> tuple[str, str] | None:
        """An option in a block that the chosen engine does not have."""
        if self.choice not in given:
            return None
        chosen = given[self.choice].value
        needs = next((self.blocks[part] for part in name.split(".") if part in self.blocks), chosen)
        return None if needs == chosen else (f"is for {self.choice}={needs}, not {chosen}", "leave it out")

