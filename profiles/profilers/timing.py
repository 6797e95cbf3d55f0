"""Seconds of one action on a device, as many samples as time allows.

On a GPU events are recorded around every call while the device is still held up by a wait: then the host has launched
all of them before the first one starts, and no launch shows between two kernels. Inputs rotate over as many sets as the
cache cannot hold, as those of a training step do.
"""

from __future__ import annotations

import math
import os
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from pathlib import Path

import torch

from ...errors import InputError
from .core_speed import Watch, calmest
from .environment import CLOCK_PERIODS, SAMPLE_PERIODS, quota

Device = torch.device
Action = Callable[[], object]
Make = Callable[[], Action]  # an action with inputs of its own

WARM_UP = 2
CACHE_TURNS = 4  # sets of inputs hold this many times the cache
MOST_SETS = 8
SHARE_SAMPLES = 9
_SLEEP_HZ = 2.0e9  # clock that the wait of a GPU counts in, or less


@dataclass(frozen=True)
class Pace:
    """How a CPU under a quota is timed: it runs for a part of every period and is throttled for the rest, so a sample
    spans several periods. A sample is its CPU time over the share of a core that the quota allows meanwhile: the
    wall-clock time, without the error of where in a period it happened to begin and end."""

    least_s: float  # seconds that a sample spans at least
    share: float  # of a core, that the quota allows at first
    achieved_share: float  # of a core, that it got: less than `share` where the machine has other work
    watch: Watch  # detects samples that another machine on the same core disturbed


@dataclass(frozen=True)
class Effort:
    """The duration of device timings."""

    samples: int  # of every kernel, at most
    seconds: float  # for the samples of one kernel, of which LEAST_SAMPLES are always taken; under a quota half count
    total_s: float  # for all kernels
    pace: Pace | None = None  # of a CPU under a quota


FULL, QUICK = Effort(30, 2.0, math.inf), Effort(7, 0.15, 100.0)
LEAST_SAMPLES = 3


class Clock:
    """Keeps a run within its time: guesses a kernel's seconds from the best rates seen so far."""

    def __init__(self, effort: Effort) -> None:
        self.effort, self.started = effort, time.monotonic()
        self.flops_per_s, self.bytes_per_s = 0.0, 0.0

    def learn(self, flops: float, num_bytes: float, seconds: float) -> None:
        """Note the seconds of a kernel."""
        self.flops_per_s = max(self.flops_per_s, flops / seconds)
        self.bytes_per_s = max(self.bytes_per_s, num_bytes / seconds)

    def refuses(self, flops: float, num_bytes: float) -> str | None:
        """Why a kernel is not timed any more, or None."""
        left_s = self.effort.total_s - (time.monotonic() - self.started)
        once_s = flops / self.flops_per_s if self.flops_per_s else 0.0
        once_s += num_bytes / self.bytes_per_s if self.bytes_per_s else 0.0
        if left_s > 0 and once_s * (WARM_UP + LEAST_SAMPLES) <= left_s:
            return None
        return f"{self.effort.total_s:.0f} s were up; without `--quick` it is timed"


def open_device(name: str) -> torch.device:
    """`auto`, `cuda` or `cpu`. Raises InputError where there is no such device."""
    if name == "cpu" or (name == "auto" and not torch.cuda.is_available()):
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise InputError("torch sees no CUDA GPU here", hint="`--device cpu`, or run it on the cluster")
    device = torch.device("cuda", torch.cuda.current_device())
    torch.cuda.set_device(device)
    return device


def as_a_rank() -> None:
    """Sets the number of threads to that of a rank of the runtime."""
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))


def sample(make: Make, num_bytes: float, device: torch.device, effort: Effort) -> list[float]:
    """Seconds of single calls. num_bytes: that one set of inputs takes, about."""
    actions = [make() for _ in range(sets(num_bytes, device))]
    started = time.perf_counter()
    for turn in range(WARM_UP):
        actions[turn % len(actions)]()
    _finish(device)
    once_s = (time.perf_counter() - started) / WARM_UP
    number = _number(effort, once_s)
    if device.type == "cuda":
        return _on_gpu(actions, number)
    return _on_cpu(actions, number) if effort.pace is None else _under_quota(actions, number, effort.pace)


def in_turns(actions: Sequence[Action], device: torch.device, effort: Effort) -> list[list[float]]:
    """Seconds of a call of each action, by rounds in which they run one after the other: between actions of one round
    the machine has hardly changed. On a GPU, which nobody else has, every action makes all of its calls at once."""
    started = time.perf_counter()
    for _ in range(WARM_UP):
        for action in actions:
            action()
    _finish(device)
    once_s = (time.perf_counter() - started) / WARM_UP / len(actions)
    number = _number(effort, once_s)
    if device.type == "cuda":
        return [list(times) for times in zip(*(_on_gpu([action], number) for action in actions), strict=True)]
    if effort.pace is None:
        return [[_on_cpu([action], 1)[0] for action in actions] for _ in range(number)]
    rounds = [[_one_under_quota([action], effort.pace) for action in actions] for _ in range(number)]
    counted = calmest(rounds, lambda times: statistics.fmean(slowness for slowness, _ in times))
    return [[seconds for _, seconds in times] for times in counted]


