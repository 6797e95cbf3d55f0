"""The start of a search: the legal meshes, their bounds, and the number of layouts on each."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ...cost_models.arrays import Array, Ints, Mask
from ..space.counting import LayoutCounts
from ..space.rules import Rule
from ..space.tree import Columns, select


@dataclass(frozen=True)
class Roots:
    """Some meshes of a search."""

    meshes: Columns
    signature: Ints  # [mesh] row in the layout counts
    weight: Ints  # [mesh] number of layouts on it
    seconds: Array  # [mesh] lower bound on seconds
    needed: Array  # [mesh] lower bound on bytes

    def of(self, rows: Ints | Mask) -> Roots:
        """The roots in `rows`."""
        return Roots(select(self.meshes, rows), self.signature[rows], self.weight[rows], self.seconds[rows],
                     self.needed[rows])  # fmt: skip


@dataclass(frozen=True)
class Start:
    """The start of a search, which other searches of the same meshes may share."""

    counts: LayoutCounts
    seconds: Array  # [mesh] see Roots
    needed: Array  # [mesh] see Roots

    @property
    def roots(self) -> Roots:
        """All meshes."""
        counts = self.counts
        return Roots(counts.meshes, counts.signature, counts.weight, self.seconds, self.needed)

    def of(self, rows: Mask) -> Start:
        """The start from some of the meshes."""
        counts, (distinct, signature) = self.counts, self.counts.signatures
        some = replace(counts, meshes=select(counts.meshes, rows), known_signature=(distinct, signature[rows]))
        return Start(some, self.seconds[rows], self.needed[rows])

    def under(self, rules: tuple[Rule, ...]) -> Start:
        """The same meshes with fewer layouts, under more rules.

        These rules read no field of a mesh and no set of recomputed modules, so bounds and dominance do not change.
        """
        counts = self.counts
        space = replace(counts.space, rules=(*counts.space.rules, *rules))
        return replace(self, counts=replace(counts, space=space, known_signature=counts.signatures))

