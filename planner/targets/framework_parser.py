"""Runs a framework's own parser on emitted files.

A script in the target's folder runs the parser in a separate process, because importing a framework has side effects.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...errors import UnsupportedError
from ..document.plan import Plan
from .setup import Setup

LIMIT_S = 600.0  # for the imports of a framework; each case has a second more


def sources_in(variable: str, package: str) -> Callable[[Mapping[str, str]], str | None]:
    """Environment -> the folder `src` with `package` in the checkout that a variable names; None without one."""

    def found(environment: Mapping[str, str]) -> str | None:
        path = Path(environment.get(variable, "")) / "src"
        return str(path) if environment.get(variable) and (path / package).is_dir() else None

    return found


@dataclass(frozen=True, kw_only=True)
class FrameworkParser:
    """The script that passes files to a framework, and its requirements."""

    # Reads one case per line (JSON) and prints one verdict per line: a sentence, or null if the framework accepts it.
    script: Path
    # (name -> text of the files of a plan, its setup) -> the case.
    case: Callable[[Mapping[str, str], Setup], dict[str, Any]]
    # The modules that the script imports in addition to those of `source`.
    modules: tuple[str, ...]
    # Environment -> the checkout of the framework, "" for the installed package, None if none is named.
    source: Callable[[Mapping[str, str]], str | None] = lambda environment: ""

    def available_source(self) -> str | None:
        """The `source` in this environment; None if the framework cannot run here."""
        if any(importlib.util.find_spec(module) is None for module in self.modules):
            return None
        return self.source(os.environ)

    def verdicts(
        self, cases: Sequence[Mapping[str, Any]], python: str = sys.executable, source: str = ""
    ) -> list[str | None]:
        """The framework's objection to each case; None where it accepts the case.

        Raises RuntimeError if the script breaks, UnsupportedError if an import of the framework fails or does not end.

        python: the interpreter that has the framework.
        """
        command = [python, str(self.script), *([source] if source else [])]
        text = "".join(json.dumps(case) + "\n" for case in cases)
        environment = {"OMP_NUM_THREADS": "1", **os.environ}
        try:
            process = subprocess.run(command, input=text, text=True, capture_output=True, env=environment, check=False,
                                     timeout=LIMIT_S + len(cases))  # fmt: skip
        except subprocess.TimeoutExpired as error:
            raise UnsupportedError(f"the framework in {source or python} gave no verdict in {error.timeout:,.0f} s",
                                   hint="import it there by hand to see what it waits for") from None
        verdicts = [json.loads(line) for line in process.stdout.splitlines()]
        if len(verdicts) != len(cases):
            last = (process.stderr.strip().splitlines() or ["no message"])[-1]
            if last.startswith(("ImportError", "ModuleNotFoundError")):
                raise UnsupportedError(f"the framework in {source or python} cannot be imported: {last}",
                                       hint="install its requirements, or unset the variable that names its checkout: "
                                            "`check` then compares options without it")  # fmt: skip
            raise RuntimeError(f"{self.script} gave {len(verdicts)} of {len(cases)} verdicts: {last}")
        return verdicts

    def verdict(self, files: Mapping[str, str], plan: Plan, choice: int) -> tuple[bool, str | None]:
        """Returns (whether the framework is installed, its objection to the files of layout `choice`)."""
        source = self.available_source()
        if source is None:
            return False, None
        return True, self.verdicts([self.case(files, Setup.of(plan, choice))], source=source)[0]


def machine(files: Mapping[str, str], setup: Setup) -> dict[str, Any]:
    """The part of a case that describes the machine.

    It holds ranks, variables of launch.sh, compute capability, and the device name of the driver.
    """
    exported = re.findall(r"^export ((?:CUDA|NVTE)_\w+)=(\S+)$", files.get("launch.sh", ""), re.MULTILINE)
    # 9.0 (Hopper) stands for a GPU without a compute capability.
    device = f"NVIDIA {setup.nodes.split()[-1].partition('-')[0].upper()}"  # `... x 8 b200-sxm-180gb`
    return {"world": setup.layout.num_gpus, "environment": dict(exported), "capability": setup.capability or 9.0,
            "device": device}  # fmt: skip
