"""Times messages and collectives between the ranks of a torch.distributed job (listed by link_tests.py).

Every rank runs every test: those that do not take part wait, so that nothing else is on the wires. A message is
answered by one byte, and timed from its start to the answer, by the clock of the rank that sends. Ranks under a CPU
quota compute before every collective, as they do when they train: it takes CPU time, of which idle ranks have plenty,
and waits for the rank that was held last.
"""

from __future__ import annotations

import math
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial

import torch
import torch.distributed as dist

from ..cluster.link_tests import Ranks, Test, sizes
from .environment import CLOCK_PERIODS, SAMPLE_PERIODS, Quota, device_name, quota
from .samples import Samples

MOST_CALLS = 100
_ROWS = 64  # of a product of some microseconds
_CLOCK_S = 1e-6  # no call takes less; the difference of two clocks may be smaller, even negative
# torch 2.13 gave the two new names; 2.6 has only the old ones.
_ALL_GATHER = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_REDUCE_SCATTER = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


@dataclass(frozen=True)
class Effort:
    """The duration of link timings."""

    repeats: int  # of every size
    seconds: float  # a larger size is left out once one call took this long


FULL, QUICK = Effort(9, 0.5), Effort(3, 0.05)
Progress = Callable[[float, float, str], None]


class LostRank(RuntimeError):
    """A rank did not answer in a test; the message names the test."""


@dataclass(frozen=True)
class Job:
    """This process's place in the job."""

    rank: int  # of this process
    ranks: Ranks  # all of them, by node
    device: torch.device  # of this rank
    groups: dict[tuple[int, ...], dist.ProcessGroup | None]  # process groups made so far; None: the group of all ranks


def backend(device: torch.device) -> str:
    return "nccl" if device.type == "cuda" else "gloo"


def join(rank: int, per_node: int, device: torch.device, timeout_s: float) -> Job:
    """Meets the other ranks, by torchrun's variables; ranks of one node have consecutive numbers."""
    dist.init_process_group(backend(device), timeout=timedelta(seconds=timeout_s))
    names: list[tuple[str, str]] = [("", "")] * dist.get_world_size()
    dist.all_gather_object(names, (socket.gethostname(), device_name(device)))
    hosts, devices = zip(*names[::per_node], strict=True)
    several = devices if len(set(devices)) > 1 else ()
    return Job(rank, Ranks(_unique(hosts), per_node, several), device, {})


def _unique(names: Sequence[str]) -> tuple[str, ...]:
    """Names of hosts; where several have one name (containers, namespaces), with their numbers."""
    twice = {name for name in names if names.count(name) > 1}
    return tuple(f"{name}-{i}" if name in twice else name for i, name in enumerate(names))


def measure(
    job: Job, wanted: Sequence[Test], limit: int, effort: Effort, samples: Samples | None, progress: Progress | None
) -> None:
    """Times the tests, into the `samples` of rank 0 (None on the others), but for those that are there already.

    limit: bytes of the largest message. Raises LostRank where a rank does not answer.
    """
    saved = [sorted(samples.by_key) if samples is not None else []]
    dist.broadcast_object_list(saved, src=0)
    present = set(saved[0])
    for done, test in enumerate(wanted):
        if progress is not None:
            progress(done, len(wanted), test.name)
        try:
            for num_bytes in sizes(limit):
                keys = test.keys(num_bytes)
                if present.issuperset(keys):
                    continue
                rows = _time(job, test, num_bytes, effort.repeats)
                if samples is not None:
                    for key, row in zip(keys, rows, strict=True):
                        samples.add(key, row)
                if min(map(min, rows)) > effort.seconds:
                    break
        except RuntimeError as error:
            raise LostRank(f"{test.name} over ranks {_listed(test)}: {str(error).splitlines()[0]}") from error


def _listed(test: Test) -> str:
    members = sorted({rank for group in test.groups for rank in group})
    return ", ".join(map(str, members[:8])) + (" ..." if len(members) > 8 else "")


def _time(job: Job, test: Test, num_bytes: int, repeats: int) -> list[list[float]]:
    """Seconds of one call in every repeat, for each of the test's rows; the same on every rank. A rank under a quota,
    which is held for a part of every period, is timed over several of them."""
    rows = torch.zeros(len(test.rows), 1 + repeats, dtype=torch.float64)
    limit = quota() if job.device.type == "cpu" else None
    before = partial(_compute, limit) if limit is not None and test.kind != "pair" else None
    actions = list(_actions(job, test, num_bytes))
    calls, once_s = 1, 0.0
    for turn in range(1 + repeats):  # the first one warms up
        dist.barrier()
        for row, action in actions:
            seconds, computing = _repeat(action, before, calls)
            once_s = max(once_s, (seconds + computing) / calls)
            if row is not None:
                rows[row, turn] = max(seconds / calls, _CLOCK_S)
        if turn == 0 and limit is not None:
            calls = _most(_calls(once_s, limit, computes=before is not None), job.device)
    rows = rows[:, 1:].contiguous().to(job.device)
    dist.all_reduce(rows, op=dist.ReduceOp.MAX)
    return [[float(value) for value in row] for row in rows.cpu().tolist()]


