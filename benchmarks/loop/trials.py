"""Layouts of a plan, trained for some steps by the real runtime on an emulated cluster.

The ranks of every layout are processes of their own, forked from this one (so that torch is imported once), which
build it as `launch` does and then are stopped: they can take turns in any order, and nothing is built twice. Stopped,
and not only waiting: gloo's threads look for messages every 10 ms, and would do so on the quotas of the layout that
trains. Quotas are lifted while they build.
"""

from __future__ import annotations

import functools
import json
import os
import random
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
from meshwright.runtime import worker
from meshwright.runtime.parallel.mesh import build_mesh
from meshwright.runtime.settings import Settings
from meshwright.runtime.status import Status
from meshwright.runtime.trainer import Trainer

from .emulated import Emulated
from .sample import Entry

BUILD_S, STEPS_S = 120.0, 600.0  # longest waits: for a layout to be built, and for a part of a round


class TrialFailed(Exception):
    """A layout did not train; the message has the last line of every rank."""


@dataclass
class Trial:
    """The ranks of one layout."""

    pids: list[int]
    # [ranks] file descriptors that commands are written to.
    command_ends: list[int]
    # File descriptor that the first rank answers on.
    answers: int
    # The folder of the logs.
    outputs: Path

    def train(self, steps: int) -> list[tuple[float, float]]:
        """Trains some steps: when each began and ended, as time.perf_counter has it, which is the same in all
        processes."""
        self._signal(signal.SIGCONT)
        for end in self.command_ends:
            os.write(end, f"{steps}\n".encode())
        spans = [(start, end) for start, end in json.loads(self._answer(STEPS_S))]
        self._signal(signal.SIGSTOP)
        return spans

    def wait_until_built(self) -> None:
        self._answer(BUILD_S)
        self._signal(signal.SIGSTOP)

    def _signal(self, number: int) -> None:
        for pid in self.pids:
            os.kill(pid, number)

    def _answer(self, longest_s: float) -> str:
        """A line of the first rank. Raises TrialFailed where a rank ends, or the time is up."""
        os.set_blocking(self.answers, False)
        text, until = b"", time.monotonic() + longest_s
        while not text.endswith(b"\n"):
            try:
                text += os.read(self.answers, 1 << 16)
            except BlockingIOError:
                if time.monotonic() > until:
                    raise TrialFailed(f"no answer within {longest_s:.0f} s\n{self._last_lines()}") from None
                if ended := [pid for pid in self.pids if os.waitpid(pid, os.WNOHANG)[0]]:
                    self.pids = [pid for pid in self.pids if pid not in ended]
                    raise TrialFailed(self._last_lines()) from None
                time.sleep(0.01)
        return text.decode()

    def _last_lines(self) -> str:
        """The last line of every rank's log."""
        logs = [(path.stem, path.read_text(errors="replace").strip()) for path in sorted(self.outputs.glob("*.log"))]
        return "\n".join(f"{name}: {text.splitlines()[-1]}" for name, text in logs if text)

    def end(self) -> None:
        self._signal(signal.SIGKILL)
        for pid in self.pids:
            os.waitpid(pid, 0)
        for end in (*self.command_ends, self.answers):
            os.close(end)


@contextmanager
def trial(
    cluster: Emulated, entry: Entry, number: int, port: int, outputs: Path, *, balances: bool
) -> Iterator[Trial]:
    """The ranks of a layout, on the hosts that its plan uses, started but not yet built. number: of the trial, all
    different; port: of the store at which ranks meet; balances: whether experts get equally many tokens, as those of
    trained weights do, which plans are made for."""
    outputs.mkdir()
    ranks = [rank for rank in range(cluster.num_ranks) if cluster.hosts[cluster.host_of(rank)[0]].name in entry.hosts]
    pipes = [os.pipe() for _ in ranks]
    answers = os.pipe()
    settings = Settings(plan=str(entry.plan), choice=entry.choice, device="cpu", timeout_s=STEPS_S,
                        balance_experts=balances)  # fmt: skip
    started = Trial([], [end for _, end in pipes], answers[0], outputs)
    try:
        for position, (rank, (commands, _)) in enumerate(zip(ranks, pipes, strict=True)):
            # torchrun's way to tell attempts apart whose ranks meet at one store.
            variables = {"RANK": position, "WORLD_SIZE": len(ranks), "TORCHELASTIC_USE_AGENT_STORE": True,
                         "TORCHELASTIC_RESTART_COUNT": number}  # fmt: skip
            train = functools.partial(_train, settings, variables, commands, answers[1])
            started.pids.append(cluster.start(rank, train, outputs / f"rank-{rank}.log", port))
    finally:
        for commands, _ in pipes:
            os.close(commands)
        os.close(answers[1])
    try:
        yield started
    finally:
        started.end()


def _train(settings: Settings, variables: Mapping[str, object], commands_from: int, answers: int) -> int:
    """One rank: builds its part, and trains as many steps as each command asks for, until the pipe is closed."""
    os.environ.update({name: str(value) for name, value in variables.items()})
    status = Status(rank=int(os.environ["RANK"]))
    job, _, device = worker.meet(settings, status)
    mesh = build_mesh(job.layout, dist.get_rank(), status, settings.collective_timeout_s)
    trainer = Trainer(job, mesh, device)
    mesh["world"].all_reduce(torch.zeros(1))
    first = mesh.rank == 0
    if first:
        os.write(answers, b"built\n")
    done = 0
    with os.fdopen(commands_from) as commands:
        for line in commands:
            steps = []
            for index in range(done, done + int(line)):
                started = time.perf_counter()
                trainer.step(index)
                steps.append((started, time.perf_counter()))
            done += int(line)
            if first:
                os.write(answers, json.dumps(steps).encode() + b"\n")
    return 0


@contextmanager
def meeting_point(cluster: Emulated, port: int, outputs: Path) -> Iterator[None]:
    """The store at which the ranks of all trials meet, on the first host."""
    pid = cluster.start(0, functools.partial(_store, port), outputs / "store.log", port)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def _store(port: int) -> int:
    address = os.environ["MASTER_ADDR"]
    store = dist.TCPStore(address, port, is_master=True, wait_for_workers=False)  # type: ignore[attr-defined]
    signal.pause()
    return store.port


def turns(names: Sequence[str], number: int, chance: random.Random) -> Iterator[str]:
    """Every name once a turn, in another order each time."""
    for _ in range(number):
        yield from chance.sample(names, len(names))
