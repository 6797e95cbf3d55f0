"""Scripts beside a script: those that it sources, or starts by a shell or a launcher."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping, Sequence
from itertools import pairwise, takewhile

from .values import shown

SHELLS = ("bash", "sh", "zsh", "dash", "ksh")
# Options of a shell before the text that it runs.
SHELL_FLAGS = ("-c", "-lc", "-xc", "-ec")
# Commands that start a script among their words.
_STARTERS = (*SHELLS, "srun", "sbatch", "salloc", "qsub", "mpirun", "mpiexec", "exec", "nohup", "env", "time", "setsid",
             "singularity", "apptainer", "docker", "enroot", "numactl", "jsrun", "aprun", "flux", "ssh",
             "pdsh")  # fmt: skip
# Commands that start no training.
SILENT = ("echo", "printf", "exit", "return", "break", "continue", "trap", "cd", "pushd", "popd", "mkdir", "rm", "cp",
          "wait", "sleep", "sed", "grep", "cat", "tee", "module", "conda", "pip", "ls", "touch", "kill",
          "wget")  # fmt: skip
_SCRIPT = re.compile(r".+\.(sh|bash|slurm|sbatch|pbs|job)")


def text_of(name: str, files: Mapping[str, str]) -> str | None:
    """The text of the file of `files` (path -> text) that a script calls `name`: of equal names the path that shares
    most folders with it; None where there is none."""
    wanted = shown(name).split("/")

    def shared(path: str) -> int:
        pairs = zip(reversed(path.split("/")), reversed(wanted), strict=False)
        return len([*takewhile(lambda pair: pair[0] == pair[1], pairs)])

    known = [path for path in files if posixpath.basename(path) == wanted[-1]]
    return files[max(known, key=shared)] if known else None


def started_script(words: Sequence[str]) -> int | None:
    """The place of the script that a command starts: its first word, or the first one behind a shell or a launcher
    that is none of its options' values; None where it starts no script."""
    is_script = [_SCRIPT.fullmatch(shown(word)) is not None for word in words]
    if is_script[:1] == [True]:
        return 0
    if not words or posixpath.basename(words[0]) not in _STARTERS:
        return None
    return next((index for index, script in enumerate(is_script) if script), None)


def passed_text(words: Sequence[str]) -> tuple[int, str] | None:
    """(place, text) of a script among the words of a command: behind `bash -c`, with the place of the shell, or in one
    word with a program and its options, with 0."""
    for place, (word, flag) in enumerate(pairwise(words)):
        if posixpath.basename(word) in SHELLS and flag in SHELL_FLAGS and place + 2 < len(words):
            return place, words[place + 2]
    holder = next((word for word in words if " --" in word and (".py" in word or "-m " in word)), None)
    return None if holder is None else (0, holder)


def is_script(path: str, text: str) -> bool:
    """Whether a file is a shell script, by its name or its first line."""
    by_name = _SCRIPT.fullmatch(posixpath.basename(path)) is not None
    return by_name or re.match(r"#!\s*\S*/(env\s+)?\w*sh\b", text) is not None


def others_begin(files: Mapping[str, str]) -> set[str]:
    """The paths of the scripts that another one of `files` sources or starts."""
    out = set()
    for path, text in files.items():
        for line in re.findall(r"(?m)^[^#\n]*", text):
            out |= {other for other in files if other != path and _calls(line, posixpath.basename(other))}
    return out


def _calls(line: str, name: str) -> bool:
    """Whether a line sources a file or starts it as a script."""
    word = rf"[^\s;&|]*(?<![\w.-]){re.escape(name)}\b"
    starters = "|".join(_STARTERS)
    return (re.search(rf"(?:^|[;&|({{]|\bthen|\bdo|\belse)\s*(?:\.|source)\s+[\"']?{word}", line) is not None
            or (_SCRIPT.fullmatch(name) is not None
                and re.search(rf"(?:\b(?:{starters})\s[^;&|]*|^\s*[\"']?(?:\./|/|\$)\S*){re.escape(name)}\b", line)
                is not None))  # fmt: skip
