"""A batch packed into micro-batches of given seconds: the feasibility half of a search over those seconds.

The longest sequence comes first. In a micro-batch of C seconds it needs a group of the least degree that holds it and
trains it within C. Candidates are the groups that have the seconds and the tokens left, and new ones on free ranks. It
takes the candidate in which it uses the fewest rank-seconds d t(s, d).

Where the groups of each micro-batch are given, no other ones are formed. A sequence then takes, of the groups in which
it uses about the fewest rank-seconds, the one with the largest share of its seconds or its tokens left, whichever is
less: groups fill alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ...cost_models.arrays import Array, Ints
from .batch_plan import Group
from .costs import GroupCosts

Shape = tuple[tuple[int, ...], ...]  # [micro-batch][degree] groups
_AS_GOOD = 1.0001  # rank-seconds that count as equal
_ALIKE = 1.02  # the same, where groups are given
_NEW = 1.1  # a new group must save a tenth of the rank-seconds: it takes ranks for the whole micro-batch


@dataclass(frozen=True, eq=False)
class Batch:
    """A batch, the longest sequence first, with what it costs."""

    lengths: Array  # [k] tokens
    seconds: Array  # [k, D] on each degree
    costs: GroupCosts


class _Packer:
    """Groups of micro-batches, as they fill."""

    def __init__(self, batch: Batch, limits: Array, shape: Shape | None) -> None:
        most = int(batch.costs.num_ranks // batch.costs.degrees[0]) * len(limits)
        self.batch, self.limits, self.num = batch, limits, 0
        self.free = [batch.costs.num_ranks] * len(limits)
        self.column, self.part = np.zeros(most, dtype=np.int64), np.zeros(most, dtype=np.int64)
        self.seconds_left, self.tokens_left = np.zeros(most), np.zeros(most)
        self.degrees = np.zeros(most)
        self.seconds = np.zeros((len(batch.lengths), most))  # [k, group]
        self.contents: list[list[int]] = []
        # [k, micro-batch] the least degree that trains a sequence in time: its column, or their number for none.
        in_time = batch.seconds[:, None, :] <= limits[:, None]
        self.least = np.where(in_time.any(axis=2), in_time.argmax(axis=2), len(batch.costs.degrees))
        self.is_given = shape is not None
        for part, counts in enumerate(shape or ()):
            for column, count in enumerate(counts):
                for _ in range(count):
                    self._form(part, column)
            self.free[part] = 0

    def place(self, k: int) -> bool:
        """Put a sequence into a group; False where none has room and none can be formed."""
        used, at = self._old_group(k)
        part = self._new_group(k, used)
        if part is not None:
            at = self._form(part, int(self.least[k, part]))
        elif at is None:
            return False
        self.seconds_left[at] -= self.seconds[k, at]
        self.tokens_left[at] -= self.batch.lengths[k]
        self.contents[at].append(k)
        return True

    def _old_group(self, k: int) -> tuple[float, int | None]:
        """Rank-seconds and number of the best group."""
        seconds, left = self.seconds[k, : self.num], self.seconds_left[: self.num]
        fits = (left >= seconds) & (self.tokens_left[: self.num] >= self.batch.lengths[k])
        used = np.where(fits, seconds * self.degrees[: self.num], np.inf)
        least = float(used.min(initial=np.inf))
        if least == np.inf:
            return np.inf, None
        if self.is_given:
            near = np.flatnonzero(used <= least * _ALIKE)
            return least, int(near[self._emptiest(near)])
        return least, int(np.where(used <= least * _AS_GOOD, left - seconds, np.inf).argmin())

    def _emptiest(self, near: Ints) -> np.intp:
        """The group that has the largest share of its seconds or tokens left, whichever is less."""
        room = self.batch.costs.rank_tokens * self.degrees[near]
        seconds = self.seconds_left[near] / self.limits[self.part[near]]
        return np.argmax(np.minimum(seconds, self.tokens_left[near] / room))

    def _new_group(self, k: int, used: float) -> int | None:
        """The micro-batch in which a new group saves enough of the rank-seconds `used`."""
        best, degrees = None, self.batch.costs.degrees
        for part, column in enumerate(self.least[k].tolist()):
            if column < len(degrees) and degrees[column] <= self.free[part]:
                own = float(self.batch.seconds[k, column] * degrees[column] * _NEW)
                if own < used / _AS_GOOD:
                    best, used = part, own
        return best

    def _form(self, part: int, column: int) -> int:
        at, degree = self.num, int(self.batch.costs.degrees[column])
        self.column[at], self.part[at], self.degrees[at] = column, part, degree
        self.seconds[:, at] = self.batch.seconds[:, column]
        self.seconds_left[at] = self.limits[part]
        self.tokens_left[at] = self.batch.costs.rank_tokens * degree
        self.free[part] -= degree
        self.contents.append([])
        self.num += 1
        return at

    def micro_batches(self) -> list[list[Group]]:
        out: list[list[Group]] = [[] for _ in self.limits]
        for at, members in enumerate(self.contents):
            if not members:
                continue
            degree = int(self.batch.costs.degrees[self.column[at]])
            out[int(self.part[at])].append(Group(degree, tuple(members)))
        return out

    @property
    def makespans_s(self) -> Array:
        """[micro-batch] seconds of the slowest group."""
        out = np.zeros(len(self.limits))
        part: Ints = self.part[: self.num]
        np.maximum.at(out, part, self.limits[part] - self.seconds_left[: self.num])
        return out


def pack(
    batch: Batch, limits: Sequence[float] | Array, shape: Shape | None = None
) -> tuple[float, list[list[Group]]] | None:
    """Seconds of the micro-batches together, and their groups, which number sequences as `batch` has them; None where
    the rule does not fit the batch into micro-batches of `limits` seconds.

    shape: the groups of each micro-batch; None: they are formed as sequences need them.
    """
    packer = _Packer(batch, np.asarray(limits, dtype=np.float64), shape)
    if not all(packer.place(k) for k in range(len(batch.lengths))):
        return None
    return float(packer.makespans_s.sum()), packer.micro_batches()
