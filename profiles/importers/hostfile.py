"""Host files of Open MPI, MPICH and DeepSpeed: `node0 slots=8`, `node0:8` or just names, a line each."""

from __future__ import annotations

import re

from .base import Imported, Importer, Nodes, fail, grouped, twice

_LINE = re.compile(r"(?P<host>[\w.-]+)(?::(?P<colon>\d+)|\s+slots\s*=\s*(?P<slots>\d+))?(?:\s+max[-_]slots\s*=\s*\d+)?")


def read(name: str, text: str) -> Imported:
    nodes = []
    for number, line in enumerate(text.splitlines(), 1):
        line = line.partition("#")[0].strip()
        if not line:
            continue
        match = _LINE.fullmatch(line)
        if match is None:
            raise fail(name, number, f"`{line[:60]}` is no host", "`node0 slots=8`, `node0:8` or `node0`")
        slots = match["slots"] or match["colon"]
        if slots == "0":
            raise fail(name, number, f"`{line[:60]}`: no slots")
        nodes.append(Nodes(hosts=(match["host"],), gpus_per_node=int(slots) if slots else None))
    if not nodes:
        raise fail(name, 0, "there is no host in it")
    twice(name, [host for node in nodes for host in node.hosts])
    return Imported(groups=grouped(nodes), notes=("slots are taken as GPUs",))


def recognises(text: str) -> bool:
    lines = [line.partition("#")[0].strip() for line in text.splitlines()]
    return any(lines) and all(_LINE.fullmatch(line) for line in lines if line)


IMPORTER = Importer("hosts with their slots, as mpirun and deepspeed read them", recognises, read)
