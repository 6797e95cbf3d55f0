"""What the screens say of the order of the nodes, where the links between them differ."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from .. import text
from ..console import table

if TYPE_CHECKING:

    from .parts import Json, Part


# Kinds of groups (cost_models/rates/rates.py) in words.
_KINDS = {
    "tp": "tensor parallel", "cp": "context parallel", "ep": "expert exchange", "pp": "pipeline messages",
    "tied": "tied embedding", "shard": "dp, sharded states", "replicate": "dp, replicas",
    "expert_shard": "experts, sharded states", "expert_replicate": "experts, replicas",
}  # fmt: skip
_MOST_SLOW = 4
_MOST_HOSTS = 16


def order_lines(candidate: Json) -> list[str]:
    """Which links are slow, what the order of the nodes does about it, how good it is; none where links are alike."""
    order = candidate["placement"].get("order")
    if order is None:
        return []
    slowest, fastest = (text.quantity(order[f"{end}_bytes_per_s"], "B/s", bits=True) for end in ("slowest", "fastest"))
    lines = [f"Links between nodes give {slowest} to {fastest}. {_moved(candidate)}"]
    lines += [_slow_line(node, candidate) for node in order["slow"][:_MOST_SLOW]]
    if len(order["slow"]) > _MOST_SLOW:
        lines.append(f"{len(order['slow']) - _MOST_SLOW} more nodes are slow.")
    lines += [_gain(candidate), _proof(order)]
    return [text.wrapped(line) for line in lines]


def _moved(candidate: Json) -> str:
    """How the order differs from that of the cluster."""
    nodes, hosts = candidate["placement"]["order"]["nodes"], candidate["placement"]["hosts"]
    changed = [slot for slot, node in enumerate(nodes) if node != slot]
    if not changed:
        return "The nodes stay in the order of the cluster."
    if len(changed) == 2:
        return f"{hosts[changed[0]]} and {hosts[changed[1]]} change places."
    return f"{len(changed)} of {len(nodes)} nodes change places."


def _slow_line(node: Json, candidate: Json) -> str:
    """`gpu-03 has 25 % of the speed; it sends 68.7 GB a step, 137 GB in the order of the cluster.`"""
    slot = [candidate["placement"]["hosts"][each] for each in candidate["placement"]["order"]["nodes"]].index(
        node["host"]
    )
    stages = _stages_on(slot, candidate)
    line = f"{node['host']} is slow, {text.share(node['share'])} of the fastest: it holds {stages} and sends "
    line += f"{_gigabytes(node['sent_bytes'])} a step"
    if node["sent_bytes"] == node["sent_listed_bytes"]:
        return f"{line}, as in any order."
    return f"{line} instead of {_gigabytes(node['sent_listed_bytes'])}."


def _stages_on(slot: int, candidate: Json) -> str:
    """Pipeline stages of the ranks on a slot."""
    layout, num_nodes = candidate["layout"], len(candidate["placement"]["hosts"])
    if layout["pp"] == 1:
        return "a part of every layer"
    per_node = layout["pp"] / num_nodes
    first, last = int(slot * per_node), int((slot + 1) * per_node - 1e-9)
    last = max(first, last)
    return f"stage {first}" if first == last else f"stages {first} to {last}"


def _gigabytes(num_bytes: float) -> str:
    return f"{text.significant(num_bytes / 1e9)} GB"


def _gain(candidate: Json) -> str:
    """Seconds of the links and of the step, in this order and in that of the cluster."""
    order = candidate["placement"]["order"]
    now, before = order["network_s"], order["network_listed_s"]
    taken = text.duration(now)
    if now == before:
        return f"If nothing hid them, the links would take {taken} of a step, as in the order of the cluster."
    line = f"If nothing hid them, the links would take {taken} of a step; in the order of the cluster "
    line += f"{text.duration(before)}, {text.significant(before / now)} times as long."
    saved = order["step_listed_s"] - candidate["step_s"]
    much = f"{text.duration(saved)} ({text.percent(saved / order['step_listed_s'], 2)} %)" if saved > 0 else "no time"
    return f"{line} The step gains {much} by it."


def _proof(order: Json) -> str:
    if order["proven"]:
        return "Proven: in no order of the nodes do the links take less."
    gap = text.percent(1 - order["network_least_s"] / order["network_s"])
    return f"No order takes less than {text.duration(order['network_least_s'])}: at most {gap} % are left."


def order_table(candidate: Json) -> list[Part]:
    """Kinds of groups that leave their nodes and the links they find; the hosts in the order of the ranks."""
    placement = candidate["placement"]
    order, names = placement["order"], placement["hosts"]
    rows = [
        (f"  {_KINDS[kind['name']]}", f"{text.significant(kind['slowdown'])} x",
         text.duration(kind["per_slowness_s"] * (kind["slowdown"] - 1)),
         f"{text.significant(kind['slowdown_listed'])} x",
         text.duration(kind["per_slowness_s"] * (kind["slowdown_listed"] - 1)))
        for kind in order["kinds"]
    ]  # fmt: skip
    columns = ("  between nodes", "slower", "costs", "cluster's order: slower", "costs ")
    hosts: Sequence[str] = [names[node] for node in order["nodes"]]
    more = f" and {len(hosts) - _MOST_HOSTS} more (`--json`)" if len(hosts) > _MOST_HOSTS else ""
    line = f"Hosts in the order of the ranks: {' '.join(hosts[:_MOST_HOSTS])}{more}"
    return [table(*columns, rows=rows, right=columns[1:]), text.wrapped(line)]
