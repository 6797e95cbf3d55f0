"""Tables by recomputation, grown as batches ask for more.

A search comes back hundreds of times to the tables of the same shard keys, each time with tens of recomputations. Their
rows are worked out once, and lie one behind the other, so that a batch takes its own by one look-up.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from weakref import WeakMethod

import numpy as np

from ..arrays import Array, Ints
from ..layouts import RECOMPUTE_MODES

Code = tuple[int, int]  # (recompute mode, modules)
RowsOf = Callable[[Sequence[Code]], Array]  # [kind, code, key] of these recomputations


@dataclass(eq=False)
class ByCode:
    """A quantity of every kind and shard key under every recomputation that was asked for so far."""

    rows_of: RowsOf
    _place: dict[Code, int] = field(default_factory=dict)
    _rows: Array | None = None  # [kind, code, key] of all that have a place

    def look_up(self, kinds: Sequence[int], codes: Sequence[Code], code: Ints, key: Ints) -> dict[int, Array]:
        """Kind -> [n] of rows whose recomputation is `codes[code]` and whose shard key is `key`."""
        rows = self._known(codes)
        place = np.array([self._place[known] for known in codes])[code] * rows.shape[2] + key
        return {kind: rows[kind].ravel()[place] for kind in kinds}

    def _known(self, codes: Sequence[Code]) -> Array:
        if new := [code for code in codes if code not in self._place]:
            more = self.rows_of(new)
            self._rows = more if self._rows is None else np.concatenate([self._rows, more], axis=1)
            self._place |= {code: len(self._place) + i for i, code in enumerate(new)}
        if self._rows is None:
            raise ValueError("a batch has at least one recomputation")
        return self._rows


def of_owner(method: RowsOf, *part: int) -> ByCode:
    """Rows from a method of the object that keeps them, or one part of its result. It does not keep the object alive:
    with a cycle, tables of hundreds of megabytes would stay until the garbage collector comes by."""
    known = WeakMethod(method)

    def rows_of(codes: Sequence[Code]) -> Array:
        alive = known()
        if alive is None:
            raise ReferenceError("the tables of this quantity are gone")
        return np.asarray(alive(codes)[part])

    return ByCode(rows_of)


def under_no_recompute(tags: Sequence[int], codes: Sequence[Code]) -> Array:
    """[code, tag] 1 where the selective recomputation of a code has none of the tag's modules, else 0."""
    modules = np.array([modules if RECOMPUTE_MODES[mode] == "selective" else 0 for mode, modules in codes])
    return np.asarray(np.array(tags, dtype=np.int64) & modules[:, None] == 0, dtype=np.float64)
