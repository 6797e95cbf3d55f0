"""Sub-meshes of a cluster: a tree that divides nodes, then the GPUs of a node, into equal parts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, order=True)
class Mesh:
    """Neighbouring GPUs: whole nodes, or an aligned part of one."""

    first: int
    gpus: int

    @property
    def end(self) -> int:
        return self.first + self.gpus

    def overlaps(self, other: Mesh) -> bool:
        return self.first < other.end and other.first < self.end


def sub_meshes(whole: Mesh, gpus_per_node: int) -> tuple[Mesh, ...]:
    """All meshes of the tree below `whole`, the largest first."""
    level, meshes = [whole], list[Mesh]()
    while level:
        meshes += level
        nodes, gpus = divmod(level[0].gpus, gpus_per_node)[0], level[0].gpus
        parts = _smallest_factor(nodes if nodes > 1 else gpus)
        if parts == 1:
            break
        level = [Mesh(mesh.first + i * gpus // parts, gpus // parts) for mesh in level for i in range(parts)]
    return tuple(meshes)


def _smallest_factor(number: int) -> int:
    return next((n for n in range(2, number + 1) if number % n == 0), 1)


def joint_gpus(sizes: Sequence[int], one: Mesh, other: Mesh) -> int:
    """GPUs of the smallest mesh of the tree that contains both. sizes: of its meshes, rising."""
    first, last = min(one.first, other.first), max(one.end, other.end) - 1
    return next((size for size in sizes if first // size == last // size), last + 1)


def distinct(meshes: Sequence[Mesh], sizes: Sequence[int], placed: Iterable[Mesh]) -> list[Mesh]:
    """One of every kind that differs in size or in where it lies to the placed meshes. Exchanging equal parts of the
    tree that hold no placed mesh changes no size and no overlap, so that others of its kind give equal steps."""
    there = sorted(set(placed))
    kinds = {(mesh.gpus, *(joint_gpus(sizes, mesh, other) for other in there)): mesh for mesh in reversed(meshes)}
    return sorted(kinds.values(), key=lambda mesh: (-mesh.gpus, mesh.first))
