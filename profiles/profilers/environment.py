"""What was measured on: device, versions, host. A profile holds for nothing else."""

from __future__ import annotations

import platform
import subprocess
from pathlib import Path

import torch

from ..._version import __version__
from .. import registry

UNKNOWN = ""


def environment(device: torch.device) -> dict[str, str]:
    """Versions and names; empty where there is none."""
    found = {
        "meshwright": __version__,
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "platform": platform.platform(),
        "device": _cpu_name(),
        "threads": str(torch.get_num_threads()),
    }
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        found |= {
            "device": properties.name,
            "multiprocessors": str(properties.multi_processor_count),
            "memory": f"{properties.total_memory / 2**20:.0f} MiB",
            "cuda": str(torch.version.cuda),
            "cudnn": str(torch.backends.cudnn.version()),  # type: ignore[no-untyped-call]
            "nccl": ".".join(map(str, torch.cuda.nccl.version())),  # type: ignore[no-untyped-call]
            "driver": _driver(),
        }
    return found


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