def _number(effort: Effort, once_s: float) -> int:
    """Samples of what takes `once_s`: under a quota as many whatever it takes, since all ranks take as many."""
    each_s = effort.pace.least_s if effort.pace is not None else once_s
    return min(effort.samples, max(int(effort.seconds / each_s), LEAST_SAMPLES))


def sets(num_bytes: float, device: torch.device) -> int:
    """Sets of inputs of `num_bytes` each that the action rotates over."""
    if device.type == "cuda":
        cache = torch.cuda.get_device_properties(device).L2_cache_size
    else:
        cache = max(os.sysconf("SC_LEVEL2_CACHE_SIZE"), 0) if "SC_LEVEL2_CACHE_SIZE" in os.sysconf_names else 0
    return int(min(max(-(-CACHE_TURNS * cache // max(num_bytes, 1.0)), 1), MOST_SETS))


def free_bytes(device: torch.device) -> float:
    """Bytes that new tensors may take."""
    if device.type == "cuda":
        return float(torch.cuda.mem_get_info(device)[0])
    info = Path("/proc/meminfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.is_file() else []
    return next((1024.0 * float(line.split()[1]) for line in lines if line.startswith("MemAvailable")), math.inf)


def _finish(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _on_cpu(actions: Sequence[Action], number: int) -> list[float]:
    samples = []
    for turn in range(number):
        started = time.perf_counter()
        actions[turn % len(actions)]()
        samples.append(time.perf_counter() - started)
    return samples


def _under_quota(actions: Sequence[Action], number: int, pace: Pace) -> list[float]:
    """The samples, out of `number`, during which the core was fastest. All ranks take as many, as each other's load."""
    samples = [_one_under_quota(actions, pace) for _ in range(number)]
    return [seconds for _, seconds in calmest(samples, itemgetter(0))]


def _one_under_quota(actions: Sequence[Action], pace: Pace) -> tuple[float, float]:
    """The slowdown of the core, and the seconds of a call."""
    before = len(pace.watch.took)
    calls, watching_s, shares = 0, 0.0, [share_of_a_core()]
    started, spent = time.perf_counter(), time.process_time()
    while not calls or time.perf_counter() - started < pace.least_s:  # it may be throttled before the first one
        actions[calls % len(actions)]()
        calls += 1
        watching_s += pace.watch.look()
    spent_s = time.process_time() - spent - watching_s
    shares.append(share_of_a_core())
    seconds = spent_s / calls / statistics.fmean(shares)
    return pace.watch.slowness(before), seconds


def paced(effort: Effort) -> Effort:
    """`effort` at the pace of the quota that this process is under; as it is where there is none, or where torch's
    threads share it (then a sample is a call on the wall clock)."""
    limit = quota()
    if limit is None or torch.get_num_threads() > 1:
        return effort
    watch = Watch()
    achieved = _achieved_share(limit.period_s, watch)
    return replace(effort, pace=Pace(SAMPLE_PERIODS * limit.period_s, share_of_a_core(), achieved, watch))


def share_of_a_core() -> float:
    """The part of a core that the quota allows now: it may follow the speed of the core."""
    limit = quota()
    return 1.0 if limit is None else min(limit.cores, 1.0)


def _achieved_share(period_s: float, watch: Watch) -> float:
    """CPU seconds per second of a rank that always computes: the median over stretches of periods."""
    x, shares = torch.randn(64, 64), []
    for _ in range(SHARE_SAMPLES):
        started, spent = time.perf_counter(), time.process_time()
        while time.perf_counter() - started < CLOCK_PERIODS * period_s:
            torch.mm(x, x)
            watch.look()
        shares.append((time.process_time() - spent) / (time.perf_counter() - started))
    return statistics.median(shares)


def _on_gpu(actions: Sequence[Action], number: int) -> list[float]:
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(2 * number)]  # type: ignore[no-untyped-call]
    started = time.perf_counter()
    actions[0]()
    launch_s = time.perf_counter() - started  # of the host alone: the call returns before the kernel ends
    torch.cuda.synchronize()
    torch.cuda._sleep(int(_SLEEP_HZ * 1.5 * (number + 1) * launch_s))  # type: ignore[no-untyped-call]
    for turn in range(number):
        marks[2 * turn].record()
        actions[turn % len(actions)]()
        marks[2 * turn + 1].record()
    torch.cuda.synchronize()
    return [1e-3 * first.elapsed_time(second) for first, second in zip(marks[::2], marks[1::2], strict=True)]
