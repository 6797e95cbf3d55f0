"""The time of the search for a strategy per layer, and its gain.

CPU seconds of one process, all numbers of stages and of micro-batches, prices of operations included.
"""

from __future__ import annotations

import json
import time
from typing import Any

from meshwright.planner.layerwise.search import search
from meshwright.planner.request.load import load_request
from meshwright.planner.request.resolve import resolve

# Request, and CPU seconds to stay below.
CASES: dict[str, tuple[dict[str, Any], float]] = {
    "7B, 28 layers, 8 GPUs": (
        {"model": "qwen2.5-7b", "cluster": "dgx-h100:1", "seq_len": 4096, "global_batch": 64}, 2.0
    ),
    "7B, 32 layers, 16 GPUs, 16 GiB each": (
        {"model": "llama-2-7b", "cluster": "dgx-a100-80gb:2", "seq_len": 2048, "global_batch": 64,
         "max_memory": "16 GiB"}, 2.0
    ),
    "80 layers, 64 GPUs": (
        {"model": "llama-3.1-70b", "cluster": "dgx-h100:8", "seq_len": 4096, "global_batch": 512}, 10.0
    ),
}  # fmt: skip


def measure(name: str) -> dict[str, Any]:
    """One case: CPU seconds, the plan's step, the best of one strategy for all, and the proven gap."""
    fields, limit_s = CASES[name]
    resolved = resolve(load_request(None, {**fields, "target": "any"}))
    started = time.process_time()
    outcome = search(resolved.space, resolved.rates, resolved.budget_bytes)
    seconds = time.process_time() - started
    best_s = outcome.best.step_s if outcome.best else None
    uniform_s = outcome.uniform.step_s if outcome.uniform else None
    gain_percent = round(100 * (1 - best_s / uniform_s), 2) if best_s and uniform_s else None
    return {
        "case": name, "cpu_seconds": round(seconds, 2), "reach_cpu_seconds": limit_s, "step_s": best_s,
        "alike_step_s": uniform_s, "gain_percent": gain_percent,
        "gap_percent": round(100 * outcome.gap, 4), "pipelines": outcome.instances, "strategies": outcome.strategies,
    }  # fmt: skip


def measure_all() -> list[dict[str, Any]]:
    """All cases."""
    return [measure(name) for name in CASES]


if __name__ == "__main__":
    print(json.dumps(measure_all(), indent=1))
