"""How well the closed form orders layouts, by the simulator: `python benchmarks/ranking.py [--layouts N] [TEXT ...]`.

Every request's best N layouts by the closed form are simulated, and as many random legal layouts that fit as a quarter
of them, which the search discards. Regret: how much longer the first layout of the search takes than the fastest of all
of them, both simulated. A layout takes 10 to 30 ms, so all requests with 2,000 layouts take ten minutes.
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np
from figures import draw
from meshwright.cost_models.layouts import Layout
from meshwright.planner.evaluation.staged import Staged
from meshwright.planner.request.load import load_request
from meshwright.planner.request.resolve import Resolved, resolve
from meshwright.planner.search.pricing import price_layouts
from meshwright.planner.search.run import search_of

_DISCARDED = 0.25  # random layouts per layout of the list
_405B, _70B, _8B = "llama-3.1-405b", "llama-3.1-70b", "llama-3.1-8b"

REQUESTS: tuple[dict[str, Any], ...] = (
    {"model": _8B, "cluster": "dgx-h100:2", "global_batch": 512, "seq_len": 8192},
    {"model": _8B, "cluster": "dgx-a100:8", "global_batch": 64, "target": "any"},
    {"model": _8B, "cluster": "dgx-h100:8", "global_batch": 128, "target": "torchtitan"},
    {"model": _70B, "cluster": "dgx-h100:8", "target": "any"},
    {"model": _70B, "cluster": "dgx-h100:64", "global_batch": 256},
    {"model": _70B, "cluster": "dgx-h100:16", "seq_len": 131072, "global_batch": 32, "target": "any"},
    {"model": _405B, "cluster": "dgx-h100:2048", "target": "any"},
    {"model": _405B, "cluster": "dgx-h100:2048", "target": "megatron"},
    {"model": _405B, "cluster": "dgx-h100:64", "global_batch": 1024, "precision": "fp8", "target": "any"},
    {"model": "mixtral-8x7b", "cluster": "dgx-a100:8", "global_batch": 256, "seq_len": 4096, "target": "any"},
    {"model": "mixtral-8x7b", "cluster": "dgx-a100:8", "global_batch": 256, "target": "megatron-bridge"},
    {"model": "qwen3-30b-a3b", "cluster": "dgx-h100:2", "global_batch": 512, "target": "megatron"},
    {"model": "deepseek-v3", "cluster": "dgx-h100:256", "target": "megatron"},
    {"model": "deepseek-v3", "cluster": "dgx-h100:128", "precision": "fp8", "target": "megatron-bridge",
     "global_batch": 8192, "seq_len": 4096},
)  # fmt: skip


def discarded(resolved: Resolved, number: int) -> list[Layout]:
    """Random legal layouts that fit."""
    layouts = draw(resolved.space, 200 * number)
    _, estimate = price_layouts(resolved.problem, resolved.rates, layouts)
    fits = (estimate.device_bytes <= resolved.budget_bytes) & (estimate.host_bytes <= resolved.host_bytes)
    return [layouts.layout(row) for row in np.flatnonzero(fits)[:number].tolist()]


def regret(resolved: Resolved, number: int) -> str:
    """What the simulator says of the search's list and of what it discards."""
    rows = search_of(resolved, resolved.space, top=number).run().top.rows
    layouts = [row[2] for row in rows] + discarded(resolved, round(_DISCARDED * number))
    staged = [Staged.of(resolved, layout, simulate=True) for layout in layouts]
    steps_s = np.array([one.step_s for one in staged])
    ratio = steps_s / np.array([one.closed_s for one in staged])
    best = int(np.argmin(steps_s))
    return (f"regret {100 * (steps_s[0] / steps_s[best] - 1):6.3f} %, best is {best + 1} of {len(rows)} "
            f"and {len(layouts) - len(rows)} discarded; simulated over closed {ratio.min():.4f} to {ratio.max():.4f}, "
            f"of the first {ratio[0]:.4f}")  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--layouts", type=int, default=1600, help="layouts of the list [1600]")
    parser.add_argument("only", nargs="*", help="requests whose name has one of these texts")
    options = parser.parse_args()
    for fields in REQUESTS:
        name = " ".join(str(value) for value in fields.values())
        if not options.only or any(text in name for text in options.only):
            print(f"{name:62}  {regret(resolve(load_request(None, fields)), options.layouts)}", flush=True)


if __name__ == "__main__":
    main()
