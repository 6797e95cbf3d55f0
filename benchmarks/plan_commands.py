"""Plans as their user waits for them: `meshwright plan ...` as a process, cold, from a fresh interpreter, with all that
the screen shows. Beside it the search alone.

`python benchmarks/plan_commands.py` prints a table; `make figures` keeps it in figures.json. CPU seconds are of one
core: processes beside it hardly change them, while they stretch the seconds of the clock.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from typing import Any

from meshwright.planner.request.load import load_request
from meshwright.planner.request.resolve import resolve
from meshwright.planner.search.run import search_of
from meshwright.planner.search.top_k import FAMILY

_REPEATS = 2  # the least of which counts


@dataclass(frozen=True)
class Command:
    """A plan: the flags of the command, the same request by its fields, and what to reach."""

    flags: str
    fields: dict[str, Any]
    reach_s: float


COMMANDS = {
    "llama-3.1-8b, 16 H100": Command(
        "--model llama-3.1-8b --cluster dgx-h100:2 --global-batch 512 --seq-len 8192",
        {"model": "llama-3.1-8b", "cluster": "dgx-h100:2", "global_batch": 512, "seq_len": 8192}, 0.8),
    "llama-3.1-70b, 64 H100, any": Command(
        "--model llama-3.1-70b --cluster dgx-h100:8 --target any",
        {"model": "llama-3.1-70b", "cluster": "dgx-h100:8", "target": "any"}, 3.0),
    "llama-3.1-405b, 16,384 H100, any": Command(
        "--model llama-3.1-405b --cluster dgx-h100:2048 --target any",
        {"model": "llama-3.1-405b", "cluster": "dgx-h100:2048", "target": "any"}, 4.0),
    "deepseek-v3, 1,024 H100, fp8, megatron-bridge": Command(
        "--model deepseek-v3 --cluster dgx-h100:128 --dtype fp8 --target megatron-bridge --global-batch 8192 "
        "--seq-len 4096",
        {"model": "deepseek-v3", "cluster": "dgx-h100:128", "precision": "fp8", "target": "megatron-bridge",
         "global_batch": 8192, "seq_len": 4096}, 10.0),
    "deepseek-v3, 2,048 H100, megatron": Command(
        "--model deepseek-v3 --cluster dgx-h100:256 --target megatron",
        {"model": "deepseek-v3", "cluster": "dgx-h100:256", "target": "megatron"}, 10.0),
}  # fmt: skip


def measure() -> dict[str, dict[str, float]]:
    """Seconds of the clock and of the CPU, and peak memory, of every command; CPU seconds of its search alone."""
    return {name: _figures(command) for name, command in COMMANDS.items()}


def _figures(command: Command) -> dict[str, float]:
    runs = [_run("plan", *shlex.split(command.flags)) for _ in range(_REPEATS)]
    wall_s, cpu_s, peak_bytes = (min(values) for values in zip(*runs, strict=True))
    resolved = resolve(load_request(None, command.fields))
    started = time.process_time()
    outcome = search_of(resolved, resolved.space, top=resolved.request.top, family=FAMILY).run()
    search_s = time.process_time() - started
    return {"wall_s": round(wall_s, 2), "cpu_s": round(cpu_s, 2), "search_cpu_s": round(search_s, 2),
            "peak_mib": round(peak_bytes / 2**20), "layouts": outcome.count.total,
            "priced": outcome.count.priced}  # fmt: skip


def _run(*arguments: str) -> tuple[float, float, float]:
    """Seconds of the clock, CPU seconds and peak bytes of `meshwright arguments`, which proves its plan."""
    *used, screen = timed("-m", "meshwright", *arguments)
    if "Proven" not in screen:
        raise SystemExit(f"meshwright {shlex.join(arguments)}: nothing proven\n{screen}")
    return used[0], used[1], used[2]


def timed(*arguments: str) -> tuple[float, float, float, str]:
    """Seconds of the clock, CPU seconds, peak bytes and screen of `python arguments`."""
    # Compiled modules are kept, as an installed package has them.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    environment["OMP_NUM_THREADS"] = "1"
    with tempfile.TemporaryDirectory() as folder:
        started = time.perf_counter()
        with subprocess.Popen([sys.executable, *arguments], cwd=folder, env=environment, stdout=subprocess.PIPE,
                              stderr=subprocess.DEVNULL) as process:  # fmt: skip
            screen = process.stdout.read().decode() if process.stdout else ""
            _, status, used = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"python {shlex.join(arguments)}: exit {process.returncode}\n{screen}")
    return time.perf_counter() - started, used.ru_utime + used.ru_stime, used.ru_maxrss * 1024.0, screen


def main() -> None:
    for name, figures in measure().items():
        print(f"{name:46}  {figures['wall_s']:7.2f} s wall  {figures['cpu_s']:7.2f} s CPU (to reach "
              f"{COMMANDS[name].reach_s:g})  search {figures['search_cpu_s']:6.2f} s  {figures['peak_mib']:5,.0f} MiB")


if __name__ == "__main__":
    main()
