"""Sub-meshes of a cluster: a tree that divides nodes, then the GPUs of a node, into equal parts."""

from __future__ import annotations

from collections.abc import Sequence
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


def joint(meshes: Sequence[Mesh], one: Mesh, other: Mesh) -> Mesh:
    """The smallest of the meshes that contains both."""
    return min((mesh for mesh in meshes if mesh.first <= min(one.first, other.first)
                and mesh.end >= max(one.end, other.end)), key=lambda mesh: mesh.gpus)  # fmt: skip


def distinct(meshes: Sequence[Mesh], placed: Sequence[Mesh]) -> list[Mesh]:
    """One of every kind that differs in size or in where it lies to the placed meshes. Exchanging equal parts of the
    tree that hold no placed mesh changes no size and no overlap, so that others of its kind give equal steps."""
    kinds = {(mesh.gpus, *(joint(meshes, mesh, other).gpus for other in placed)): mesh for mesh in reversed(meshes)}
    return sorted(kinds.values(), key=lambda mesh: (-mesh.gpus, mesh.first))
