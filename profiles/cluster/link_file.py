"""The cluster file that `profile links` writes, and its part that other cluster files do not have: `collectives`.

    collectives:                # constants of cost_models/rates/collectives.py, OpRates
      measured-node:            # a `kind` that the file gives to one of its links
        all_reduce: {base: 85 us, hop: 12 us, efficiency: 0.61, ramp: 0.4}
      measured-node-cpu-0.2-cores: ...     # where nodes have different devices, each has its own
    measured: {date: ..., gpu: h100-sxm-80gb, device: ...}     # on what; nothing is priced by it
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import yaml

from ...cost_models.quantities.exchanges import OPS
from ...cost_models.rates.collectives import OpRates
from ...cost_models.specs.cluster import ClusterSpec, NetworkLevel
from ...cost_models.specs.notice import Notice
from ..io.document import FieldPath
from ..io.facts import Facts
from ..io.registry import NETWORK_KIND, NODE_KIND, is_inside_kind
from .link_fits import Links, Slow, links_differ
from .link_tests import Ranks

_FIELDS = ("base", "hop", "efficiency", "ramp")
_HEAD = """\
# Links between {ranks} ranks on {nodes} node{s}, measured on {date}: a cluster file for `plan --cluster`.
# Bandwidths are one direction, per GPU. Written by `meshwright profile links`; it holds for what `measured` names.
"""


def with_collectives(facts: Facts, cluster: ClusterSpec) -> ClusterSpec:
    """`cluster` with the constants that its file has for measured kinds of link; what is wrong goes to `facts`."""
    path: FieldPath = ("collectives",)
    levels = [*cluster.levels, *(level for island in cluster.islands for level in island.levels)]
    measured_kinds = {level.kind for level in levels if level.kind == NETWORK_KIND or is_inside_kind(level.kind)}
    constants: dict[str, dict[str, dict[str, float]]] = {}
    if facts.keys(path, (NODE_KIND, NETWORK_KIND, *sorted(measured_kinds))):
        for kind in facts.document.at(path):
            facts.keys((*path, kind), OPS)
            constants[kind] = {op: values for op in OPS if (values := _constants(facts, (*path, kind, op))) is not None}
    for kind in sorted(measured_kinds - constants.keys()):
        facts.fail(path, f"says nothing of `{kind}`, which a link is of", "`profile links` writes both")
    warnings = [Notice("cluster", text) for text in _other_hardware(facts, cluster)]
    return replace(cluster, collectives=constants, warnings=(*cluster.warnings, *warnings))


def _constants(facts: Facts, path: FieldPath) -> dict[str, float] | None:
    """The fields of OpRates at `path`."""
    if not facts.keys(path, _FIELDS):
        facts.fail(path, f"`{path[-1]}` is missing")
        return None
    base, hop = (facts.quantity((*path, name), "s", required=True) for name in _FIELDS[:2])
    shares = []
    for name in _FIELDS[2:]:
        value = facts.value((*path, name), required=True)
        if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)
                                  or not (value >= -1 if name == "ramp" else value > 0)):  # fmt: skip
            least = "of -1 or more" if name == "ramp" else "above zero"
            facts.fail((*path, name), f"`{value}` must be a number {least}")
            value = None
        shares.append(value)
    if base is None or hop is None or None in shares:
        return None
    return {"base_s": base, "hop_s": hop, "efficiency": float(shares[0]), "ramp": float(shares[1])}


def _other_hardware(facts: Facts, cluster: ClusterSpec) -> Iterator[str]:
    """A warning where the links were measured between other GPUs than those of the groups."""
    if not facts.keys(("measured",), tuple(facts.document.at(("measured",)) or ())):
        return
    gpu = facts.document.at(("measured", "gpu"))
    names = sorted({group.gpu.name for group in cluster.groups})
    if gpu and gpu not in names:
        yield f"{facts.document.name}: its links were measured on {gpu}, the cluster has {', '.join(names)}"


def profile_text(
    links: Links, slow: list[Slow], *, gpu: str, about: Mapping[str, str], date: str, samples: str, matrix: str
) -> str:
    """The file. gpu: its name in the catalogue, where nodes are alike; about: what was measured on, with its own `gpu`
    (empty where the catalogue does not know it); samples, matrix: the names of the files beside it."""
    ranks = links.ranks
    nodes = len(ranks.hosts)
    inside = {device: _of_level(level) for device, level in links.inside.items()}
    document: dict[str, Any] = {
        "name": "measured",
        "groups": [{"gpu": device or gpu, "gpus_per_node": ranks.per_node, "count": len(list(run)),
                    **({"intra_node": inside[device]} if device in inside and device else {})}
                   for device, run in itertools.groupby(ranks.devices or [""] * nodes)],
        "hosts": list(ranks.hosts),
        "links": {"intra_node": inside[""]} if "" in inside else {},
        "collectives": {kind: {op: _written(ops[op]) for op in OPS} for kind, ops in links.rates.items()},
        "measured": {"date": date, **about, "samples": samples,
                     "median error of the fits": {kind: {op: f"{error:.1%}" for op, error in ops.items()}
                                                  for kind, ops in links.residuals.items()},
                     **({"slow": [slow_link_text(link, ranks) for link in slow]} if slow else {})},
    }  # fmt: skip
    if links.network is not None:
        document["links"]["inter_node"] = _of_level(links.network)
    if links_differ(links):
        document["links"]["matrix"] = matrix
    head = _HEAD.format(ranks=ranks.size, nodes=nodes, s="s" * (nodes > 1), date=date)
    return head + yaml.safe_dump(document, sort_keys=False, width=120, allow_unicode=True)


def _of_level(level: NetworkLevel) -> dict[str, str | float]:
    shared = {"shared_by": float(f"{level.shared_by:.3g}")} if level.shared_by > 1 else {}
    return {"bandwidth": f"{level.bw_bytes_per_s / 1e9:.4g} GB/s", "latency": f"{level.latency_s * 1e6:.4g} us",
            "kind": level.kind, **shared}  # fmt: skip


def _written(rates: OpRates) -> dict[str, str | float]:
    return {"base": f"{rates.base_s * 1e6:.4g} us", "hop": f"{rates.hop_s * 1e6:.4g} us",
            "efficiency": float(f"{rates.efficiency:.4g}"), "ramp": round(rates.ramp, 4)}  # fmt: skip


def slow_link_text(slow: Slow, ranks: Ranks) -> str:
    """`node3 → node7 runs at 0.31 of its peers`."""
    names = ranks.hosts if len(ranks.hosts) > 1 else [f"rank {rank}" for rank in range(ranks.size)]
    if slow.to is None:
        return f"{names[slow.source]}: all its links run at {slow.share:.2f} of those of its peers"
    return f"{names[slow.source]} → {names[slow.to]} runs at {slow.share:.2f} of its peers"

