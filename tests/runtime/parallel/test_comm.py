"""Collectives over gloo leave nothing behind: when one has ended, nobody but its caller holds its tensors, so that the
peak of a rank does not depend on when gloo's own thread gets to run."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist
from meshwright.runtime.parallel.comm import Group
from meshwright.runtime.rehearsal.memory import PeakMemory
from meshwright.runtime.status import Status
from torch import Tensor

from ..fork import fork

LENGTH, TIMES = 20_000, 200
HALVES = [LENGTH // 2] * 2
Call = Callable[[Group, Tensor, Tensor], Tensor]

CALLS: dict[str, Call] = {
    "all_reduce": lambda group, whole, part: group.all_reduce(whole),
    "all_gather": lambda group, whole, part: group.all_gather(whole, part),
    "reduce_scatter": lambda group, whole, part: group.reduce_scatter(part, whole),
    "all_to_all": lambda group, whole, part: group.all_to_all(torch.empty_like(whole), whole, HALVES, HALVES),
}


@pytest.mark.parametrize("name", CALLS)
def test_its_tensors_are_let_go_of(name: str) -> None:
    def one(rank: int) -> int:
        group = Group("dp", range(2), rank, dist.group.WORLD, Status())
        late = 0
        for _ in range(TIMES):
            whole, part = torch.ones(LENGTH), torch.ones(LENGTH // 2)
            before = holders(whole), holders(part)
            CALLS[name](group, whole, part)
            late += (holders(whole), holders(part)) != before
        return late

    assert fork(2, one) == [0, 0]


def holders(tensor: Tensor) -> tuple[int, int]:
    """References to a tensor and to its storage."""
    of_tensor: int = tensor._use_count()  # type: ignore[attr-defined]
    return of_tensor, torch._C._storage_Use_Count(tensor.untyped_storage()._cdata)


def test_what_the_back_end_makes_for_itself_is_not_the_ranks() -> None:
    """gloo sums a copy of what is scattered, and shows it when it divides it."""

    def one(rank: int) -> int:
        group, whole, part = Group("dp", range(2), rank, dist.group.WORLD, Status()), torch.ones(8), torch.ones(4)
        with (memory := PeakMemory([whole, part])).following():
            group.reduce_scatter(part, whole)
        return memory.peak

    assert fork(2, one) == [48, 48]
