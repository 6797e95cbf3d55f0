"""The catalogue of accelerators and nodes: names, spellings, and loaders that open only the file they need.

The canonical name of an entry is its file's name. A folder named by `MESHWRIGHT_PROFILES_PATH` or given to `searching`
(`--profiles-path`; several separated as in PATH) with `hardware/` and `nodes/` inside adds entries, and replaces those
of the same name.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, get_args

from ...cost_models.specs.cluster import GpuSpec, Topology
from ...errors import InputError, UnknownNameError
from .facts import Facts, flatten
from .folders import CATALOGUE
from .reader import read_document

Kind = Literal["GPU", "node"]
PATH_VARIABLE = "MESHWRIGHT_PROFILES_PATH"
_FOLDER = {"GPU": "hardware", "node": "nodes"}
_SEE = {"GPU": "meshwright show gpus", "node": "meshwright show clusters"}
_ALIASES = "_aliases.yaml"

PRECISIONS = ("fp32", "tf32", "fp16", "bf16", "fp8", "fp4", "int8")
INTRA_KINDS = ("nvlink2", "nvlink3", "nvlink4", "nvlink5", "nvlink6", "xgmi", "pcie3", "pcie4", "pcie5", "ici",
               "neuronlink", "roce-mesh", "hccs", "upi")  # fmt: skip
INTER_KINDS = ("ib", "roce", "efa", "slingshot", "ethernet")
# Kinds of links whose constants a profile has: inside a node (those of a device where nodes have different ones, each
# its own), and between nodes.
NODE_KIND, NETWORK_KIND = "measured-node", "measured-network"


def inside_kind(device: str = "") -> str:
    """The measured kind of link inside nodes of that device; of all nodes where they are alike."""
    return f"{NODE_KIND}-{device}" if device else NODE_KIND


def is_inside_kind(kind: str) -> bool:
    return kind == NODE_KIND or kind.startswith(f"{NODE_KIND}-")


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuEntry:
    """A catalogue entry: the facts of an accelerator, and how nodes are usually built with it."""

    spec: GpuSpec  # what the cost models use
    link_kind: str  # one of INTRA_KINDS
    topology: Topology  # of its link inside a node
    pair_only: bool  # its link joins two cards (NVLink bridge), the rest of the node is PCIe
    usual_node: str | None  # name of the node type; None: no usual one
    torus_axes: int | None = None  # of a torus of its links, where they are known
    devices_per_chip: int = 1  # of what is sold as one chip; software counts devices (2: TPU7x, Trainium1)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeEntry:
    """A node type. None: as the GPU has it, or not known."""

    name: str  # canonical
    gpu: str  # name of its GPUs
    gpus_per_node: int  # all of one kind
    topology: Topology | None = None  # of the links inside the node
    domain: int | None = None  # GPUs joined by the fast link (72 of an NVL72 rack), where more than a node
    pair_bw_bytes_per_s: float | None = None  # per GPU, to the GPU of its pair
    link_bw_bytes_per_s: float | None = None  # per GPU, one direction, where it differs from the GPU's own
    nics: int | None = None  # per node; without them no plan spans nodes
    nic_bw_bytes_per_s: float | None = None  # of one NIC, one direction
    nic_latency_s: float | None = None  # per step of a collective
    fabric: str = ""  # name of the network
    fabric_kind: str = ""  # one of INTER_KINDS
    rail_optimised: bool = False  # NIC i of all nodes on one switch
    host_memory_bytes: float | None = None  # of a node
    host_memory_bw_bytes_per_s: float | None = None  # of a node
    price_usd_per_node_hour: float | None = None  # of one node
    unconfirmed: tuple[str, ...] = ()  # dotted paths of facts that no source confirms


def normalise(name: str) -> str:
    """Case, `_`, `-`, `.` and blanks are equal; a leading vendor `nvidia` is dropped."""
    return re.sub(r"[\s_.-]+", "-", name.strip().lower()).strip("-").removeprefix("nvidia-")


def gpu_names() -> tuple[str, ...]:
    return tuple(sorted(path.stem for path in _files("GPU", search_path()).values()))


def node_names() -> tuple[str, ...]:
    return tuple(sorted(path.stem for path in _files("node", search_path()).values()))


def gpu_name(name: str) -> str:
    """The canonical name of any spelling. Raises UnknownNameError."""
    return _find("GPU", name).stem


def node_name(name: str) -> str:
    return _find("node", name).stem


def is_gpu(name: str) -> bool:
    return _lookup("GPU", name) is not None


def is_node(name: str) -> bool:
    return _lookup("node", name) is not None


def load_gpu(name: str) -> GpuSpec:
    """The accelerator of that name, in any spelling. Raises UnknownNameError, or InputError for a bad file."""
    return gpu_entry(name).spec


def gpu_entry(name: str) -> GpuEntry:
    return _read_gpu(_find("GPU", name))


def load_node(name: str) -> NodeEntry:
    """The node type of that name, in any spelling. Raises UnknownNameError, or InputError for a bad file."""
    return _read_node(_find("node", name))


def gpu_facts(name: str) -> dict[str, dict[str, Any]]:
    """Every fact of an accelerator as the file states it: `{"peak.bf16": {"value", "source", "confirmed", "note"}}`."""
    return flatten(read_document(_find("GPU", name)).data)


def node_facts(name: str) -> dict[str, dict[str, Any]]:
    return flatten(read_document(_find("node", name)).data)


def gpu_file(name: str) -> Path | None:
    """The file of an accelerator; None for one that was described inline."""
    return _lookup("GPU", name)


def node_file(name: str) -> Path | None:
    return _lookup("node", name)


# Search paths that were given in this process, the one that holds last.
_GIVEN_PATHS: list[str] = []


def search_path() -> str:
    """Folders of a user's own entries, separated as in PATH: those that were given, else those of the environment."""
    return _GIVEN_PATHS[-1] if _GIVEN_PATHS else os.environ.get(PATH_VARIABLE, "")


