"""Starts torchrun, follows its ranks, and leaves none behind. This module does not import torch."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import IO, Any

from ..errors import InputError, MissingExtraError
from . import rendezvous
from .checkpoint import restore_copies
from .failures import REFUSED, TERMINATED, RunFailed, RunTerminated, diagnose
from .nodes import Nodes, command
from .parent import PARENT
from .rehearsal.parity import Reference, StateDifference
from .report import EVENT_PREFIX, Event
from .settings import Settings
from .status import ENDED, read_all

PORT_ATTEMPTS, PORT_WAIT_S = 3, 1.0
GRACE_S = 4.0  # seconds after the first failure for the other ranks to report their state
# Seconds for torchrun to end after its ranks. Where a rank of another node died after its last step, it waits 300 s.
LAST_WAIT_S = 10.0
_TAIL = 400

OnEvent = Callable[[Event], None]
OnLine = Callable[[str], None]


def check_torch(what: str = "`launch`") -> None:
    """Raises MissingExtraError, for `what`, if torch is not installed."""
    if importlib.util.find_spec("torch") is None:
        raise MissingExtraError("runtime", what)


def run(
    settings: Settings, nodes: Nodes, on_event: OnEvent, on_line: OnLine, on_wait: OnLine, *, meets: bool = True
) -> None:  # fmt: skip
    """Runs all ranks of this node to their end.

    on_wait: gets a line from time to time while other nodes are missing. meets: False if the nodes have met already.
    Raises InputError (bad data, no port, nodes that differ), RunFailed, RunTerminated (SIGTERM here or on another node)
    and KeyboardInterrupt. No process is left in any case.
    """
    check_torch()
    for attempt in range(PORT_ATTEMPTS):
        port = _port(nodes)
        # Meet once: if torchrun finds the port taken, the other nodes are already connecting to it.
        if nodes.nnodes > 1 and meets and attempt == 0:
            orders = rendezvous.meet(nodes.node_rank, nodes.nnodes, (nodes.master_addr, port),
                                     settings.must_be_equal(), settings.collective_timeout_s, on_wait,
                                     held=restore_copies.held(settings.copies))  # fmt: skip
            # A launcher that was started again joins a run that goes on.
            follow(orders, settings, nodes, on_wait)
            settings = replace(settings, restarts=int(orders.get("restarts", 0)))
            if settings.copies is not None and not settings.restarts:  # those of a launcher that was killed
                shutil.rmtree(settings.copies, ignore_errors=True)
        with tempfile.TemporaryDirectory(prefix="meshwright-run-") as folder:
            ready = replace(settings, run_dir=folder, events=True)
            words = command(ready, replace(nodes, master_port=port))
            ranks = _Run(words, Path(folder), nodes, on_event, on_line)
            with _passing_on_sigterm(ranks):
                code = ranks.follow()
            if code == 0:
                if any(state["code"] == TERMINATED for state in read_all(Path(folder)).values()):
                    hint = "`--resume` goes on" if settings.checkpoint else "`--checkpoint DIR` saves before the end"
                    raise RunTerminated("SIGTERM ended the run before its last step", hint=hint)
                return
            if ranks.port_was_taken and attempt + 1 < PORT_ATTEMPTS:
                time.sleep(PORT_WAIT_S)
                continue
            if ranks.port_was_taken:
                raise _port_in_use(port)
            raise diagnose(read_all(Path(folder)), list(ranks.tail), code, nodes.nproc_per_node, nodes.nnodes,
                           saves=settings.checkpoint is not None)  # fmt: skip


def follow(
    orders: Mapping[str, Any], settings: Settings, nodes: Nodes, on_wait: OnLine,
    details: dict[str, Any] | None = None,
) -> None:  # fmt: skip
    """Restores copies in memory as node 0 orders. Raises RunFailed, with `details`, where it ends the run."""
    restore_copies.restore(orders, settings.checkpoint, settings.copies, nodes.node_rank,
                           settings.collective_timeout_s, on_wait)  # fmt: skip
    if "end" in orders:
        message, hint = orders["end"]
        raise RunFailed(message, hint=hint, details=details)


def _port(nodes: Nodes) -> int:
    """The rendezvous port, which must be free on node 0."""
    if nodes.node_rank != 0 and nodes.master_port is not None:
        return nodes.master_port
    if nodes.master_port is None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            return int(probe.getsockname()[1])
    for attempt in range(PORT_ATTEMPTS):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("", nodes.master_port))
                return nodes.master_port
            except OSError:
                if attempt + 1 < PORT_ATTEMPTS:
                    time.sleep(PORT_WAIT_S)
    raise _port_in_use(nodes.master_port)


def _port_in_use(port: int) -> InputError:
    hint = "choose another `--master-port`, or leave it out on one node to take any free port"
    return InputError(f"port {port} is in use; tried {PORT_ATTEMPTS} times", hint=hint)


@contextmanager
def _passing_on_sigterm(ranks: _Run) -> Iterator[None]:
    """Context in which SIGTERM passes to the ranks, which end after their step. A second SIGTERM ends all at once."""

    def on_signal(number: int, frame: FrameType | None) -> None:
        if ranks.terminating:
            raise KeyboardInterrupt
        ranks.terminating = True

    if threading.current_thread() is not threading.main_thread():  # only the main thread may set handlers
        yield
        return
    before = signal.signal(signal.SIGTERM, on_signal)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


class _Run:
    """One torchrun process and its ranks."""

    def __init__(self, words: list[str], folder: Path, nodes: Nodes, on_event: OnEvent, on_line: OnLine) -> None:
        self.folder, self.on_event, self.on_line = folder, on_event, on_line
        self.num_ranks, self.restarts = nodes.nproc_per_node, nodes.max_restarts > 0
        self.terminating = False  # whether the ranks should end after the step
        self._signalled: set[int] = set()  # process ids of signalled ranks
        self.tail: deque[str] = deque(maxlen=_TAIL)
        environment = {"OMP_NUM_THREADS": "1", **os.environ, "PYTHONUNBUFFERED": "1", PARENT: str(os.getpid())}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "meshwright.runtime.agent", *words[1:]], stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, text=True, errors="replace", env=environment, start_new_session=True,
        )  # fmt: skip
        self._events: deque[Event] = deque()
        self._readers = [
            threading.Thread(target=self._read, args=(stream,), daemon=True)
            for stream in (self.process.stdout, self.process.stderr)
        ]
        for reader in self._readers:
            reader.start()

    @property
    def port_was_taken(self) -> bool:
        return any("EADDRINUSE" in line or "address already in use" in line.lower() for line in self.tail)

    def _read(self, stream: IO[str] | None) -> None:
        if stream is None:
            return
        with stream:
            for line in stream:
                if line.startswith(EVENT_PREFIX):
                    self._events.append(json.loads(line.removeprefix(EVENT_PREFIX)))
                else:
                    self.tail.append(line.rstrip("\n"))
                    self.on_line(line.rstrip("\n"))

    def follow(self) -> int:
        """Waits until torchrun ends: its exit code, or 0 where all ranks of this node had done all that they do.

        A failed rank ends all ranks after a grace period; Ctrl-C ends all at once.
        """
        failed_at: float | None = None
        ended_at: float | None = None
        try:
            while self.process.poll() is None:
                self._deliver()
                if self.terminating:
                    self._pass_on_sigterm()
                states = read_all(self.folder)
                if failed_at is None and any(self._is_final(state) for state in states.values()):
                    failed_at = time.monotonic()
                ended_at = (ended_at or time.monotonic()) if self._have_ended(states) else None
                if ended_at is not None and time.monotonic() > ended_at + LAST_WAIT_S:
                    break
                # Restarted ranks would overwrite the states of the first ones.
                if failed_at is not None and time.monotonic() > failed_at + (0.0 if self.restarts else GRACE_S):
                    break
                time.sleep(0.05)
        finally:
            self.stop()
            for reader in self._readers:
                reader.join(timeout=2.0)
            self._deliver()
        if self._have_ended(read_all(self.folder)):  # a rank that was killed while it ended has lost nothing
            return 0
        return self.process.returncode or (1 if failed_at is not None else 0)

    def _pass_on_sigterm(self) -> None:
        """Sends SIGTERM once to every rank of this node."""
        for state in read_all(self.folder).values():
            pid = int(state["pid"])
            if pid not in self._signalled:
                self._signalled.add(pid)
                _signal_rank(pid, signal.SIGTERM)

    def _have_ended(self, states: Mapping[int, Mapping[str, Any]]) -> bool:
        """Whether all ranks of this node have ended, which they do after the last message of all ranks."""
        return len(states) == self.num_ranks and all(state["doing"] == ENDED for state in states.values())

    def _is_final(self, state: Mapping[str, Any]) -> bool:
        """Whether the run is over for this rank. torchrun may restart failed ranks, but not after invalid input."""
        return bool(state["failed"]) and (not self.restarts or state["code"] in (*REFUSED, RunFailed.code))

    def _deliver(self) -> None:
        while self._events:
            self.on_event(self._events.popleft())

    def stop(self) -> None:
        """Ends torchrun and kills all remaining ranks, also stopped ones."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
        for state in read_all(self.folder).values():
            _signal_rank(int(state["pid"]), signal.SIGKILL)
        try:
            self.process.wait(timeout=5.0)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        for state in read_all(self.folder).values():
            _signal_rank(int(state["pid"]), signal.SIGKILL)


def _signal_rank(pid: int, number: signal.Signals) -> None:
    """Sends a signal if the process is one of our workers. Another process may have its id by now."""
    with suppress(OSError):  # the process has ended
        if b"meshwright.runtime.worker" in Path(f"/proc/{pid}/cmdline").read_bytes():
            os.kill(pid, number)


def reference_of(settings: Settings) -> Reference:
    """The single-process reference, which runs in a separate process. It may follow a run that has ended."""
    check_torch()
    words = [sys.executable, "-m", "meshwright.runtime.reference", *settings.words()]
    environment = {"OMP_NUM_THREADS": "1", **os.environ}
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment,
                          start_new_session=True) as process:  # fmt: skip
        try:
            out, errors = process.communicate()
        except BaseException:
            process.kill()
            raise
    if process.returncode:
        last = (errors.strip().splitlines() or ["no message"])[-1]
        raise RunFailed(f"the single-process reference failed: {last}", details={"stderr": errors[-4000:]})
    document = json.loads(out)
    states = document["states"]
    return Reference([(float(loss), float(norm)) for loss, norm in document["steps"]],
                     None if states is None else [StateDifference(*state) for state in states])  # fmt: skip