def _repeat(action: Callable[[], None], before: Callable[[], float] | None, calls: int) -> tuple[float, float]:
    """Seconds of `calls` calls together, and of what is computed before each of them."""
    started, computed_s = time.perf_counter(), 0.0
    for _ in range(calls):
        if before is not None:
            computed_s += before()
        action()
    return time.perf_counter() - started - computed_s, computed_s


def _compute(limit: Quota) -> float:
    """Uses up what a period of the quota allows: the seconds that this takes, however it falls into periods."""
    x, started = torch.ones(_ROWS, _ROWS), time.thread_time()
    while (spent := time.thread_time() - started) < limit.cores * limit.period_s:
        torch.mm(x, x)
    return spent / limit.cores


def _calls(once_s: float, limit: Quota, *, computes: bool) -> int:
    """Calls of a repeat, of which one takes `once_s`: they span SAMPLE_PERIODS, or CLOCK_PERIODS where what is computed
    has to be taken off."""
    wanted = (CLOCK_PERIODS if computes else SAMPLE_PERIODS) * limit.period_s / once_s if once_s else 1.0
    return min(max(math.ceil(wanted), 1), MOST_CALLS)


def _most(calls: int, device: torch.device) -> int:
    """The most that any rank asks for."""
    wanted = torch.tensor([calls], device=device)
    dist.all_reduce(wanted, op=dist.ReduceOp.MAX)
    return int(wanted)


def _actions(job: Job, test: Test, num_bytes: int) -> Iterator[tuple[int | None, Callable[[], None]]]:
    """The actions of this rank in one repeat, each with the row that its time goes into (None: timed elsewhere)."""
    mine = [(i, group) for i, group in enumerate(test.groups) if job.rank in group]
    if test.kind != "pair":
        handles = [_handle(job, group) for group in test.groups]  # every rank makes all groups, in one order
        for i, group in mine:
            yield test.row(i), _collective(job, test.kind, num_bytes, len(group), handles[i])
        return
    sends, receives = ([(i, group[1 - end]) for i, group in mine if group[end] == job.rank] for end in (0, 1))
    if sends or receives:
        row = test.row(sends[0][0]) if sends else None
        yield row, _messages(job, num_bytes, [to for _, to in sends], [source for _, source in receives])


def _handle(job: Job, group: tuple[int, ...]) -> dist.ProcessGroup | None:
    if group not in job.groups:
        whole = len(group) == job.ranks.size
        job.groups[group] = None if whole else dist.new_group(list(group))
    return job.groups[group]


def _messages(job: Job, num_bytes: int, to: Sequence[int], sources: Sequence[int]) -> Callable[[], None]:
    """Sends to `to`, takes from `sources` and answers, and waits for the answers."""
    out = [torch.ones(num_bytes, dtype=torch.uint8, device=job.device) for _ in to]
    into = [torch.empty(num_bytes, dtype=torch.uint8, device=job.device) for _ in sources]
    answers = [torch.empty(1, dtype=torch.uint8, device=job.device) for _ in to]

    def action() -> None:
        works = [dist.isend(tensor, rank, tag=1) for tensor, rank in zip(out, to, strict=True)]
        works += [dist.irecv(tensor, rank, tag=2) for tensor, rank in zip(answers, to, strict=True)]
        for tensor, rank in zip(into, sources, strict=True):
            dist.recv(tensor, rank, tag=1)
            works.append(dist.isend(tensor[:1], rank, tag=2))
        for work in works:
            if work is not None:
                work.wait()
        _settle(job)

    return action


def _collective(
    job: Job, op: str, num_bytes: int, size: int, handle: dist.ProcessGroup | None
) -> Callable[[], None]:
    """One collective. num_bytes: of the whole tensor, or of one rank's buffer in an all-to-all, as in
    cost_models/rates/collectives.py; rounded up to a share for every rank."""
    share = -(-num_bytes // (4 * size))
    whole = torch.ones(share * size, dtype=torch.float32, device=job.device)
    part = torch.ones(share, dtype=torch.float32, device=job.device)
    other = torch.empty_like(whole)
    run: dict[str, Callable[[], object]] = {
        "all_reduce": lambda: dist.all_reduce(whole, group=handle),
        "all_gather": lambda: _ALL_GATHER(whole, part, group=handle),
        "reduce_scatter": lambda: _REDUCE_SCATTER(part, whole, group=handle),
        "all_to_all": lambda: dist.all_to_all_single(other, whole, group=handle),
    }

    def action() -> None:
        run[op]()
        _settle(job)

    return action


def _settle(job: Job) -> None:
    if job.device.type == "cuda":
        torch.cuda.synchronize(job.device)