def search_in(path: str) -> None:
    """Look for entries in these folders for the rest of the process: for workers, which take their parent's."""
    _GIVEN_PATHS.append(path)


@contextmanager
def searching(path: str) -> Iterator[None]:
    """Look for entries in these folders within the block."""
    search_in(path)
    try:
        yield
    finally:
        _GIVEN_PATHS.pop()


def _find(kind: Kind, name: str) -> Path:
    path = _lookup(kind, name)
    if path is None:
        known = [file.stem for file in _files(kind, search_path()).values()]
        raise UnknownNameError(kind, name, known, see=_SEE[kind])
    return path


def _lookup(kind: Kind, name: str) -> Path | None:
    files, wanted = _files(kind, search_path()), normalise(name)
    if wanted in files:
        return files[wanted]
    canonical = _aliases(kind, search_path()).get(wanted)  # read only for a name that is no file
    return files.get(normalise(canonical)) if canonical else None


def _folders(kind: Kind, search_path: str) -> list[Path]:
    """The folders of entries of a kind, in rising precedence."""
    folders = [CATALOGUE / _FOLDER[kind]]
    for part in reversed([part for part in search_path.split(os.pathsep) if part]):
        if not Path(part).is_dir():
            raise InputError(f"{PATH_VARIABLE} (--profiles-path): no folder `{part}`",
                             hint="name a folder that holds `hardware/` or `nodes/`")  # fmt: skip
        folders.append(Path(part) / _FOLDER[kind])
    return folders


@lru_cache(maxsize=16)
def _files(kind: Kind, search_path: str) -> dict[str, Path]:
    return {normalise(file.stem): file for folder in _folders(kind, search_path)
            for file in sorted(folder.glob("*.yaml")) if not file.name.startswith("_")}  # fmt: skip


@lru_cache(maxsize=16)
def _aliases(kind: Kind, search_path: str) -> dict[str, str]:
    table: dict[str, str] = {}
    for folder in _folders(kind, search_path):
        if (folder / _ALIASES).is_file():
            document = read_document(folder / _ALIASES)
            for canonical, spellings in document.data.items():
                table |= {normalise(str(spelling)): str(canonical) for spelling in spellings}
    return table


_GPU_KEYS = ("name", "vendor", "arch", "plan_only", "usual_node", "usual_stack", "devices_per_chip", "peak", "memory",
             "sms", "clock", "tdp", "link", "pcie", "measured", "note")  # fmt: skip


