"""Hosts with slow links and slow ranks, emulated on this machine: network namespaces, traffic shaping, CPU quotas.

Every host is a network namespace whose one interface is joined to a bridge; `tc tbf` limits it in both directions.
Every rank has a control group (quotas.py), in which it saves up little (idlers.py), and a core that it stays on. Needs
root, iproute2 and a cgroup `cpu` controller. A process of its own cleans up as soon as the one that made the cluster is
gone, however that happened.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from meshwright.profiles.profilers.environment import CPU_NAME
from meshwright.runtime.parent import die_with_parent

from .idlers import Idlers
from .quotas import Quotas, cores_of, cpu_controller, in_short_turns
from .tickers import Tickers, may_go_first

_BURST_S = 0.001  # of traffic that tbf lets through at once,
_LEAST_BURST = 4 * 1024  # but at least these bytes: two segments, of messages that are 64 KiB and more
_QUEUE = 64 << 20  # bytes that wait for a link: none is dropped, as on the fabrics that GPUs have
# Messages begin at the full speed of a link, also after a pause: what makes them slower is its rate, not TCP.
_AT_FULL_SPEED = ("net.ipv4.tcp_congestion_control=reno", "net.ipv4.tcp_slow_start_after_idle=0")
_NEWUTS = 0x04000000  # unshare(2): a host name of its own
_LIBC = ctypes.CDLL(None, use_errno=True)
# glibc's malloc returns memory to the kernel: a pipeline touched 2,000 new pages a step, up to a tenth of its time. The
# allocator of a GPU keeps what it had. mallopt(3): M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_THRESHOLD (the most it takes).
_KEEPS_MEMORY = ((-1, 2**31 - 1), (-2, 64 << 20), (-3, 32 << 20))

_SHOWN = 2000  # characters of the output of a rank that failed


class CannotEmulate(Exception):
    """This machine lacks something that emulation needs."""


class StepFailed(Exception):
    """A command or a rank failed; the message has the end of its output."""


@dataclass(frozen=True)
class Host:
    """An emulated host."""

    name: str
    ranks: int
    # Share of a core of each rank.
    cores: float
    # Of its interface, in each direction; None: as fast as the kernel is.
    link_bytes_per_s: float | None = None


def missing() -> str:
    """The requirements of emulation that this machine lacks; empty if it can run."""
    if sys.platform != "linux":
        return "Linux: network namespaces and control groups are its own"
    if os.geteuid() != 0:
        return "root: network namespaces, traffic shaping and control groups are its own"
    if lacks := [tool for tool in ("ip", "tc") if shutil.which(tool) is None]:
        return f"{' and '.join(lacks)} (Debian: iproute2)"
    if cpu_controller() is None:
        return "a writable `cpu` controller under /sys/fs/cgroup"
    if not may_go_first():
        return "real-time priority (CAP_SYS_NICE): a process per core wakes before all others"
    return ""


@dataclass(frozen=True)
class Emulated:
    """A running cluster."""

    # Prefix of the names of its namespaces and control groups.
    mark: str
    hosts: tuple[Host, ...]
    quotas: Quotas
    tickers: Tickers
    idlers: Idlers
    # [ranks] the core of each rank.
    cores: tuple[int, ...]
    # File descriptor that every child closes, so that the cleaner notices when the parent is gone.
    lifeline: int

    @property
    def num_ranks(self) -> int:
        return sum(host.ranks for host in self.hosts)

    def host_of(self, rank: int) -> tuple[int, int]:
        """Number of the host, and of the rank on it."""
        for number, host in enumerate(self.hosts):
            if rank < host.ranks:
                return number, rank
            rank -= host.ranks
        raise IndexError(rank)

    def lift(self) -> None:
        """Every rank is as fast as it can be: for what is no part of a measurement."""
        self.idlers.pause()
        self.quotas.lift()

    def limit(self) -> None:
        """Every rank is as fast as it is said to be."""
        self.quotas.limit()
        self.idlers.go_on()

    def start(self, rank: int, run: Callable[[], int], output: Path, port: int) -> int:
        """Runs `run` as that rank, in a process of its own with torchrun's variables; its number. What it prints goes
        to `output`."""
        parent = os.getpid()
        if pid := os.fork():
            return pid
        try:
            die_with_parent(parent)
            os.close(self.lifeline)
            self._enter(rank, output)
            os.environ.update(self._variables(rank, port))
            code = run()
            sys.stdout.flush()
            os._exit(code)
        except BaseException as error:
            sys.stderr.write(f"{type(error).__name__}: {error}\n")
            sys.stderr.flush()
        finally:
            os._exit(1)

    def _enter(self, rank: int, output: Path) -> None:
        """This process becomes that rank: group, core, namespace, host name."""
        host, _ = self.host_of(rank)
        os.setsid()
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        to = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        for stream in (1, 2):
            os.dup2(to, stream)
        os.close(to)
        for option, value in _KEEPS_MEMORY:
            _LIBC.mallopt(option, value)
        self.quotas.join(rank)
        in_short_turns()
        os.sched_setaffinity(0, {self.cores[rank]})
        namespace = os.open(f"/run/netns/{self.mark}-{host}", os.O_RDONLY)
        if _LIBC.setns(namespace, 0) or _LIBC.unshare(_NEWUTS):
            raise OSError(ctypes.get_errno(), "cannot enter the namespace of the host")
        name = self.hosts[host].name.encode()
        _LIBC.sethostname(name, len(name))

    def _variables(self, rank: int, port: int) -> Mapping[str, str]:
        host, local = self.host_of(rank)
        variables = {"RANK": rank, "WORLD_SIZE": self.num_ranks, "LOCAL_RANK": local, "GROUP_RANK": host,
                 "LOCAL_WORLD_SIZE": self.hosts[host].ranks, "MASTER_ADDR": _address(0), "MASTER_PORT": port,
                 "GLOO_SOCKET_IFNAME": "eth0", "OMP_NUM_THREADS": 1,
                 CPU_NAME: f"cpu-{self.hosts[host].cores:g}-cores"}  # fmt: skip
        return {name: str(value) for name, value in variables.items()}

    def run(self, run: Callable[[int], int], outputs: Path, port: int) -> None:
        """`run` with its number as every rank, to the end. Raises StepFailed; the first that fails ends the others."""
        logs = [outputs / f"rank-{rank}.log" for rank in range(self.num_ranks)]
        finish([self.start(rank, partial(run, rank), log, port) for rank, log in enumerate(logs)], logs)


def finish(pids: Sequence[int], logs: Sequence[Path]) -> None:
    """Waits for ranks that print to `logs`. Raises StepFailed where one fails by itself."""
    for code, log in zip(wait_for(pids), logs, strict=True):
        if code > 0:
            output = log.read_text(encoding="utf-8", errors="replace").strip()
            raise StepFailed(f"{log.stem} failed ({code})\n{output[-_SHOWN:]}")


def wait_for(pids: Sequence[int]) -> list[int]:
    """Exit codes, in order (a signal: negative). A failure ends all, as does an exception here."""
    codes: dict[int, int] = {}
    try:
        while len(codes) < len(pids):
            for pid in pids:
                if pid not in codes and (ended := os.waitpid(pid, os.WNOHANG))[0]:
                    codes[pid] = os.waitstatus_to_exitcode(ended[1])
            if any(codes.values()):
                break
            time.sleep(0.02)
    finally:
        for pid in pids:
            if pid not in codes:
                _kill(pid)
                codes[pid] = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return [codes[pid] for pid in pids]


@contextmanager
def emulated(hosts: Sequence[Host]) -> Iterator[Emulated]:
    """The hosts, joined; gone at the end. Raises CannotEmulate where something is missing or too much is asked."""
    if lacks := missing():
        raise CannotEmulate(lacks)
    shares = [host.cores for host in hosts for _ in range(host.ranks)]
    cores = cores_of(shares, sorted(os.sched_getaffinity(0)))
    if isinstance(cores, str):
        raise CannotEmulate(cores)
    mark = f"mw{os.getpid()}"
    reading, lifeline = os.pipe()
    cleaner = _cleaner(mark, reading, lifeline)
    try:
        _network(mark, hosts)
        quotas = Quotas.make(mark, shares)
        ranks_of = {core: [rank for rank, its_core in enumerate(cores) if its_core == core] for core in cores}
        tickers = Tickers.start(sorted(ranks_of), lambda core, probe_s: quotas.follow(ranks_of[core], probe_s))
        idlers = Idlers.start(quotas, cores)
        try:
            yield Emulated(mark, tuple(hosts), quotas, tickers, idlers, cores, lifeline)
        finally:
            idlers.stop()
            tickers.stop()
    finally:
        os.close(lifeline)
        os.waitpid(cleaner, 0)


def _cleaner(mark: str, reading: int, lifeline: int) -> int:
    """A process that waits until nobody holds the lifeline, and then ends all that has the mark."""
    if pid := os.fork():
        os.close(reading)
        return pid
    try:
        os.setsid()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        os.close(lifeline)
        os.read(reading, 1)
        _clean(mark)
    finally:
        os._exit(0)


def _clean(mark: str) -> None:
    Quotas.end(mark)  # kills what is in the groups
    for name in sorted(os.listdir("/run/netns")):
        if name.startswith(f"{mark}-"):
            inside = subprocess.run(["ip", "netns", "pids", name], capture_output=True, text=True).stdout.split()
            for pid in inside:
                _kill(int(pid))
            subprocess.run(["ip", "netns", "del", name], capture_output=True)


def _kill(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def _address(host: int) -> str:
    return f"10.77.0.{host + 1}"


def _network(mark: str, hosts: Sequence[Host]) -> None:
    """A namespace per host, and one with the bridge that joins them."""
    switch = f"{mark}-switch"
    for name in (switch, *(f"{mark}-{number}" for number in range(len(hosts)))):
        _run("ip", "netns", "add", name)
        _run("ip", "-n", name, "link", "set", "lo", "up")
    _run("ip", "-n", switch, "link", "add", "br0", "type", "bridge")
    _run("ip", "-n", switch, "link", "set", "br0", "up")
    for number, host in enumerate(hosts):
        name, port = f"{mark}-{number}", f"port{number}"
        _run("ip", "-n", switch, "link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", name)
        _run("ip", "-n", switch, "link", "set", port, "master", "br0", "up")
        _run("ip", "-n", name, "addr", "add", f"{_address(number)}/24", "dev", "eth0")
        _run("ip", "-n", name, "link", "set", "eth0", "up")
        for setting in _AT_FULL_SPEED:
            _run("ip", "netns", "exec", name, "sysctl", "-q", "-w", setting)
        if host.link_bytes_per_s is not None:
            for where, device in ((name, "eth0"), (switch, port)):
                _run("tc", "-n", where, "qdisc", "add", "dev", device, *_shape(host.link_bytes_per_s))


def _shape(bytes_per_s: float) -> list[str]:
    burst = max(int(bytes_per_s * _BURST_S), _LEAST_BURST)
    return ["root", "tbf", "rate", f"{8 * bytes_per_s:.0f}bit", "burst", str(burst), "limit", str(_QUEUE)]


def _run(*words: str) -> None:
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode:
        raise CannotEmulate(f"`{' '.join(words)}`: {done.stderr.strip()}")
