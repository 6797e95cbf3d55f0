"""The topology that NCCL writes to NCCL_TOPO_DUMP_FILE: GPUs, NVLinks and NICs of one node, with their speeds."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree

from .base import Imported, Importer, Nodes, fail

# PCI device numbers of NVIDIA's data-centre GPUs (the PCI ID repository, pci-ids.ucw.cz).
_DEVICES = {
    "0x1db1": "v100-sxm-16gb", "0x1db5": "v100-sxm-32gb", "0x20b0": "a100-sxm-40gb", "0x20b2": "a100-sxm-80gb",
    "0x20b5": "a100-pcie-80gb", "0x2330": "h100-sxm-80gb", "0x2331": "h100-pcie-80gb", "0x2335": "h200-sxm-141gb",
    "0x2901": "b200-sxm-180gb", "0x26b9": "l40s",
}  # fmt: skip


def read(name: str, text: str) -> Imported:
    try:
        system = ElementTree.fromstring(text)
    except ElementTree.ParseError as error:
        raise fail(name, error.position[0], f"is not XML: {error}") from None
    parents = {child: parent for parent in system.iter() for child in parent}
    gpus = list(system.iter("gpu"))
    if not gpus:
        raise fail(name, 0, "has no GPU in it", "`NCCL_TOPO_DUMP_FILE=topo.xml` and any NCCL program on the whole node")
    devices = {parents[gpu].get("device", "") for gpu in gpus}
    nets = [net for net in system.iter("net") if float(net.get("speed") or 0) > 0]
    speeds = sorted({float(net.get("speed") or 0) * 1e6 for net in nets})
    notes = []
    if len(speeds) > 1:
        notes.append(f"NICs of {', '.join(f'{speed / 1e9:g}' for speed in speeds)} Gb/s: only the fastest are counted")
    fastest = [net for net in nets if float(net.get("speed") or 0) * 1e6 == speeds[-1]]
    lanes = {sum(int(link.get("count") or 0) for link in gpu.iter("nvlink")) for gpu in gpus}
    joined = f"{max(lanes)} NVLinks each" if max(lanes) else "PCIe"
    notes.append(f"{len(gpus)} GPUs joined by {joined}; their bandwidth is that of the GPU in the catalogue")
    nodes = Nodes(gpus_per_node=len(gpus), gpu=_DEVICES.get(devices.pop(), "") if len(devices) == 1 else "",
                  nics=len(fastest) or None, nic_bits_per_s=speeds[-1] if speeds else None)  # fmt: skip
    return Imported(groups=(nodes,), notes=tuple(notes))


def recognises(text: str) -> bool:
    return re.search(r"<system\b[^>]*>", text) is not None and "<gpu " in text


IMPORTER = Importer("NCCL's topology (NCCL_TOPO_DUMP_FILE) of one node", recognises, read)
