"""Lists of nodes: as users write them, as Slurm writes them, and those that `sinfo` shows as busy.

Slurm's list: `gpu-[03-05,07],login1` (slurm.schedmd.com/scontrol.html, `show hostlist`). States and the marks behind
them: slurm.schedmd.com/sinfo.html, NODE STATE CODES.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from itertools import product
from pathlib import Path
from typing import Any

from ...errors import InputError
from ..io.reader import read_text

# A node that runs nothing: idle, or idle and powered down (~) or powering up (#). Other marks keep jobs off a node:
# * no response, $ maintenance, @ ^ reboot, ! % powering down, - planned for another job.
_FREE = re.compile(r"idle[~#]?", re.IGNORECASE)
_MOST_NODES = 100_000
_HINT = "write `gpu-[03-05],gpu-12`, node numbers from 0 (`0-2,7`), or a file with the output of `sinfo`"


def parse_nodes(value: Any) -> tuple[str, ...]:
    """Names, and numbers as text, out of a list, `gpu-[03-05],7`, or a file (`-`: stdin) of what `sinfo` printed."""
    if isinstance(value, list | tuple):
        return tuple(dict.fromkeys(node for item in value for node in expanded(str(item))))
    if isinstance(value, Mapping | bool) or not str(value).strip():
        raise InputError(f"`{value}` is no list of nodes", hint=_HINT)
    text = str(value).strip()
    if text == "-":
        return busy_nodes("stdin", sys.stdin.read())
    if Path(text).is_file() or "/" in text:
        return busy_nodes(text, read_text(Path(text)))
    return tuple(dict.fromkeys(expanded(text)))


def expanded(text: str) -> list[str]:
    """The nodes of `gpu-[03-05,07],login1`, and of ranges of numbers (`0-2`). Raises InputError."""
    nodes: list[str] = []
    for item in re.split(r",(?![^\[]*\])", text):
        part = item.strip()
        if match := re.fullmatch(r"(\d+)-(\d+)", part):
            nodes += _range(part, *match.groups(), width=0)
        elif re.fullmatch(r"[\w.-]*(\[[\d,\s-]+\][\w.-]*)*", part) and part:
            nodes += _bracketed(part)
        else:
            raise InputError(f"`{part}` is no node", hint=_HINT)
    return nodes


def _bracketed(text: str) -> list[str]:
    choices = []
    for piece in re.findall(r"\[[^\]]*\]|[^\[]+", text):
        if not piece.startswith("["):
            choices.append([piece])
            continue
        inside: list[str] = []
        for part in piece[1:-1].split(","):
            match = re.fullmatch(r"\s*(\d+)(?:-(\d+))?\s*", part)
            if match is None:
                raise InputError(f"`{text}`: `{part.strip()}` is no number", hint=_HINT)
            inside += _range(text, match[1], match[2] or match[1], width=len(match[1]))
        choices.append(inside)
    return ["".join(parts) for parts in product(*choices)]


def _range(text: str, first: str, last: str, *, width: int) -> list[str]:
    if not 0 <= int(last) - int(first) < _MOST_NODES:
        raise InputError(f"`{text}`: {first} to {last} is no range of nodes", hint=_HINT)
    return [f"{number:0{width}}" for number in range(int(first), int(last) + 1)]


def busy_nodes(name: str, text: str) -> tuple[str, ...]:
    """The nodes in the output of `sinfo` that are not idle in every partition that shows them, in its order.

    Any format with the columns NODELIST and STATE is read. Raises InputError for a text without them.
    """
    lines = [line.split() for line in text.splitlines() if line.strip()]
    header = lines[0] if lines else []
    if "NODELIST" not in header or "STATE" not in header:
        raise InputError(f"{name} is no output of `sinfo`: its first line has no columns NODELIST and STATE",
                         hint="write it with `sinfo > nodes.txt`")  # fmt: skip
    busy: dict[str, None] = {}
    for number, cells in enumerate(lines[1:], 2):
        if cells == header:  # of the next cluster
            continue
        if len(cells) != len(header):
            raise InputError(f"{name}, line {number}: {len(cells)} columns, the header has {len(header)}",
                             hint="write it with `sinfo > nodes.txt`")  # fmt: skip
        row = dict(zip(header, cells, strict=True))
        if not _FREE.fullmatch(row["STATE"]):
            busy |= dict.fromkeys(expanded(row["NODELIST"]))
    return tuple(busy)
