"""Logs of nccl-tests and rccl-tests: hosts and GPUs, and the bandwidth at which the planner gets their largest call.

The planner's constants of the link (start, share of the bandwidth, trees, switches) stay; its bandwidth becomes the
one with which they give the time that was measured: that of the NVLinks for a run on one node, else of the network.
"""

from __future__ import annotations

import re
from dataclasses import replace

from ...cost_models.quantities.exchanges import Op
from ...cost_models.rates import collectives
from ...cost_models.specs.cluster import NetworkLevel
from ..cluster import build as clusters
from ..cluster import fabric
from ..io import registry
from ..rates.link_rates import collective_rates
from .base import Imported, Importer, Nodes, catalogue_name, fail

_RANK = re.compile(r"#\s+Rank\s+(\d+) (?:Group\s+\d+ )?Pid\s+\d+ on\s+(\S+) device\s+\d+ \[[^\]]*\] (.+?)\s*$",
                   re.MULTILINE)  # fmt: skip
_TEST = re.compile(r"(all_reduce|all_gather|reduce_scatter|alltoall)_perf")
_OPS: dict[str, Op] = {"all_reduce": "all_reduce", "all_gather": "all_gather", "reduce_scatter": "reduce_scatter",
                       "alltoall": "all_to_all"}  # fmt: skip
_NETWORK, _ANY = "ib", 1e9  # the log names neither the network nor its speed: curves scale with it
_ROW = re.compile(r"^\s*(\d+)\s+\d+\s+\w+\s+\w+\s+-?\d+\s+([\d.e+]+)\s+[\d.]+\s+([\d.]+)\s+(\S+)")


def read(name: str, text: str) -> Imported:
    ranks = {int(rank): (host, gpu) for rank, host, gpu in _RANK.findall(text)}
    if not ranks:
        raise fail(name, 0, "says no `# Rank 0 ... on HOST device 0 [...] NAME`: who took part?",
                   "the whole log, from its first line")  # fmt: skip
    hosts = list(dict.fromkeys(host for _, (host, _) in sorted(ranks.items())))
    per_node = [sum(1 for other, _ in ranks.values() if other == host) for host in hosts]
    gpus = {gpu for _, gpu in ranks.values()}
    if len(set(per_node)) > 1 or len(gpus) > 1:
        raise fail(name, 0, f"hosts of {sorted(set(per_node))} ranks with {', '.join(sorted(gpus))} took part",
                   "import a log of nodes that are alike")  # fmt: skip
    test = _TEST.search(text)
    if test is None:
        raise fail(name, 0, "does not name the collective that it timed",
                   "keep the command line (`all_reduce_perf ...`) or nccl-tests' head in the log")  # fmt: skip
    op, (num_bytes, seconds, busbw) = _OPS[test[1]], _largest(name, text)
    gpu = gpus.pop()
    nodes = Nodes(gpus_per_node=per_node[0], hosts=tuple(hosts), gpu=gpu)
    summary = f"{test[1]} of {num_bytes / 2**20:g} MiB over {len(ranks)} ranks: {busbw:g} GB/s (busbw)"
    if not catalogue_name(gpu):
        return Imported(groups=(nodes,), notes=(summary, "without a known GPU no bandwidth is derived from it"))
    bandwidth = f"{_bandwidth(catalogue_name(gpu), per_node[0], len(hosts), op, num_bytes, seconds) / 1e9:.4g} GB/s"
    if len(hosts) > 1:
        return Imported(groups=(nodes,), inter={"bandwidth": bandwidth, "kind": _NETWORK},
                        notes=(summary, "the network is taken as InfiniBand (`ib`)"))  # fmt: skip
    return Imported(groups=(replace(nodes, intra={"bandwidth": bandwidth}),), notes=(summary,))


def _largest(name: str, text: str) -> tuple[float, float, float]:
    """Bytes, seconds and bus bandwidth (GB/s) of the largest size, out of place. Raises InputError on wrong results."""
    largest = None
    for number, line in enumerate(text.splitlines(), 1):
        if match := _ROW.match(line):
            if match[4] not in ("0", "N/A", "0e+00"):
                raise fail(name, number, f"{match[4]} wrong results at {match[1]} bytes", "the fabric corrupts data")
            largest = float(match[1]), float(match[2]) * 1e-6, float(match[3])
    if largest is None or largest[1] <= 0:
        raise fail(name, 0, "has no row with a size and a time", "the test did not run to its first size")
    return largest


def _bandwidth(gpu: str, per_node: int, nodes: int, op: Op, num_bytes: float, seconds: float) -> float:
    """Bytes/s per GPU, one direction, of the outermost link that the call crossed: its transfer is as long as what the
    planner's constants leave of the measured time."""
    levels = clusters.gpu_group(registry.gpu_entry(gpu), per_node, 1).intra
    if nodes > 1:
        latency_s, _ = fabric.latency(_NETWORK)
        levels += (NetworkLevel(name="cluster", size=per_node * nodes, bw_bytes_per_s=_ANY, latency_s=latency_s,
                                kind=_NETWORK),)  # fmt: skip
    curve = collectives.curve(collective_rates(), levels, op, per_node * nodes, 1)
    transfer_s = max(seconds - float(curve.latency_s[0]), seconds / 2)
    return levels[-1].bw_bytes_per_s * float(curve.s_per_byte[0]) * num_bytes / transfer_s


def recognises(text: str) -> bool:
    return re.search(r"^\s*# (Collective test starting|(nccl|rccl)-tests)", text, re.MULTILINE) is not None or (
        _RANK.search(text) is not None)


IMPORTER = Importer("log of nccl-tests or rccl-tests", recognises, read)
