"""A file of Hydra's overrides, one per line, and the script that gives them to a program."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from ....errors import FieldProblem, MeshwrightError
from ....profiles.io.reader import read_document
from ..launchers.base import comment
from ..option_lists import Option, OptionList, option_list
from ..options import Settings
from .base import RlSetup

_OVERRIDE = re.compile(r"(\+{0,2})([A-Za-z_][\w.-]*)=(.*)")
Given = dict[str, tuple[int, str, Any]]  # option -> line, `+` or `++` before it, value
SCRIPT = "launch.sh"


@dataclass(frozen=True, kw_only=True)
class Overrides:
    """The overrides of a framework with a recorded list of options."""

    framework: str  # of the list
    file: str
    # Blocks that take further keys, which no list has.
    open_blocks: tuple[str, ...] = ()
    # Option of a dataclass that the list lacks, which `+` adds -> its kind.
    fields: Mapping[str, str] = field(default_factory=dict)
    # Part of a name -> the value of the option `choice` that its block is for.
    blocks: Mapping[str, str] = field(default_factory=dict)
    choice: str = ""

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
            f"mapfile -t words < <(sed -E '/^[[:space:]]*(#|$)/d; s/^[[:space:]]*//' \"$here/{self.file}\")\n{needs}"
            f'exec {command} "${{words[@]}}" "$@"\n'
        )
        lines = "".join(f"{name}={_word(value)}\n" for name, value in settings.items())
        return {self.file: comment(header) + lines, SCRIPT: script}

    def check(self, files: Mapping[str, str], expected: Mapping[str, str]) -> list[FieldProblem]:
        """Unknown options, values of wrong types, options that differ from the plan's, and lines that the script lacks.
        expected: its files."""
        if absent := [name for name in (self.file, SCRIPT) if name not in files]:
            return [FieldProblem("missing", file=name, hint="`emit` writes it") for name in absent]
        options = option_list(self.framework)[0]
        given, problems = self.read(files[self.file])
        planned, _ = self.read(expected[self.file])
        for name, (line, added, value) in given.items():
            text, hint = self._wrong(options, name, value, added) or self._misplaced(name, given) or ("", "")
            if not text and name in planned and value != planned[name][2]:
                text = f"is {value}; the plan has {planned[name][2]}"
            if text:
                problems.append(FieldProblem(text, file=self.file, line=line, field=name, hint=hint))
        problems += [FieldProblem(f"missing; the plan has {value}", file=self.file, field=name)
                     for name, (_, _, value) in planned.items() if name not in given]  # fmt: skip
        kept = files[SCRIPT].splitlines()
        return problems + [FieldProblem(f"`{line}` is missing", file=SCRIPT, hint="`emit` writes it")
                           for line in expected[SCRIPT].splitlines()[1:]
                           if not line.startswith("#") and line not in kept]  # fmt: skip

    def read(self, text: str) -> tuple[Given, list[FieldProblem]]:
        """The overrides, and lines that are none."""
        out: Given = {}
        problems = []
        for number, line in _lines(text):
            found = _OVERRIDE.fullmatch(line)
            try:
                if found is None:
                    raise ValueError
                out[found[2]] = number, found[1], read_document(self.file, found[3]).data
            except (MeshwrightError, ValueError):
                problems.append(FieldProblem(f"`{line}` is no override", file=self.file, line=number,
                                             hint="one `option=value` per line"))  # fmt: skip
        return out, problems

    def _wrong(self, options: OptionList, name: str, value: Any, added: str) -> tuple[str, str] | None:
        """Why the framework does not take an option, or its engines a value, and a hint; None where they do."""
        known = options.options.get(name)
        if known is not None and added == "+":
            return "is in its YAML, and `+` is for others", f"`{name}=` changes it"
        if known is None and name in self.fields and added:
            known = Option(name, self.fields[name])
        if known is not None:
            text = known.wrong_type(value)
            return (text, "") if text else None
        parents = [name[: at.start()] for at in re.finditer(r"\.", name)]
        unlisted = Option("", "any")
        if name in self.fields or any(it in self.open_blocks or options.options.get(it, unlisted).kind == "object"
                                      for it in parents):  # fmt: skip
            return None if added else ("is not in its YAML", f"`+{name}=` adds it")
        return f"{self.framework} {options} has no such option", options.near(name)

    def _misplaced(self, name: str, given: Given) -> tuple[str, str] | None:
        """An option in a block that the chosen engine does not have."""
        if self.choice not in given:
            return None
        chosen = given[self.choice][2]
        needs = next((self.blocks[part] for part in name.split(".") if part in self.blocks), chosen)
        return None if needs == chosen else (f"is for {self.choice}={needs}, not {chosen}", "leave it out")


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
        if line.strip() and not line.lstrip().startswith("#"):
            yield number, line.strip()
