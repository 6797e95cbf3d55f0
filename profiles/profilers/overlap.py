"""How much computing and communicating slow each other down when they run side by side, on all ranks at once."""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass

import torch
import torch.distributed as dist

from .environment import CLOCK_PERIODS, quota

ROUNDS = 5
MESSAGE_BYTES = {"cuda": 4 << 20, "cpu": 1 << 18}  # of a GPU's links more than their latency; of a host's a layer
_ROWS = 192  # of the product beside it: a fraction of a millisecond of one core
_LEAST_S = 0.02  # of a round where no quota asks for more


@dataclass(frozen=True)
class Overlap:
    """How much longer a product and an all-reduce take while both run; 1: no longer."""

    compute: float  # time factor of the product
    communication: float  # time factor of the all-reduce

    @property
    def contention(self) -> float:
        """Seconds of computing lost per second that the communication takes alone: it takes `communication` times as
        long, in which 1 - 1/compute of the work is left undone. 1: nothing is gained by running both at once."""
        return min(max(self.communication * (1.0 - 1.0 / self.compute), 0.0), 1.0)


def measure(device: torch.device) -> Overlap:
    """The medians of all rounds. Every rank of the process group must call it."""
    limit = quota()
    least_s = max(CLOCK_PERIODS * limit.period_s if limit else 0.0, _LEAST_S)
    x = torch.randn(_ROWS, _ROWS, device=device)
    message = torch.zeros(MESSAGE_BYTES[device.type] // 4, device=device)
    _communicated(message, 1)
    calls = _agreed(max(round(least_s / _communicated(message, 1)), 1))
    alone_rates, sent_s = [], []  # each by itself
    beside_rates, lasted_s = [], []  # both at once
    for _ in range(ROUNDS):
        dist.barrier()
        alone_rates.append(_computed(x, least_s))
        dist.barrier()
        sent_s.append(_communicated(message, calls))
        dist.barrier()
        rate, seconds = _both(x, message, calls)
        beside_rates.append(rate)
        lasted_s.append(seconds)
    compute = statistics.median(alone_rates) / statistics.median(beside_rates)
    return Overlap(max(compute, 1.0), max(statistics.median(lasted_s) / statistics.median(sent_s), 1.0))


def _agreed(calls: int) -> int:
    """The most that any rank wants."""
    most = torch.tensor([calls])
    dist.all_reduce(most, op=dist.ReduceOp.MAX)
    return int(most)


def _computed(x: torch.Tensor, least_s: float) -> float:
    """Products per second."""
    started, done = time.perf_counter(), 0
    while time.perf_counter() - started < least_s:
        torch.mm(x, x)
        done += 1
    return done / (time.perf_counter() - started)


def _communicated(message: torch.Tensor, calls: int) -> float:
    started = time.perf_counter()
    for _ in range(calls):
        dist.all_reduce(message)
    return time.perf_counter() - started


def _both(x: torch.Tensor, message: torch.Tensor, calls: int) -> tuple[float, float]:
    """Products per second while `calls` all-reduces run one after the other, and how long these take."""
    started, done = time.perf_counter(), 0
    for _ in range(calls):
        work = dist.all_reduce(message, async_op=True)
        while work is not None and not work.is_completed():
            torch.mm(x, x)
            done += 1
    seconds = time.perf_counter() - started
    return done / seconds, seconds
