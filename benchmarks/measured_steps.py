"""Ways to train one model on ranks of this machine; seconds, messages and losses of their steps."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from meshwright.runtime.model.decoder import DecoderChunk
from meshwright.runtime.parallel.comm import Group, Pending
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

# Bytes of which argument of a collective, and how many times (n - 1) / n of them a rank sends.
COLLECTIVES = {"_allgather_base_": (0, 1), "_reduce_scatter_base_": (1, 1), "allreduce_": (0, 2)}
NOT_SENT = ("barrier", "recv_")
Step = Callable[[int], float]
_Result = TypeVar("_Result")


def launch(script: str, ranks: int, gbit: float | None) -> int:
    """Starts the ranks of a script under torchrun with its own arguments and `--verdict FILE`, where rank 0 writes the
    exit code. Returns that code. gbit: rate of all messages together, Gbit/s; None: that of the machine.
    """
    words = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    environment = {"OMP_NUM_THREADS": "1", **os.environ, "GLOO_SOCKET_IFNAME": "lo"}
    with tempfile.TemporaryDirectory() as folder, _namespace(gbit) as inside:
        verdict = Path(folder) / "verdict"
        done = subprocess.run([*inside, *words, script, *sys.argv[1:], "--verdict", str(verdict)], env=environment)
        return done.returncode or int(verdict.read_text(encoding="utf-8"))


@contextmanager
def _namespace(gbit: float | None) -> Iterator[list[str]]:
    """Words before a command that runs it where the loopback device has a rate; none without a rate."""
    if gbit is None:
        yield []
        return
    name = f"ranks-{os.getpid()}"
    inside = ["ip", "netns", "exec", name]
    subprocess.run(["ip", "netns", "add", name], check=True)
    try:
        subprocess.run([*inside, "ip", "link", "set", "lo", "up"], check=True)
        subprocess.run([*inside, "tc", "qdisc", "add", "dev", "lo", "root", "tbf", "rate", f"{gbit}gbit",
                        "burst", "1mb", "latency", "100ms"], check=True)  # fmt: skip
        yield inside
    finally:
        subprocess.run(["ip", "netns", "delete", name], check=True)


@dataclass
class Side:
    """One way to train, and its measured steps."""

    name: str
    step: Step  # trains on the batch of an index; returns the loss
    chunks: Sequence[DecoderChunk]  # the layers that may be compiled
    seconds: list[float] = field(default_factory=list)  # of each step
    user_s: list[float] = field(default_factory=list)  # user CPU seconds of each step, summed over ranks
    losses: list[float] = field(default_factory=list)
    sent: int = 0  # bytes that a rank sends in a step
    waits: int = 0  # calls of a rank that wait for messages in a step
    waited_s: list[float] = field(default_factory=list)  # seconds of a rank in such calls, of each step
    blocked_s: list[float] = field(default_factory=list)  # of these, where `blocking` has put them, on this rank

    def block(self, wait: Callable[[], _Result]) -> _Result:
        """Waits, and counts the seconds."""
        started = time.perf_counter()
        result = wait()
        self.blocked_s[-1] += time.perf_counter() - started
        return result

    def train(self, index: int) -> None:
        """Takes and times a step."""
        dist.barrier()
        started, user = time.perf_counter(), _user_s()
        with _waiting() as waits:
            self.losses.append(self.step(index))
        sums = torch.tensor([_user_s() - user, sum(waits)], dtype=torch.float64)
        seconds = time.perf_counter() - started
        dist.all_reduce(sums)
        self.waits = len(waits)
        self.seconds.append(seconds)
        self.user_s.append(float(sums[0]))
        self.waited_s.append(float(sums[1]) / dist.get_world_size())

    def count(self, index: int) -> None:
        """Takes a step and counts the bytes that it sends. Layers that are compiled run eagerly in it."""
        with _Sent() as sent:
            self.train(index)
        self.sent = sent.num_bytes

    def forget(self) -> None:
        """Drops the times of the warm-up."""
        for times in (self.seconds, self.user_s, self.waited_s, self.blocked_s):
            times.clear()

    def row(self) -> dict[str, float | int | str]:
        """Medians of the measured steps."""
        return {"name": self.name, "step_s": median(self.seconds), "user_s": median(self.user_s),
                "sent_bytes": self.sent, "waits": self.waits, "waited_s": median(self.waited_s),
                "loss": self.losses[-1]}  # fmt: skip


def blocking(side: Side, axis: str | None = None) -> Side:
    """The same steps, where each message over an axis is waited for before anything else is computed.

    axis: None for all messages.
    """
    before, pass_on = Group._start, Group.pass_on
    result = Side("blocking", lambda index: step(index), side.chunks)

    def start(group: Group, *arguments: Any) -> Pending:
        pending = before(group, *arguments)
        if axis in (None, group.axis):
            result.block(pending.wait)
        return pending

    def passed(group: Group, tensor: Tensor) -> Callable[[], Tensor]:
        arrived = result.block(pass_on(group, tensor))
        return lambda: arrived

    def step(index: int) -> float:
        result.blocked_s.append(0.0)
        Group._start, Group.pass_on = start, passed  # type: ignore[method-assign, assignment]
        try:
            return side.step(index)
        finally:
            Group._start, Group.pass_on = before, pass_on  # type: ignore[method-assign]

    return result


def train_in_turn(sides: Sequence[Side], warm_up: int, rounds: int) -> None:
    """Steps of all sides, each round in the other order, on batches from 1; those below `warm_up` do not count."""
    for index in range(1, warm_up + rounds):
        for side in sides if index % 2 else reversed(sides):
            side.train(index)
            if index < warm_up:
                side.forget()


def ratio(ones: Sequence[float], others: Sequence[float]) -> float:
    """Median of the ratios of pairs."""
    return median(one / other for one, other in zip(ones, others, strict=True))


def _user_s() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_utime


class _Sent(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the bytes that this rank sends in collectives, by ring algorithms, and in messages."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.num_bytes, self._ranks = 0, dist.get_world_size()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        namespace, _, name = str(func.name()).partition("::")
        if namespace == "c10d" and name in COLLECTIVES:
            index, times = COLLECTIVES[name]
            self.num_bytes += times * (self._ranks - 1) * _num_bytes(args[index]) // self._ranks
        elif namespace == "c10d" and name == "send":
            self.num_bytes += _num_bytes(args[0])
        elif namespace == "c10d" and name not in NOT_SENT:
            raise RuntimeError(f"{name} is not counted")
        return func(*args, **(kwargs or {}))


def _num_bytes(tensors: Tensor | Sequence[Tensor]) -> int:
    return sum(tensor.nbytes for tensor in ([tensors] if isinstance(tensors, Tensor) else tensors))


@contextmanager
def _waiting() -> Iterator[list[float]]:
    """Seconds of every wait of this rank for messages."""
    seconds, before = [], dist.Work.wait

    def wait(work: Any, *args: Any, **kwargs: Any) -> Any:
        started = time.perf_counter()
        try:
            return before(work, *args, **kwargs)
        finally:
            seconds.append(time.perf_counter() - started)

    dist.Work.wait = wait  # type: ignore[method-assign, assignment]
    try:
        yield seconds
    finally:
        dist.Work.wait = before  # type: ignore[method-assign]
