"""The order of the nodes where the links between them differ, its reasons and its gain."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .. import text
from ..console import table

if TYPE_CHECKING:
    from ...planner.document.candidate import Candidate
    from ...planner.document.placement import NodeOrder, Placement, SlowNode
    from .parts import Part


# Kinds of groups (cost_models/rates/rates.py) in words.
_KINDS = {
    "tp": "tensor parallel", "cp": "context parallel", "ep": "expert exchange", "etp": "split experts",
    "pp": "pipeline messages", "tied": "tied embedding", "shard": "dp, sharded states", "replicate": "dp, replicas",
    "expert_shard": "experts, sharded states", "expert_replicate": "experts, replicas",
}  # fmt: skip
_MOST_SLOW = 4
_MOST_HOSTS = 16


def order_lines(candidate: Candidate) -> list[str]:
    """Slow links, the order of the nodes that avoids them, and its gain; empty where all links are alike."""
    placement, order = candidate.placement, candidate.placement.order
    if order is None:
        return []
    slowest, fastest = (
        text.quantity(speed, "B/s", bits=True) for speed in (order.slowest_bytes_per_s, order.fastest_bytes_per_s)
    )
    lines = [f"Links between nodes give {slowest} to {fastest}. {_moved(placement, order)}"]
    lines += [_slow_line(node, candidate, order) for node in order.slow[:_MOST_SLOW]]
    if len(order.slow) > _MOST_SLOW:
        lines.append(f"{len(order.slow) - _MOST_SLOW} more nodes are slow.")
    lines += [_gain(candidate, order), _proof(order)]
    return [text.wrapped(line) for line in lines]


def _moved(placement: Placement, order: NodeOrder) -> str:
    """The difference of the order from that of the cluster."""
    nodes, hosts = order.nodes, placement.hosts
    changed = [slot for slot, node in enumerate(nodes) if node != slot]
    if not changed:
        return "The nodes stay in the order of the cluster."
    if len(changed) == 2:
        return f"{hosts[changed[0]]} and {hosts[changed[1]]} change places."
    return f"{len(changed)} of {len(nodes)} nodes change places."


def _slow_line(node: SlowNode, candidate: Candidate, order: NodeOrder) -> str:
    """`gpu-03 has 25 % of the speed; it sends 68.7 GB a step, 137 GB in the order of the cluster.`"""
    hosts = candidate.placement.hosts
    slot = [hosts[index] for index in order.nodes].index(node.host)
    line = f"{node.host} is slow, {text.share(node.share)} of the fastest: it holds {_stages_on(slot, candidate)} "
    line += f"and sends {_gigabytes(node.sent_bytes)} a step"
    if node.sent_bytes == node.sent_listed_bytes:
        return f"{line}, as in any order."
    return f"{line} instead of {_gigabytes(node.sent_listed_bytes)}."


def _stages_on(slot: int, candidate: Candidate) -> str:
    """Pipeline stages of the ranks on a slot."""
    pp = candidate.to_layout().pp
    if pp == 1:
        return "a part of every layer"
    per_node = pp / len(candidate.placement.hosts)
    first = int(slot * per_node)
    # A stage that ends with the node is its last one, whatever the division rounds to.
    last = max(first, int((slot + 1) * per_node - 1e-9))
    return f"stage {first}" if first == last else f"stages {first} to {last}"


def _gigabytes(num_bytes: float) -> str:
    return f"{text.significant(num_bytes / 1e9)} GB"


def _gain(candidate: Candidate, order: NodeOrder) -> str:
    """Seconds of the links and of the step, in this order and in that of the cluster."""
    counted = ""
    if candidate.to_layout().pp > 1:
        counted = " (messages of the pipeline count where its first and last micro-batches wait for them)"
    taken = f"Without overlap, a step would wait {text.duration(order.network_s)} for the links{counted}"
    if order.network_s == order.network_listed_s:
        return f"{taken}, as in the order of the cluster."
    ratio = text.significant(order.network_listed_s / order.network_s)
    line = f"{taken}; in the order of the cluster "
    line += f"{text.duration(order.network_listed_s)}, {ratio} times as long."
    saved = order.step_listed_s - candidate.step_s
    gain = f"{text.duration(saved)} ({text.percent(saved / order.step_listed_s, 2)} %)" if saved > 0 else "no time"
    return f"{line} The step gains {gain} by it."


def _proof(order: NodeOrder) -> str:
    if order.proven:
        return "Proven: in no order of the nodes does it wait less."
    gap = text.percent(1 - order.network_least_s / order.network_s)
    return f"In no order does it wait less than {text.duration(order.network_least_s)}: at most {gap} % are left."


def order_table(candidate: Candidate) -> list[Part]:
    """Kinds of groups that leave their nodes and the links they find; the hosts in the order of the ranks."""
    order = candidate.placement.order
    if order is None:
        return []
    rows = [
        (f"  {_KINDS[kind.name]}", f"{text.significant(kind.slowdown)} x",
         text.duration(kind.per_slowness_s * (kind.slowdown - 1)), f"{text.significant(kind.slowdown_listed)} x",
         text.duration(kind.per_slowness_s * (kind.slowdown_listed - 1)))
        for kind in order.kinds
    ]  # fmt: skip
    columns = ("  between nodes", "slower", "costs", "cluster's order: slower", "costs ")
    hosts = [candidate.placement.hosts[node] for node in order.nodes]
    more = f" and {len(hosts) - _MOST_HOSTS} more (`--json`)" if len(hosts) > _MOST_HOSTS else ""
    line = f"Hosts in the order of the ranks: {' '.join(hosts[:_MOST_HOSTS])}{more}"
    return [table(*columns, rows=rows, right=columns[1:]), text.wrapped(line)]
