"""The bytes that replicas exchange by the planner's ledger. No torch here."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate

from ...cost_models.quantities.exchanges import Op
from ...cost_models.quantities.ledger import Ledger
from ...cost_models.quantities.traffic import StateTraffic
from ..job import Job
from .pricing import ledger_of


def planned_bytes(job: Job, done: int = 0) -> list[float]:
    """Bytes that a rank of each stage sends its copies in the steps after the first `done`, by ring algorithms."""
    ledger = ledger_of(job)
    phases = [(traffic, count(job.steps) - count(done)) for traffic, count in _phases(job, ledger)]
    return [sum(number * _sent(ledger, stage, traffic) for traffic, number in phases) for stage in range(job.layout.pp)]


class _Exchanges:
    """The exchanges of a phase of training."""

    def __init__(self, traffic: StateTraffic, begin: int, end: int) -> None:
        self.traffic, self.begin, self.end = traffic, begin, end

    def __call__(self, steps: int) -> float:
        """Their number in the first `steps` steps of the run; fragments count as parts of one."""
        inside = min(max(steps, self.begin), self.end) - self.begin
        return (inside * self.traffic.fragments // self.traffic.period) / self.traffic.fragments


def _phases(job: Job, ledger: Ledger) -> Iterator[tuple[StateTraffic, _Exchanges]]:
    ends = [round(share * job.steps) for share in accumulate(traffic.share for traffic in ledger.traffic)]
    for traffic, begin, end in zip(ledger.traffic, [0, *ends], ends, strict=False):
        yield traffic, _Exchanges(traffic, begin, end)


def _sent(ledger: Ledger, stage: int, traffic: StateTraffic) -> float:
    """Bytes that a rank of a stage sends in one exchange of all its parameters."""
    total = 0.0
    for trained, groups in zip(ledger.trained[stage], (ledger.dense_groups, ledger.expert_groups), strict=True):
        copies = int(groups.replicate[0])
        part = float((trained * traffic.replicated / groups.shard).item())
        total += part * _ring(traffic.among_copies, copies)
    return total


def _ring(op: Op, copies: int) -> float:
    """The bytes that a rank sends, over those that it has."""
    return {"all_reduce": 2 * (copies - 1) / copies, "all_gather": copies - 1.0, "p2p": float(copies > 1)}[op]
