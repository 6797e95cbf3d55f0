"""A share of a core for every rank, of which it loses what it does not use, as a GPU does.

The kernel looks at a quota when it next has reason to: every 4 ms at HZ=250, so that a rank could compute 4 ms at the
full speed of the core and pay by waiting 16. A ticker per core (`tickers.py`) gives it reason every millisecond. All
groups are below one whose weight is the highest there is: what else runs on this machine gets what quotas leave.

A device has one speed, and a core that is shared with unseen machines has not: the CPU seconds of one and the same
micro-batch drift by a third within minutes. So quotas follow the core, which the tickers time: a rank gets its whole
share where a probe takes WHOLE_AT times as long as at first, and less of a faster core.
"""

from __future__ import annotations

import ctypes
import mmap
import multiprocessing
import os
import platform
import signal
import struct
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.synchronize import Lock
from pathlib import Path
from typing import Any

import numpy as np

MOST_OF_A_CORE = 0.85  # the quotas on a core, added up: the rest is for the kernel and the shapers
LEAST_QUOTA_S = 0.001  # the kernel takes none below it
PERIOD_STEP = 0.03  # of the shortest period: the difference between the periods of two ranks
# Times the seconds of a probe at first: what it takes on a core whose ranks get their whole shares. Assumed: so much a
# core may slow down and its ranks keep their speed (over 2 s probes deviate by 5 %); the more, the slower all of them.
WHOLE_AT = 1.15
LEAST_CHANGE = 0.01  # of a period: less is not written, since the kernel grants a new quota whenever one is
TURN_S = 0.0001  # the shortest that the kernel takes
_ROOT = Path("/sys/fs/cgroup")
_WEIGHTS = {1: ("cpu.shares", "262144"), 2: ("cpu.weight", "10000")}  # by version: the highest
_SCHED_SETATTR = {"x86_64": 314, "aarch64": 274}  # numbers of the system call


def cpu_controller() -> tuple[Path, int] | None:
    """The folder in which groups with CPU quotas can be made, and its version of control groups."""
    first = _ROOT / "cpu"
    if (first / "cpu.cfs_quota_us").exists() and os.access(first, os.W_OK):
        return first, 1
    control = _ROOT / "cgroup.subtree_control"
    if control.exists() and "cpu" in control.read_text().split() and os.access(control, os.W_OK):
        return _ROOT, 2
    return None


def cores_of(shares: Sequence[float], cores: Sequence[int]) -> tuple[int, ...] | str:
    """A core for every rank, the largest shares first, each to the core with the most left; or why they do not fit."""
    total, most = sum(shares), MOST_OF_A_CORE * len(cores)
    remaining = dict.fromkeys(cores, MOST_OF_A_CORE)
    core_of = dict[int, int]()
    for rank in sorted(range(len(shares)), key=lambda rank: (-shares[rank], rank)):
        core_of[rank] = max(remaining, key=lambda core: (round(remaining[core], 9), -core))
        remaining[core_of[rank]] -= shares[rank]
    if min(remaining.values()) < -1e-9:
        return (f"quotas of {total:g} cores in all do not fit: {MOST_OF_A_CORE:.0%} of {len(cores)} cores are "
                f"{most:g}, and the fullest core would have {MOST_OF_A_CORE - min(remaining.values()):g}")  # fmt: skip
    return tuple(core_of[rank] for rank in range(len(shares)))


def periods_s(shares: Sequence[float]) -> tuple[float, ...]:
    """The period of every rank's quota.

    The first is the shortest in which every quota is one that the kernel accepts: the shorter the period, the less
    quota a rank can save up. Each rank has a longer one than the rank before, because equal periods would keep their
    initial phase offset for the whole run, and the ranks' waits for each other would depend on it.
    """
    shortest = LEAST_QUOTA_S / min(shares)
    return tuple(shortest * (1.0 + PERIOD_STEP * rank) for rank in range(len(shares)))


class _Shared:
    """What the processes of an emulation know of its quotas, in memory that they share."""

    def __init__(self, num_ranks: int) -> None:
        numbers: Any = np.frombuffer(mmap.mmap(-1, 8 * (2 + num_ranks)), np.float64)
        # Whether they hold, and the seconds of a probe on a core whose ranks get their whole shares (0: quotas do
        # not follow the cores).
        self.terms = numbers[:2]
        # [ranks] the part of its share that each rank gets.
        self.parts = numbers[2:]
        self.parts[:] = 1.0


