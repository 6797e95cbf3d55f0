"""`nvidia-smi topo -m`: GPUs of this node, how they are joined, and the NICs nearest to them."""

from __future__ import annotations

import re

from .base import Imported, Importer, Nodes, fail

_NEAR = ("PIX", "PXB", "PHB")  # a NIC on the GPU's own side of the processor
_ANSI = re.compile(r"\x1b\[[0-9;]*m")


def read(name: str, text: str) -> Imported:
    lines = _ANSI.sub("", text).splitlines()
    start = next((i for i, line in enumerate(lines) if re.match(r"\s*GPU0\s", line) and " X " not in f"{line} "), None)
    if start is None:
        raise fail(name, 0, "has no table of GPUs", "`nvidia-smi topo -m`")
    columns = re.findall(r"\b(?:GPU|NIC|mlx5_)\d+\b", lines[start])
    gpus = [column for column in columns if column.startswith("GPU")]
    rows = {words[0]: (number, words[1:]) for number, line in enumerate(lines[start + 1 :], start + 2)
            if (words := line.split()) and words[0] in columns}  # fmt: skip
    if missing := [gpu for gpu in gpus if gpu not in rows or len(rows[gpu][1]) < len(columns)]:
        raise fail(name, rows[missing[0]][0] if missing[0] in rows else 0, f"the row of {missing[0]} is not whole")
    links = [rows[a][1][j] for i, a in enumerate(gpus) for j in range(len(gpus)) if i != j]
    nics = [j for j in range(len(gpus), len(columns)) if any(rows[gpu][1][j] in _NEAR for gpu in gpus)]
    notes = ["the speed of NICs is not in this table: give `nic_bandwidth` with `nics`"] if nics else []
    if len(nics) < len(columns) - len(gpus):
        notes.append(f"{len(columns) - len(gpus) - len(nics)} NICs are near no GPU, and left out")
    lanes = sorted({int(link[2:]) for link in links if re.fullmatch(r"NV\d+", link)})
    unlike = sorted({link for link in links if not link.startswith("NV")})
    if (lanes and unlike) or len(lanes) > 1:
        notes.append(f"GPUs are joined in different ways ({', '.join([*(f'NV{n}' for n in lanes), *unlike])}): "
                     "`profile links` measures what that gives")  # fmt: skip
    joined = f"{lanes[-1]} NVLinks" if lanes else "PCIe"
    notes.append(f"{len(gpus)} GPUs joined by {joined}; their bandwidth is that of the GPU in the catalogue")
    return Imported(groups=(Nodes(gpus_per_node=len(gpus), nics=len(nics) or None),), notes=tuple(notes))


def recognises(text: str) -> bool:
    return re.search(r"^\s*(\x1b\[\dm)?\s*GPU0\s+.*CPU Affinity", text, re.MULTILINE) is not None


IMPORTER = Importer("`nvidia-smi topo -m` of one node", recognises, read)