@lru_cache(maxsize=64)
def _read_gpu(path: Path) -> GpuEntry:
    facts = Facts(read_document(path))
    facts.keys((), _GPU_KEYS)
    facts.keys(("peak",), PRECISIONS)
    facts.keys(("memory",), ("capacity", "nominal", "bandwidth", "l2"))
    facts.keys(("link",), ("kind", "topology", "axes", "count", "pair", "bandwidth"))
    facts.keys(("pcie",), ("bandwidth",))
    peaks = {dtype: facts.quantity(("peak", dtype), "FLOP/s") for dtype in PRECISIONS}
    if not any(peaks.get(dtype) for dtype in ("bf16", "fp16")):
        facts.fail(("peak",), "give a dense peak of bf16 or fp16", "`peak: {bf16: 989.5 TFLOP/s}`")
    memory = facts.quantity(("memory", "capacity"), "B", required=True)
    memory_bw = facts.quantity(("memory", "bandwidth"), "B/s", required=True)
    link_bw = facts.quantity(("link", "bandwidth"), "B/s", required=True)
    pcie_bw = facts.quantity(("pcie", "bandwidth"), "B/s", required=True)
    num_sms, tdp = facts.whole(("sms",)), facts.quantity(("tdp",), "W")
    kind = facts.text(("link", "kind"), INTRA_KINDS, required=True) or ""
    topology: Any = facts.text(("link", "topology"), get_args(Topology), required=True)
    vendor, arch = facts.text(("vendor",), required=True) or "", facts.text(("arch",)) or ""
    plan_only, pair_only = facts.flag(("plan_only",)), facts.flag(("link", "pair"))
    torus_axes, usual_stack = facts.whole(("link", "axes")), facts.text(("usual_stack",)) or ""
    usual_node, devices_per_chip = facts.text(("usual_node",)), facts.whole(("devices_per_chip",)) or 1
    facts.finish()
    spec = GpuSpec(
        name=path.stem, vendor=vendor, arch=arch, plan_only=plan_only, num_sms=num_sms, tdp_w=tdp,
        usual_stack=usual_stack,
        peak_flops_per_s={dtype: peak for dtype, peak in peaks.items() if peak is not None},
        memory_bytes=memory or 0.0, memory_bw_bytes_per_s=memory_bw or 0.0, link_bw_bytes_per_s=link_bw or 0.0,
        pcie_bw_bytes_per_s=pcie_bw or 0.0, unconfirmed=tuple(facts.unconfirmed),
    )  # fmt: skip
    return GpuEntry(spec=spec, link_kind=kind, topology=topology, pair_only=pair_only, usual_node=usual_node,
                    torus_axes=torus_axes, devices_per_chip=devices_per_chip)  # fmt: skip


_NODE_KEYS = ("name", "gpu", "gpus_per_node", "intra", "domain", "nics", "fabric", "rail_optimised", "host_memory",
              "host_memory_bandwidth", "price", "note")  # fmt: skip


@lru_cache(maxsize=64)
def _read_node(path: Path) -> NodeEntry:
    facts = Facts(read_document(path))
    facts.keys((), _NODE_KEYS)
    facts.keys(("intra",), ("topology", "pair", "bandwidth"))
    facts.keys(("nics",), ("count", "bandwidth", "latency"))
    facts.keys(("fabric",), ("name", "kind"))
    gpu = facts.text(("gpu",), required=True) or ""
    gpus = facts.whole(("gpus_per_node",), required=True) or 1
    topology: Any = facts.text(("intra", "topology"), get_args(Topology))
    domain = facts.whole(("domain",))
    if domain is not None and domain < gpus:
        facts.fail(("domain",), f"`{domain}` is less than the {gpus} GPUs of the node")
    nics = facts.whole(("nics", "count"))
    entry = NodeEntry(
        name=path.stem, gpu=gpu, gpus_per_node=gpus, topology=topology, domain=domain,
        pair_bw_bytes_per_s=facts.quantity(("intra", "pair"), "B/s"),
        link_bw_bytes_per_s=facts.quantity(("intra", "bandwidth"), "B/s"),
        nics=nics, nic_bw_bytes_per_s=facts.quantity(("nics", "bandwidth"), "B/s", required=nics is not None),
        nic_latency_s=facts.quantity(("nics", "latency"), "s"), fabric=facts.text(("fabric", "name")) or "",
        fabric_kind=facts.text(("fabric", "kind"), INTER_KINDS, required=nics is not None) or "",
        rail_optimised=facts.flag(("rail_optimised",)), host_memory_bytes=facts.quantity(("host_memory",), "B"),
        host_memory_bw_bytes_per_s=facts.quantity(("host_memory_bandwidth",), "B/s"),
        price_usd_per_node_hour=facts.quantity(("price",), "USD/h"), unconfirmed=tuple(facts.unconfirmed),
    )  # fmt: skip
    facts.finish()
    return entry
