"""A file of Hydra's overrides, one per line, and the script that gives them to a program."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ....errors import FieldProblem, MeshwrightError
from ....profiles.io.reader import read_document
from ..launchers.base import comment
from ..option_lists import Option, OptionList, option_list
from ..options import Settings
from .base import RlSetup

_OVERRIDE = re.compile(r"(\+{0,2})([A-Za-z_][\w.-]*)=(.*)")
SCRIPT = "launch.sh"


@dataclass(frozen=True, kw_only=True)
class Overrides:
    """The overrides of a framework with a recorded list of options."""

    framework: str  # of the list
    file: str
    # Blocks that take further keys, which no list has.
    open_blocks: tuple[str, ...] = ()

    def files(self, setup: RlSetup, header: tuple[str, ...], settings: Settings, command: str, beyond: str,
              needs: str = "") -> dict[str, str]:  # fmt: skip
        """The overrides, and the script. command: it takes them as words; beyond: an example of words of a user; needs:
        a line of the script before the command."""
        nodes = setup.num_gpus // min(setup.num_gpus, setup.gpus_per_node)
        ray = () if nodes == 1 else (
            f"Start Ray on the {nodes} nodes first: `ray start --head` on one, `ray start --address=HEAD:6379` on the",
            "others. Then, on the first:")  # fmt: skip
        script = (
            "#!/usr/bin/env bash\n" + comment((*header, *ray, f"  bash {SCRIPT} {beyond}")) + "set -euo pipefail\n"
            'here=$(cd "$(dirname "$0")" && pwd)\n'
            f"mapfile -t words < <(sed '/^#/d' \"$here/{self.file}\")\n{needs}"
            f'exec {command} "${{words[@]}}" "$@"\n'
        )
        lines = "".join(f"{name}={_word(value)}\n" for name, value in settings.items())
        return {self.file: comment(header) + lines, SCRIPT: script}

    def check(self, files: Mapping[str, str], expected: Mapping[str, str]) -> list[FieldProblem]:
        """Unknown options, values of wrong types, and options that differ from the plan's. expected: its files."""
        if self.file not in files:
            return [FieldProblem("missing", file=self.file, hint="`emit` writes it")]
        options = option_list(self.framework)[0]
        given, problems = self.read(files[self.file])
        planned, _ = self.read(expected[self.file])
        for name, (line, added, value) in given.items():
            text, hint = self._wrong(options, name, value, added=added)
            if not text and name in planned and value != planned[name][2]:
                text = f"is {value}; the plan has {planned[name][2]}"
            if text:
                problems.append(FieldProblem(text, file=self.file, line=line, field=name, hint=hint))
        return problems + [FieldProblem(f"missing; the plan has {value}", file=self.file, field=name)
                           for name, (_, _, value) in planned.items() if name not in given]  # fmt: skip

    def read(self, text: str) -> tuple[dict[str, tuple[int, bool, Any]], list[FieldProblem]]:
        """Option -> line, whether `+` adds it, value; and lines that are no overrides."""
        out: dict[str, tuple[int, bool, Any]] = {}
        problems = []
        for number, line in _lines(text):
            found = _OVERRIDE.fullmatch(line)
            try:
                if found is None:
                    raise ValueError
                out[found[2]] = number, bool(found[1]), read_document(self.file, found[3]).data
            except (MeshwrightError, ValueError):
                problems.append(FieldProblem(f"`{line}` is no override", file=self.file, line=number,
                                             hint="one `option=value` per line"))  # fmt: skip
        return out, problems

    def _wrong(self, options: OptionList, name: str, value: Any, *, added: bool) -> tuple[str, str]:
        """Why the framework does not take an option, or its engines a value, and a hint; empty where they do."""
        known = options.options.get(name)
        if known is not None:
            return known.wrong_type(value) or "", ""
        parents = [name[: at.start()] for at in re.finditer(r"\.", name)]
        unlisted = Option("", "any")
        if any(it in self.open_blocks or options.options.get(it, unlisted).kind == "object" for it in parents):
            return ("", "") if added else ("is not in its YAML", f"`+{name}=` adds it")
        return f"{self.framework} {options} has no such option", options.near(name)


def _word(value: Any) -> str:
    """A value in Hydra's grammar of overrides."""
    if value is None:
        return "null"
    if isinstance(value, list):
        return f"[{','.join(map(_word, value))}]"
    plain = not isinstance(value, str) or re.fullmatch(r"[A-Za-z][\w./-]*", value)
    return str(value) if plain else f"'{value}'"


def _lines(text: str) -> Iterator[tuple[int, str]]:
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip() and not line.startswith("#"):
            yield number, line.strip()