@dataclass(frozen=True)
class Quotas:
    """The control groups of a cluster's ranks, below a group for the cluster."""

    # The group of the cluster.
    folder: Path
    # Of control groups, 1 or 2.
    version: int
    # [ranks] share of a core of each rank, at the most.
    shares: tuple[float, ...]
    _shared: _Shared
    # Whoever writes quotas holds it.
    _lock: Lock = field(default_factory=multiprocessing.Lock)

    @classmethod
    def make(cls, mark: str, shares: Sequence[float]) -> Quotas:
        """Makes the groups, with their quotas."""
        where = cpu_controller()
        if where is None:
            raise OSError(f"no `cpu` controller under {_ROOT}")
        made = cls(where[0] / mark, where[1], tuple(shares), _Shared(len(shares)))
        made.folder.mkdir()
        name, value = _WEIGHTS[made.version]
        (made.folder / name).write_text(value)
        if made.version == 2:
            (made.folder / "cgroup.subtree_control").write_text("+cpu")
        for rank in range(len(shares)):
            made._group(rank).mkdir()
        made.limit()
        return made

    def _group(self, rank: int) -> Path:
        return self.folder / f"rank{rank}"

    def join(self, rank: int) -> None:
        """Puts this process into the group of that rank."""
        (self._group(rank) / "cgroup.procs").write_text(str(os.getpid()))

    def limit(self) -> None:
        """The quotas hold."""
        self._hold(True)

    def lift(self) -> None:
        """Every rank as fast as it can: for what is no part of a measurement."""
        self._hold(False)

    def start_following(self, probe_s: float) -> None:
        """Quotas follow the cores from now on. probe_s: seconds of the tickers' probe while all ranks compute."""
        self._shared.terms[1] = WHOLE_AT * probe_s

    def follow(self, ranks: Sequence[int], probe_s: float) -> None:
        """Gives the ranks of one core as much of it as keeps their speed. probe_s: seconds of a probe on it."""
        with self._lock:
            holds, whole_at_s = self._shared.terms
            if not (holds and whole_at_s):
                return
            part = min(probe_s / whole_at_s, 1.0)
            for rank in ranks:
                if abs(part / self._shared.parts[rank] - 1.0) > LEAST_CHANGE:
                    self._shared.parts[rank] = part
                    self._write(rank)

    def share(self, rank: int) -> float:
        """The share of its core that a rank gets now."""
        return float(self.shares[rank] * self._shared.parts[rank])

    def _hold(self, holds: bool) -> None:
        with self._lock:
            self._shared.terms[0] = holds
            for rank in range(len(self.shares)):
                self._write(rank)

    def _write(self, rank: int) -> None:
        """A rank that gets a part of its share has its whole quota in a longer period."""
        period = periods_s(self.shares)[rank]
        period_us = round(period / self._shared.parts[rank] * 1e6)
        quota_us = round(self.shares[rank] * period * 1e6) if self._shared.terms[0] else None
        group = self._group(rank)
        if self.version == 2:
            (group / "cpu.max").write_text(f"{quota_us or 'max'} {period_us}")
            return
        (group / "cpu.cfs_period_us").write_text(str(period_us))
        (group / "cpu.cfs_quota_us").write_text(str(quota_us or -1))

    @classmethod
    def end(cls, mark: str) -> None:
        """Kills whatever is in the groups with this mark, and removes them."""
        if (where := cpu_controller()) is None or not (folder := where[0] / mark).is_dir():
            return
        for group in [*(group for group in folder.iterdir() if group.is_dir()), folder]:
            for _ in range(100):
                _kill_all(group)
                with suppress(OSError):
                    group.rmdir()
                    break
                time.sleep(0.02)


def in_short_turns(policy: int = os.SCHED_OTHER) -> None:
    """This process, and what it starts, asks for turns on its core of TURN_S and no longer (sched_setattr(2), which
    takes a slice for ordinary processes since Linux 6.12; before, it stays as it is). Ranks of one core then go on side
    by side, each at its share of the speed, and one that gets a message need not wait until another has used up its
    quota. policy: of the scheduler."""
    os.sched_setscheduler(0, policy, os.sched_param(0))
    if number := _SCHED_SETATTR.get(platform.machine()):
        attributes = struct.pack("IIQiIQQQ", 48, policy, 0, 0, 0, round(TURN_S * 1e9), 0, 0)
        ctypes.CDLL(None).syscall(number, 0, attributes, 0)


def _kill_all(group: Path) -> None:
    for pid in (group / "cgroup.procs").read_text().split():
        with suppress(ProcessLookupError):
            os.kill(int(pid), signal.SIGKILL)
