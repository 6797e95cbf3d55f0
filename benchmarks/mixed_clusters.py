"""The gain of planning group by group on heterogeneous clusters, and its cost.

step_s: of the plan; even_s: of the best even plan for the weakest of all GPUs, priced on the cluster as it is, with the
same numbers; alone_s: of the best plan on one group; all seconds of a step by the model. cpu_s: of one `plan`.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from meshwright.planner import api

EXAMPLES = Path(__file__).parents[1] / "examples"
CASES: dict[str, dict[str, Any]] = {
    "mixed_gpus": {"model": "llama-3.1-70b"},
    "two_sites": {"model": "llama-3.1-70b"},
    "two_fabrics": {"model": "llama-2-7b"},
    "three_groups": {"model": "llama-3.1-8b", "global_batch": 64},
    "a100_t4": {"model": "llama-3.2-3b", "seq_len": 2048, "precision": "fp16", "target": "any"},
}


def measure(names: Iterable[str] = tuple(CASES)) -> dict[str, dict[str, float | str]]:
    """Example -> its figures."""
    out: dict[str, dict[str, float | str]] = {}
    for name in names:
        fields = CASES[name]
        started = time.process_time()
        plan = api.plan(cluster=str(EXAMPLES / f"{name}.yaml"), **fields)
        cpu_s = time.process_time() - started
        best, ways = plan.best, plan.ways or ()
        even_s = min((way.step_s for way in ways if way.manner == "even"), default=float("nan"))
        alone_s = min((way.step_s for way in ways if way.manner == "together"), default=float("nan"))
        out[name] = {
            "manner": best.spread.manner if best.spread else "", "layout": best.layout_id,
            "step_s": round(best.step_s, 2), "even_s": round(even_s, 2), "alone_s": round(alone_s, 2),
            "gap_percent": round(100 * (plan.certificate.gap or 0.0), 1), "cpu_s": round(cpu_s, 1),
        }  # fmt: skip
    return out


if __name__ == "__main__":
    print(json.dumps(measure(), indent=1))
