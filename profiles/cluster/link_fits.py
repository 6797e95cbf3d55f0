"""Fits bandwidths, latencies and constants of collectives to the samples of `profile links`.

A message of S bytes that is answered by one byte takes 2 latency + S / bandwidth; collectives follow the curves of
cost_models/rates/collectives.py, whose constants (OpRates) are fitted here by bounded least squares on log time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ...cost_models.arrays import Array
from ...cost_models.quantities.exchanges import Op
from ...cost_models.rates import collectives
from ...cost_models.rates.collectives import CollectiveRates, LevelRates, OpRates
from ...cost_models.specs.cluster import NetworkLevel
from ..io.registry import NETWORK_KIND, inside_kind
from .link_tests import COLLECTIVES, Ranks

SLOW = 0.7  # below this share of what its peers reach a link is named
_NO_TIME = 1e-9  # seconds: a file holds nothing that is zero
_NAMES = ("base_s", "hop_s", "efficiency", "ramp")


@dataclass(frozen=True)
class Line:
    """Seconds of S bytes as latency_s + S / bw_bytes_per_s, over the sizes that were measured."""

    latency_s: float  # one direction
    bw_bytes_per_s: float  # one direction
    residual: float  # median relative error of the fit
    spread: float  # median over the sizes of (upper - lower quartile) / median


@dataclass(frozen=True)
class Links:
    """The links of a job, as measured."""

    ranks: Ranks  # between whom
    pairs: Mapping[tuple[int, int], Line]  # (from, to) -> line of a pair, alone or beside others of its test
    nodes: Mapping[tuple[int, int], float]  # (from, to) -> bytes/s, all ranks at once
    both_ways: Mapping[tuple[int, int], float]  # the same while the other direction runs
    inside: Mapping[str, NetworkLevel]  # device ("" where all are one kind) -> its level; {}: nodes of one rank
    network: NetworkLevel | None  # between nodes; None where there is one node
    rates: Mapping[str, Mapping[Op, OpRates]]  # kind of level -> constants of its collectives
    residuals: Mapping[str, Mapping[Op, float]]  # kind of level -> median relative error of each fit

    @property
    def levels(self) -> tuple[NetworkLevel, ...]:
        """All of them, those inside nodes first."""
        return (*self.inside.values(), *([self.network] if self.network else []))

    @property
    def matrix(self) -> list[list[float]]:
        """Bytes/s from node to node, 0 on the diagonal."""
        nodes = range(len(self.ranks.hosts))
        return [[self.nodes[i, j] if i != j else 0.0 for j in nodes] for i in nodes]


@dataclass(frozen=True)
class Slow:
    """A link, or all links of a node, that is slower than its peers."""

    share: float  # of the speed of its peers
    source: int  # node, or rank where there is one node
    to: int | None = None  # as source; None: all links of the source


def fit(ranks: Ranks, samples: Mapping[str, Sequence[float]]) -> Links:
    """Everything from the samples (their names: link_tests.py)."""
    medians = {name: float(np.median(values)) for name, values in samples.items()}
    pairs = {pair: _line(by_size) for test in ("alone", "round") for pair, by_size in _messages(samples, test).items()}
    nodes, both_ways = _node_speeds(ranks, samples, "nodes"), _node_speeds(ranks, samples, "both-ways")
    inside, network = _inside(ranks, pairs), _network(ranks, pairs, nodes)
    rates: dict[str, dict[Op, OpRates]] = {}
    residuals: dict[str, dict[Op, float]] = {}

    def fit_level(level: NetworkLevel, below: tuple[NetworkLevel, ...], device: str) -> None:
        below_rates = _as_rates(rates, below)
        constants: dict[Op, OpRates] = {}
        errors: dict[Op, float] = {}
        for op in COLLECTIVES:
            if rows := list(_rows(medians, op, ranks, device, crossing=level is network)):
                constants[op], errors[op] = _constants((*below, level), op, rows, below_rates)
        rates[level.kind], residuals[level.kind] = _completed(constants, level), errors

    for device, level in inside.items():
        fit_level(level, (), device)
    if network is not None:
        by_speed = sorted(inside.values(), key=lambda level: level.bw_bytes_per_s)
        fit_level(network, tuple(by_speed[:1]), "")  # a cluster of all nodes has the slowest of them
    return Links(ranks, pairs, nodes, both_ways, inside, network, rates, residuals)


def _messages(
    samples: Mapping[str, Sequence[float]], test: str
) -> dict[tuple[int, int], dict[int, Sequence[float]]]:
    """The samples of the messages of one test: (from, to) -> bytes -> seconds."""
    by_pair: dict[tuple[int, int], dict[int, Sequence[float]]] = {}
    for name, values in samples.items():
        kind, _, rest = name.partition(" ")
        if kind == test:
            pair, num_bytes = rest.split()
            source, to = map(int, pair.split(">"))
            by_pair.setdefault((source, to), {})[int(num_bytes)] = values
    return dict(sorted(by_pair.items()))


def _line(by_size: Mapping[int, Sequence[float]]) -> Line:
    """2 latency + S / bandwidth through the medians of the smallest and the largest message: each shows its own term
    best, and buffers of the network make sizes between them faster than either, which shows in the residual."""
    num_bytes = np.array(sorted(by_size), dtype=np.float64)
    quartiles = np.array([np.quantile(by_size[int(size)], (0.25, 0.5, 0.75)) for size in num_bytes])
    seconds, spread = quartiles[:, 1], (quartiles[:, 2] - quartiles[:, 0]) / quartiles[:, 1]
    added = float(seconds[-1] - seconds[0])
    per_byte = added / float(num_bytes[-1] - num_bytes[0]) if added > 0 else float(seconds[-1] / num_bytes[-1])
    start = max(float(seconds[0] - num_bytes[0] * per_byte), float(seconds[0]) / 2)
    error = np.abs(start + num_bytes * per_byte - seconds) / seconds
    return Line(start / 2, 1.0 / per_byte, float(np.median(error)), float(np.median(spread)))


def _node_speeds(ranks: Ranks, samples: Mapping[str, Sequence[float]], test: str) -> dict[tuple[int, int], float]:
    """Bytes/s of all the ranks of a node together, each repeat over when its last message is."""
    by_nodes: dict[tuple[int, int], dict[int, Array]] = {}
    for (source, to), by_size in _messages(samples, test).items():
        slowest = by_nodes.setdefault((ranks.node(source), ranks.node(to)), {})
        for num_bytes, values in by_size.items():
            slowest[num_bytes] = np.maximum(slowest.get(num_bytes, 0.0), np.asarray(values))
    return {pair: ranks.per_node * _line({size: values.tolist() for size, values in by_size.items()}).bw_bytes_per_s
            for pair, by_size in by_nodes.items()}  # fmt: skip


def _inside(ranks: Ranks, pairs: Mapping[tuple[int, int], Line]) -> dict[str, NetworkLevel]:
    """The level inside the nodes of every device, by its median pair."""
    lines: dict[str, list[Line]] = {}
    for pair, line in pairs.items():
        if ranks.node(pair[0]) == ranks.node(pair[1]):
            lines.setdefault(ranks.device(pair), []).append(line)
    return {
        device: NetworkLevel(
            name="node", size=ranks.per_node, kind=inside_kind(device), source="measured",
            bw_bytes_per_s=_median(of_device, "bw_bytes_per_s"), latency_s=_median(of_device, "latency_s"),
        )
        for device, of_device in lines.items()
    }  # fmt: skip


def _network(
    ranks: Ranks, pairs: Mapping[tuple[int, int], Line], nodes: Mapping[tuple[int, int], float]
) -> NetworkLevel | None:
    """The level between nodes, by its median pair of nodes, by the slowest where some are slow. It is shared by as many
    as one rank is faster alone than its share is when all send."""
    outside = {pair: line for pair, line in pairs.items() if ranks.node(pair[0]) != ranks.node(pair[1])}
    if not outside:
        return None
    choose = min if _differ(nodes) else np.median
    times = [line.bw_bytes_per_s * ranks.per_node / nodes[ranks.node(a), ranks.node(b)]
             for (a, b), line in outside.items()]  # fmt: skip
    return NetworkLevel(name="cluster", size=ranks.size, latency_s=_median(outside.values(), "latency_s"),
                        bw_bytes_per_s=float(choose(list(nodes.values()))) / ranks.per_node, source="measured",
                        shared_by=float(np.clip(np.median(times), 1.0, ranks.per_node)),
                        kind=NETWORK_KIND)  # fmt: skip


def _median(lines: Iterable[Line], name: str) -> float:
    return float(np.median([getattr(line, name) for line in lines]))


def links_differ(links: Links) -> bool:
    """Whether nodes are joined so differently that it matters which node holds which ranks."""
    return _differ(links.nodes)


def _differ(nodes: Mapping[tuple[int, int], float]) -> bool:
    return len(nodes) > 2 and min(nodes.values()) < SLOW * max(nodes.values())


def _rows(
    medians: Mapping[str, float], op: Op, ranks: Ranks, device: str, *, crossing: bool
) -> Iterator[tuple[int, int, int, float]]:
    """(size, stride, bytes, seconds) of the groups that lie inside nodes of a device, or that cross between nodes."""
    for name, seconds in medians.items():
        kind, *shape, num_bytes = name.split()
        if kind == op and shape[1:] == ([device] if device else []):
            size, stride = map(int, shape[0].split("x"))
            if (size * stride > ranks.per_node) == crossing:
                yield size, stride, int(num_bytes), seconds


def _as_rates(
    rates: Mapping[str, Mapping[Op, OpRates]], levels: Sequence[NetworkLevel]
) -> dict[str, LevelRates]:
    return {level.kind: LevelRates(ops=dict(rates[level.kind].items()), source="measured") for level in levels}


def _constants(
    levels: tuple[NetworkLevel, ...], op: Op, rows: Sequence[tuple[int, int, int, float]],
    below: Mapping[str, LevelRates],
) -> tuple[OpRates, float]:  # fmt: skip
    """The constants of one operation at the last of the levels, given those of the others, and their median error."""
    from ..rates.least_squares import solve  # not above: scipy's optimisers take half a second to import

    size, stride, num_bytes, seconds = (np.array(column) for column in zip(*rows, strict=True))
    seconds = seconds.astype(np.float64)

    def predict(values: Array) -> Array:
        level_rates = LevelRates(ops={op: OpRates(**dict(zip(_NAMES, values.tolist(), strict=True)))})
        kinds = {**below, levels[-1].kind: level_rates}
        rates = CollectiveRates(kinds=kinds, inner=level_rates, outer=level_rates)
        return collectives.seconds(collectives.curve(rates, levels, op, size, stride), num_bytes)

    shortest, longest = float(seconds.min()), float(seconds.max())
    bounds = ((_NO_TIME, longest), (_NO_TIME, longest), (0.005, 4.0))
    # A ramp is one of two things on the two sides of 0 (Curve): the better one.
    fits = [solve(predict, seconds, (shortest / 2, shortest / 8, 0.7, ramp), (*bounds, limits), soft=0.1)
             for ramp, limits in ((0.5, (0.0, 6.0)), (-0.5, (-1.0, 0.0)))]  # fmt: skip
    values, error = min(fits, key=lambda result: result[1]["cost"])
    return OpRates(**dict(zip(_NAMES, values.tolist(), strict=True))), float(error["median"])


def _completed(ops: dict[Op, OpRates], level: NetworkLevel) -> dict[Op, OpRates]:
    """The fits with messages, which reach the bandwidth of the level as it was measured with them, and broadcasts."""
    message = OpRates(base_s=_NO_TIME, hop_s=level.latency_s, efficiency=1.0, ramp=0.0)
    return {**ops, "p2p": message, "broadcast": ops.get("all_gather", message)}


def slow_links(links: Links) -> list[Slow]:
    """Links that reach less than SLOW of their peers, worst first.

    A node is as fast as its best link in each direction, and is compared with the median node; a pair is compared with
    the slower of its two nodes.
    """
    speeds = links.nodes if len(links.ranks.hosts) > 1 else {p: line.bw_bytes_per_s for p, line in links.pairs.items()}
    members = sorted({member for pair in speeds for member in pair})
    if len(members) < 3:  # two have no peers
        return []
    best = {m: min(max(speed for pair, speed in speeds.items() if pair[end] == m) for end in (0, 1)) for m in members}
    median = float(np.median(list(best.values())))
    slow = [Slow(best[m] / median, m) for m in members if best[m] < SLOW * median]
    slow += [Slow(speed / min(best[a], best[b]), a, b) for (a, b), speed in speeds.items()
             if speed < SLOW * min(best[a], best[b])]  # fmt: skip
    return sorted(slow, key=lambda link: (link.share, link.source, link.to or -1))
