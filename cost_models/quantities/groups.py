"""Data-parallel groups of ranks, and neighbours inside them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ..arrays import Ints

if TYPE_CHECKING:
    pass


@dataclass(frozen=True)
class Groups:
    """Data-parallel groups of each layout, of dense parameters or of experts."""

    shard: Ints  # [n] ranks that share one copy
    shard_stride: Ints  # [n] distance between them in ranks
    replicate: Ints  # [n] copies
    replicate_stride: Ints  # [n] distance between them in ranks

    def of_rows(self, rows: Ints) -> Groups:
        """The groups of some layouts."""
        return Groups(*(column[rows] for column in (self.shard, self.shard_stride, self.replicate,
                                                    self.replicate_stride)))  # fmt: skip

    def within(self, reach: int | None, per_node: int) -> Ints:
        """[n] ranks of a shard group that share a state: `reach` neighbours (exchanges.py), or all."""
        return self.shard if reach is None else neighbours(reach, self.shard, self.shard_stride, per_node)

    @classmethod
    def dense(cls, x: Mapping[str, Ints]) -> Groups:
        """shard x cp ranks share the states of a rank's dense parameters, dp/shard such groups hold copies."""
        sharded = x["zero"] > 0
        shard = np.where(sharded, x["shard"] * x["cp"], 1)
        return cls(shard, x["tp"], x["dp"] * x["cp"] // shard, np.where(sharded, x["tp"] * shard, x["tp"]))

    @classmethod
    def experts(cls, x: Mapping[str, Ints]) -> Groups:
        """Folded: tp x cp x dp = etp x ep x edp; the shard group is shard x cp x tp / (ep x etp) of the edp ranks."""
        folded, sharded = x["ep"] * x["etp"], x["zero"] > 0
        shard = np.where(sharded, np.maximum(x["shard"] * x["cp"] * x["tp"] // folded, 1), 1)
        total = np.maximum(x["dp"] * x["cp"] * x["tp"] // folded, 1)
        return cls(shard, folded, np.maximum(total // shard, 1), folded * shard)


def neighbours(reach: int, shard: Ints, stride: Ints, per_node: int) -> Ints:
    """[n] ranks next to one another that a shard group divides into: `reach` of them (0: those of a node), or the
    largest number below that divides both."""
    wanted = np.maximum(per_node // stride, 1) if reach == 0 else np.full_like(shard, reach)
    return np.asarray(np.gcd(shard, wanted))
