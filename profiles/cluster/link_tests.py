"""The tests of `profile links`: which ranks communicate, at which sizes, and which test waits for which.

A test runs its groups at once; tests run one after the other. Every test has a name that its samples are kept under.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations

from ...cost_models.quantities.exchanges import OPS, Op

MOST_ALONE = 64  # up to here every ordered pair is measured alone; above, in rounds of disjoint pairs
SMALLEST = 1 << 10
_STEP = 8  # from one size to the next
COLLECTIVES: tuple[Op, ...] = tuple(op for op in OPS if op not in ("p2p", "broadcast"))


@dataclass(frozen=True)
class Ranks:
    """The ranks of a job, node by node: rank r is on node r // per_node."""

    hosts: tuple[str, ...]  # [nodes] names
    per_node: int  # ranks of a node
    devices: tuple[str, ...] = ()  # [nodes] names; () where all are of one kind

    @property
    def size(self) -> int:
        return len(self.hosts) * self.per_node

    def node(self, rank: int) -> int:
        return rank // self.per_node

    def of_node(self, node: int) -> range:
        return range(node * self.per_node, (node + 1) * self.per_node)

    def device(self, group: Sequence[int]) -> str:
        """The device of ranks that share a node; empty where all are of one kind, or the ranks do not share one."""
        nodes = {self.node(rank) for rank in group}
        return self.devices[nodes.pop()] if self.devices and len(nodes) == 1 else ""


@dataclass(frozen=True)
class Test:
    """Groups of ranks that communicate at once.

    Of groups with one label the slowest counts. The label of a pair is the pair itself; that of a collective is the
    device, where nodes have different ones and the group lies in a node.
    """

    name: str  # of its samples, without the size
    kind: str  # `pair` (the first rank of a group sends to the second), or a collective
    groups: tuple[tuple[int, ...], ...]  # [groups][ranks]
    labels: tuple[str, ...]  # [groups]

    @classmethod
    def pairs(cls, name: str, pairs: Iterable[tuple[int, int]]) -> Test:
        groups = tuple(pairs)
        return cls(name, "pair", groups, tuple(f"{source}>{to}" for source, to in groups))

    @cached_property
    def rows(self) -> tuple[str, ...]:
        """The labels, each once."""
        return tuple(dict.fromkeys(self.labels))

    def row(self, group: int) -> int:
        """The row that a group counts for."""
        return self.rows.index(self.labels[group])

    def keys(self, num_bytes: int) -> list[str]:
        """The names of the samples of every row."""
        return [" ".join(filter(None, (self.name, label, str(num_bytes)))) for label in self.rows]


def sizes(limit: int) -> list[int]:
    """Bytes of the messages, from a kibibyte by steps of eight up to and with `limit`."""
    steps = []
    size = SMALLEST
    while size < limit:
        steps.append(size)
        size *= _STEP
    return [*steps, limit]


def tests(ranks: Ranks, *, quick: bool) -> Iterator[Test]:
    """Pairs of ranks, all the links of two nodes at once, then collectives of every shape that a layout may use."""
    n = ranks.size
    if quick:  # inside nodes in rounds; between nodes one pair of each two, and all their ranks at once, below
        firsts = [ranks.of_node(node)[0] for node in range(len(ranks.hosts))]
        yield from (Test.pairs("round", [(first + a, first + b) for first in firsts for a, b in met])
                    for met in rounds(ranks.per_node))  # fmt: skip
        yield from (Test.pairs("alone", [pair]) for pair in combinations(firsts, 2))
    elif n <= MOST_ALONE:
        yield from (Test.pairs("alone", [(a, b)]) for a in range(n) for b in range(n) if a != b)
    else:
        yield from (Test.pairs("round", pairs) for pairs in rounds(n))
    yield from _node_pairs(ranks, both=not quick)
    for op in COLLECTIVES:
        for size, stride in shapes(ranks):
            same_shape = tuple(groups(n, size, stride))
            yield Test(f"{op} {size}x{stride}", op, same_shape, tuple(map(ranks.device, same_shape)))


def rounds(n: int) -> Iterator[tuple[tuple[int, int], ...]]:
    """Every ordered pair of n ranks once, in rounds of disjoint pairs (the circle method of tournaments)."""
    circle: list[int | None] = [*range(n), *([None] if n % 2 else [])]
    for _ in range(len(circle) - 1):
        half = len(circle) // 2
        met = [(a, b) for a, b in zip(circle[:half], reversed(circle[half:]), strict=True)
               if a is not None and b is not None]  # fmt: skip
        yield tuple(met)
        yield tuple((b, a) for a, b in met)
        circle = [circle[0], circle[-1], *circle[1:-1]]


def _node_pairs(ranks: Ranks, *, both: bool) -> Iterator[Test]:
    """All the ranks of a node send to those of another; with `both` also both ways at once."""
    nodes = range(len(ranks.hosts))

    def wires(a: int, b: int) -> tuple[tuple[int, int], ...]:
        return tuple(zip(ranks.of_node(a), ranks.of_node(b), strict=True))

    yield from (Test.pairs("nodes", wires(a, b)) for a in nodes for b in nodes if a != b)
    if both:
        yield from (Test.pairs("both-ways", wires(a, b) + wires(b, a)) for a in nodes for b in nodes if a < b)


def shapes(ranks: Ranks) -> list[tuple[int, int]]:
    """(size, stride) of the groups that layouts form: strides inside a node or of whole nodes, sizes that tile."""
    n, strides = ranks.size, _divisors(ranks.per_node)
    return [(size, stride) for stride in strides for size in _divisors(n)
            if size > 1 and n % (size * stride) == 0]  # fmt: skip


def groups(n: int, size: int, stride: int) -> Iterator[tuple[int, ...]]:
    """All the groups of one shape: they tile the ranks."""
    for start in range(0, n, size * stride):
        for first in range(start, start + stride):
            yield tuple(range(first, first + size * stride, stride))


def _divisors(n: int) -> list[int]:
    return [d for d in range(1, n + 1) if n % d == 0]
