"""Slurm's `scontrol show node` (or `nodes`, with or without --oneliner): hosts, GPUs by Gres, memory, and state."""

from __future__ import annotations

import re

from .base import Imported, Importer, Nodes, fail, grouped, twice

_GRES = re.compile(r"gpu(?::(?P<type>[A-Za-z][\w.-]*))?:(?P<count>\d+)")
_OUT = re.compile(r"DOWN|DRAIN|FAIL|NOT_RESPONDING|MAINT")


def read(name: str, text: str) -> Imported:
    nodes = []
    out, without = [], []  # names of nodes that are down, and of those without GPUs
    for line, block in _blocks(text):
        host, gres = block["NodeName"], _GRES.search(block.get("Gres", ""))
        if _OUT.search(block.get("State", "")):
            out.append(host)
        elif gres is None:
            without.append(host)
        else:
            memory = block.get("RealMemory")
            if memory is not None and not memory.isdigit():
                raise fail(name, line, f"{host}: RealMemory `{memory}` is no number of MiB")
            nodes.append(Nodes(hosts=(host,), gpu=gres["type"] or "", gpus_per_node=int(gres["count"]),
                               host_memory_bytes=float(memory) * 2**20 if memory else None))  # fmt: skip
    if not nodes:
        raise fail(name, 0, f"no node with GPUs that is up ({len(out)} down or drained, {len(without)} without Gres)")
    twice(name, [host for node in nodes for host in node.hosts])
    notes = [f"left out, down or drained: {', '.join(out)}"] if out else []
    notes += [f"left out, no GPU in Gres: {', '.join(without)}"] if without else []
    return Imported(groups=grouped(nodes), notes=(*notes, "Slurm does not know the network: give `nics` or `links`"))


def _blocks(text: str) -> list[tuple[int, dict[str, str]]]:
    """(line, fields) of every node."""
    blocks: list[tuple[int, dict[str, str]]] = []
    for number, line in enumerate(text.splitlines(), 1):
        for key, value in re.findall(r"(\w+)=(\S*)", line):
            if key == "NodeName":
                blocks.append((number, {}))
            if blocks:
                blocks[-1][1].setdefault(key, value)
    return blocks


def recognises(text: str) -> bool:
    return re.search(r"^\s*NodeName=\S+ ", text, re.MULTILINE) is not None


IMPORTER = Importer("`scontrol show nodes`", recognises, read)
