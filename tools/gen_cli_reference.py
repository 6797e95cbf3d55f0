"""Writes docs/reference/cli.md from the `--help` of every command; `--check` only says whether it is current."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "reference" / "cli.md"

_HEAD = """\
# Command line

Written by `make docs` from `--help`; do not edit.

Results go to stdout, everything else to stderr. `--json` prints one document to stdout, also on failure. Options that
all commands take are accepted before and after the command.

| exit code | meaning |
|---|---|
| 0 | done |
| 1 | the answer is no: nothing fits; `check` found problems in launch files; `diff --exit-code` a difference |
| 2 | your input: a flag, a file, a missing extra, a target that cannot do it; a result that cannot be written |
| 3 | our bug: the traceback is in a file that is named |
| 130 | interrupted; a search prints the best layout so far |
| 143 | `launch` ended on SIGTERM, after a step and a checkpoint |

| variable | same as |
|---|---|
| `MESHWRIGHT_PROFILES_PATH` | `--profiles-path` |
| `MESHWRIGHT_NO_PROGRESS` | `--no-progress` |
| `MESHWRIGHT_COLOR` | `--color` |
| `MESHWRIGHT_CLUSTER` | `--cluster`, where neither a cluster nor GPUs are given |
| `MESHWRIGHT_TARGET`, `MESHWRIGHT_STACK` | `--target`, `--stack` |
| `MESHWRIGHT_CPU_NAME` | nothing: the name of a CPU in the files of `profile` |

`NO_COLOR`, `FORCE_COLOR` and `TERM=dumb` are honoured. A value is taken from a flag, else from `--set`, else from the
request file, else from a variable, else it is the default.

**Completion** of commands, options and names of the catalogue, in bash, zsh and fish: `meshwright --install-completion`
adds it to the shell that runs it. To add it by hand:

| shell | command, once |
|---|---|
| bash | `meshwright --show-completion bash >> ~/.bashrc` |
| zsh | `meshwright --show-completion zsh >> ~/.zshrc`, below `autoload -Uz compinit; compinit` |
| fish | `meshwright --show-completion fish > ~/.config/fish/completions/meshwright.fish` |

With `--json` an error is `{"kind": "error", "code": ..., "message": ..., "hint": ..., "details": ...}`:

| code | exit | meaning |
|---|---|---|
| `usage` | 2 | the command line is wrong |
| `invalid_input` | 2 | a file, a flag's value or a combination of them is wrong |
| `unknown_name` | 2 | no catalogue holds this model, GPU, node or target |
| `missing_extra` | 2 | an optional dependency is not installed |
| `unsupported` | 2 | a target cannot do this |
| `worker_lost` | 2 | a process, or a worker of a cluster, died in a search |
| `no_feasible_layout` | 1 | no layout is legal or none fits |
| `run_failed` | 1 | a rank died or hung, a node or the last checkpoint is missing, or a rehearsal differs |
| `interrupted` | 130 | Ctrl-C |
| `terminated` | 143 | SIGTERM ended a run before its last step |
| `internal_error` | 3 | our bug |
"""


def help_of(*words: str) -> str:
    """The text of `meshwright words --help` at 80 columns."""
    plain = {"PYTHONPATH": str(ROOT), "COLUMNS": "80", "NO_COLOR": "1", "PYTHONUTF8": "1"}
    command = [sys.executable, "-m", "meshwright", *words, "--help"]
    done = subprocess.run(command, env={**os.environ, **plain}, capture_output=True, text=True, check=True)
    return "\n".join(line.rstrip() for line in done.stdout.splitlines())


def page() -> str:
    """The whole page."""
    sys.path.insert(0, str(ROOT))
    from meshwright.cli.main import COMMANDS

    parts = [_HEAD, f"## meshwright\n\n```\n{help_of()}\n```\n"]
    parts += [f"## {name}\n\n{command.summary}.\n\n```\n{help_of(*name.split())}\n```\n"
              for name, command in COMMANDS.items()]  # fmt: skip
    return "\n".join(parts)


def main() -> int:
    text = page()
    if "--check" in sys.argv[1:]:
        current = PAGE.exists() and PAGE.read_text(encoding="utf-8") == text
        sys.stdout.write("current\n" if current else f"{PAGE.relative_to(ROOT)} is not current: `make docs`\n")
        return 0 if current else 1
    PAGE.parent.mkdir(parents=True, exist_ok=True)
    PAGE.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
