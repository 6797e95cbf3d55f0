"""The screen of `meshwright profile links`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from ...profiles.cluster.link_file import slow_link_text
from ...profiles.cluster.link_fits import Line, Links, Slow
from ...profiles.cluster.link_tests import COLLECTIVES, Test, sizes
from .. import text
from ..console import table

if TYPE_CHECKING:
    from rich.console import RenderableType

    from ...cost_models.rates.collectives import OpRates

_MOST_NODES = 8  # of a matrix on the screen
_NOISY = 0.25  # spread of the median link, from which the reader is warned


def tests_screen(tests: Sequence[Test], limit: int) -> Iterator[RenderableType]:
    """The tests that would run, by kind."""
    counts: dict[str, int] = {}
    for test in tests:
        kind = " ".join(test.name.split()[:2])
        counts[kind] = counts.get(kind, 0) + len(test.groups)
    yield f"{len(tests)} tests, each with {len(sizes(limit))} sizes from {sizes(limit)[0]} B to {limit} B"
    yield table("test", "groups", rows=[(name, f"{number}") for name, number in counts.items()], right=["groups"])


def links_screen(
    links: Links, slow: Sequence[Slow], about: Mapping[str, str], *, saved_as: str | None, unknown: str | None = None
) -> Iterator[RenderableType]:
    """Messages, the matrix of nodes, collectives; then what is slow. unknown: a device that no catalogue has."""
    nodes = len(links.ranks.hosts)
    where = f"{nodes} node{'s' * (nodes > 1)}"
    yield f"links between {links.ranks.size} ranks on {where}: {about['backend']}, torch {about['torch']}"
    yield about["device"]
    yield ""
    yield _messages(links)
    if 1 < nodes <= _MOST_NODES:
        yield ""
        yield "From node (rows) to node, GB/s, all their ranks at once"
        yield _matrix(links)
    yield ""
    yield _collectives(links)
    spread = _median(list(links.pairs.values()), "spread")
    if spread > _NOISY:
        yield text.wrapped(f"half of the samples of a message lie {spread:.0%} apart: something else was running")
    for link in slow:
        yield text.wrapped(f"slow: {slow_link_text(link, links.ranks)}")
    yield ""
    if saved_as is None:
        yield "Next: add `-o links.yaml` to keep this as a cluster"
    elif unknown is not None:
        cpu = " --device cpu" if about["backend"] == "gloo" else ""
        yield f"A plan for {unknown} needs its kernels, too."
        yield f"Next: meshwright profile all{cpu} --model MODEL.yaml -o node.yaml"
    else:
        yield f"Next: meshwright plan --cluster {saved_as} --model llama-3.1-8b"


def _messages(links: Links) -> RenderableType:
    rows = []
    for where, inside in (("inside a node", True), ("between nodes", False)):
        lines = [line for (a, b), line in links.pairs.items() if (links.ranks.node(a) == links.ranks.node(b)) == inside]
        if lines:
            speeds = sorted(line.bw_bytes_per_s for line in lines)
            rows.append((where, f"{len(lines)}", text.significant(speeds[len(speeds) // 2] / 1e9),
                         f"{text.significant(speeds[0] / 1e9)} - {text.significant(speeds[-1] / 1e9)}",
                         f"{_median(lines, 'latency_s') * 1e6:.0f}", f"{_median(lines, 'residual'):.1%}",
                         f"{_median(lines, 'spread'):.1%}"))  # fmt: skip
    columns = ("messages", "pairs", "GB/s", "least - most", "latency us", "fit off by", "spread")
    return table(*columns, rows=rows, right=columns[1:])


def _median(lines: Sequence[Line], name: str) -> float:
    values = sorted(float(getattr(line, name)) for line in lines)
    return values[len(values) // 2]


def _matrix(links: Links) -> RenderableType:
    hosts = links.ranks.hosts
    rows = [(host, *("" if i == j else text.significant(links.nodes[i, j] / 1e9) for j in range(len(hosts))))
            for i, host in enumerate(hosts)]  # fmt: skip
    return table("", *hosts, rows=rows, right=hosts)


def _collectives(links: Links) -> RenderableType:
    rows = []
    where = {level.kind: f"inside a node{device and f' of {device}'}" for device, level in links.inside.items()}
    for level in links.levels:
        for op in COLLECTIVES:
            if op in links.residuals[level.kind]:
                rate = links.rates[level.kind][op]
                rows.append((op.replace("_", "-"), where.get(level.kind, "between nodes"), f"{rate.base_s * 1e6:.0f}",
                             f"{max(rate.hop_s, 0 if level.kind in where else level.latency_s) * 1e6:.0f}",
                             f"{rate.efficiency:.2f}", f"{links.residuals[level.kind][op]:.1%}"))  # fmt: skip
    columns = ("collective", "groups", "start us", "per step us", "of the bandwidth", "fit off by")
    return table(*columns, rows=rows, right=columns[2:])


def document(links: Links, slow: Sequence[Slow], about: Mapping[str, str]) -> dict[str, object]:
    """The same for --json."""
    return {
        "kind": "link-profile",
        "environment": dict(about),
        "hosts": list(links.ranks.hosts),
        "ranks_per_node": links.ranks.per_node,
        "pairs": [{"from": a, "to": b, **vars(line)} for (a, b), line in links.pairs.items()],
        "nodes": [{"from": a, "to": b, "bw_bytes_per_s": bw, "both_ways_bytes_per_s": links.both_ways.get((a, b))}
                  for (a, b), bw in links.nodes.items()],
        "collectives": [{"level": level.name, "kind": level.kind, "op": op, **_fields(links.rates[level.kind][op]),
                         "median_error": links.residuals[level.kind][op]}
                        for level in links.levels for op in links.residuals[level.kind]],
        "slow": [{"from": link.source, "to": link.to, "share": link.share, "says": slow_link_text(link, links.ranks)}
                 for link in slow],
    }  # fmt: skip


def _fields(rate: OpRates) -> dict[str, float]:
    return {"base_s": rate.base_s, "hop_s": rate.hop_s, "efficiency": rate.efficiency, "ramp": rate.ramp}
