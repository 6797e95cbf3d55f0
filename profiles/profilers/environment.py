"""The device, the versions and the host of a measurement. A profile holds for nothing else."""

from __future__ import annotations

import math
import os
import platform
import re
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import torch

from ..._version import __version__
from ...errors import InputError
from ..io import registry

UNKNOWN = ""
CPU_NAME = "MESHWRIGHT_CPU_NAME"
# Periods of a CPU quota that a sample spans at least, and one of the wall clock, which cannot know where in a period it
# begins and ends.
SAMPLE_PERIODS, CLOCK_PERIODS = 5, 10


def environment(device: torch.device) -> dict[str, str]:
    """Versions and names; empty where there is none."""
    about = {
        "meshwright": __version__,
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "platform": platform.platform(),
        "device": _cpu_name(),
        "threads": str(torch.get_num_threads()),
    }
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        about |= {
            "device": properties.name,
            "multiprocessors": str(properties.multi_processor_count),
            "memory": f"{properties.total_memory / 2**20:.0f} MiB",
            "cuda": str(torch.version.cuda),
            "cudnn": str(torch.backends.cudnn.version()),  # type: ignore[no-untyped-call]
            "nccl": ".".join(map(str, torch.cuda.nccl.version())),  # type: ignore[no-untyped-call]
            "driver": _driver(),
        }
    return about


@dataclass(frozen=True)
class Quota:
    """CPU time that this process may take of every period."""

    cores: float  # CPU seconds per second
    period_s: float  # seconds of a period


def quota() -> Quota | None:
    """The tightest CPU quota of the control groups (cgroup v1 `cpu`, v2 `cpu.max`) that this process is in."""
    quotas = [limit for folder in _control_groups() if (limit := _quota_of(folder)) is not None]
    return min(quotas, key=lambda limit: limit.cores, default=None)


def _control_groups() -> Iterator[Path]:
    """Folders of this process's groups, and of all above them."""
    listed = Path("/proc/self/cgroup")
    for line in listed.read_text(encoding="utf-8").splitlines() if listed.is_file() else ():
        _, controllers, path = line.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        top = _hierarchy() / ("cpu" if controllers else "")
        inside = top / path.lstrip("/")
        yield from (folder for folder in (inside, *inside.parents) if folder == top or top in folder.parents)


def _hierarchy() -> Path:
    """The folder of control groups. `ip netns exec` puts a /sys without them over it: then an ancestor still sees
    them."""
    usual, pid = Path("/sys/fs/cgroup"), os.getpid()
    while pid > 0:
        with suppress(OSError):
            seen = Path(f"/proc/{pid}/root") / usual.relative_to("/")
            if any(seen.iterdir()):
                return seen
        status = Path(f"/proc/{pid}/status")
        lines = status.read_text(encoding="utf-8").splitlines() if status.is_file() else []
        pid = next((int(line.split()[1]) for line in lines if line.startswith("PPid:")), 0)
    return usual


def _quota_of(folder: Path) -> Quota | None:
    first, second = folder / "cpu.cfs_quota_us", folder / "cpu.max"
    if first.is_file():
        limit, period = first.read_text().strip(), (folder / "cpu.cfs_period_us").read_text().strip()
    elif second.is_file():
        limit, period = second.read_text().split()
    else:
        return None
    return None if limit in ("max", "-1") else Quota(int(limit) / int(period), int(period) / 1e6)


def device_name(device: torch.device) -> str:
    """The name of the device in cluster files: that of the catalogue, else the GPU's own. A CPU has that of the
    variable CPU_NAME, where its quota changes, else `cpu-0.3-cores`."""
    if device.type == "cuda":
        return gpu_of(device) or re.sub(r"[^a-z0-9]+", "-", torch.cuda.get_device_name(device).lower()).strip("-")
    if name := os.environ.get(CPU_NAME):
        return name
    limit = quota()
    return f"cpu-{min(limit.cores if limit else math.inf, torch.get_num_threads()):.3g}-cores"


def memory_bytes(device: torch.device, num_ranks: int) -> float:
    """Bytes that one of `num_ranks` ranks on this machine may take: on CPUs its part of the host's memory."""
    if device.type == "cuda":
        return float(torch.cuda.get_device_properties(device).total_memory)
    info = Path("/proc/meminfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.is_file() else []
    whole = [1024.0 * float(line.split()[1]) for line in lines if line.startswith("MemTotal")]
    limits = [float(text) for name in ("memory/memory.limit_in_bytes", "memory.max")
              if (path := Path("/sys/fs/cgroup") / name).is_file() and (text := path.read_text().strip()) != "max"]
    if not whole:
        raise InputError("this system does not report its memory", hint="Linux does, in /proc/meminfo")
    return min(whole + limits) / num_ranks


def gpu_of(device: torch.device) -> str:
    """The device's name in the catalogue of GPUs; empty for a CPU and for what the catalogue does not know."""
    if device.type != "cuda":
        return UNKNOWN
    name = torch.cuda.get_device_name(device)
    return registry.gpu_name(name) if registry.is_gpu(name) else UNKNOWN


def _cpu_name() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.is_file() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{names[0] if names else platform.machine()}, {len(names) or 1} cores"


def _driver() -> str:
    try:
        done = subprocess.run(["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"],
                              capture_output=True, text=True, timeout=20)  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return UNKNOWN
    return done.stdout.splitlines()[0].strip() if done.returncode == 0 and done.stdout.strip() else UNKNOWN
