"""Answers under a limit, gaps that remain, and starts of commands: figures of `make figures` beside whole plans.

`python benchmarks/limits.py` prints them.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

from mixed_clusters import measure as mixed_clusters
from plan_commands import timed

_LARGE = ("plan", "--model", "llama-3.1-405b", "--cluster", "dgx-h100:12288", "--global-batch", "12288",
          "--target", "any")
_LIMIT_S, _LONG_S = 3, 30  # of the answer that counts, and of that with which it is compared: the best known
_REPEATS = 5  # the least of which counts
_STARTS = {"--help": ("--help",), "show gpus": ("show", "gpus")}


def measure() -> dict[str, Any]:
    return {"limited_plan": limited_plan(), "three_groups": mixed_clusters(["three_groups"])["three_groups"],
            "starts": starts()}  # fmt: skip


def limited_plan() -> dict[str, float]:
    """405B on 98,304 GPUs: the step of a plan under a limit, and percent more than that of the best plan known."""
    with tempfile.TemporaryDirectory() as folder:
        short, best = (_plan(Path(folder), limit_s) for limit_s in (_LIMIT_S, _LONG_S))
    more = short["step_s"] / min(short["step_s"], best["step_s"]) - 1
    return {"limit_s": _LIMIT_S, **short, "best_known_step_s": best["step_s"], "best_known_limit_s": _LONG_S,
            "more_percent": round(100 * more, 1)}  # fmt: skip


def _plan(folder: Path, limit_s: int) -> dict[str, float]:
    """A plan under a limit: its step, its gap, and what the command took."""
    out = folder / f"{limit_s}.json"
    wall_s, cpu_s, peak_bytes, _ = timed("-m", "meshwright", *_LARGE, "--time-limit", f"{limit_s}s", "-o", str(out))
    plan = json.loads(out.read_text(encoding="utf-8"))
    return {"wall_s": round(wall_s, 2), "cpu_s": round(cpu_s, 2), "peak_mib": round(peak_bytes / 2**20),
            "step_s": plan["candidates"][0]["step_s"],
            "gap_percent": round(100 * (plan["certificate"]["gap"] or 0.0), 1)}  # fmt: skip


def starts() -> dict[str, dict[str, float]]:
    """Commands that only print: CPU seconds, how many times those of `python -c pass`, and peak memory. They take
    turns."""
    commands = {"python -c pass": ("-c", "pass"),
                **{name: ("-m", "meshwright", *words) for name, words in _STARTS.items()}}  # fmt: skip
    runs = [{name: timed(*words)[1:3] for name, words in commands.items()} for _ in range(_REPEATS)]
    least = {name: [min(run[name][i] for run in runs) for i in (0, 1)] for name in commands}
    pass_s = least["python -c pass"][0]
    return {name: {"cpu_s": round(cpu_s, 3), "times_pass": round(cpu_s / pass_s, 2),
                   "peak_mib": round(peak_bytes / 2**20)} for name, (cpu_s, peak_bytes) in least.items()}  # fmt: skip


if __name__ == "__main__":
    print(json.dumps(measure(), indent=1))
