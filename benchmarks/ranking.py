"""How well `plan` orders layouts, by the simulator: `python benchmarks/ranking.py [--layouts N] [-o FILE] [TEXT ...]`.

Every request's best N layouts by the closed form are simulated, and as many random legal layouts that fit as a quarter
of them, which the search discards. Regret: how much longer the first layout of a plan takes than the fastest of all of
them, both simulated; beside it that of the first layout by the closed form alone. Spread: how far apart the ratios of
simulated step and closed form are, of layouts near the best that resemble one another (`drivers/simulated_order.py`).

A layout takes 3 to 30 ms, so all requests with 2,000 layouts take ten minutes. `make figures` shows what was written.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from figures import draw
from meshwright.cost_models.arrays import Array
from meshwright.cost_models.layouts import Layout
from meshwright.planner.drivers.alternatives import FAMILIES
from meshwright.planner.drivers.families import best_of_families
from meshwright.planner.drivers.simulated_order import RESEMBLANCE, WINDOW, SimulatedOrder
from meshwright.planner.drivers.watch import Watch
from meshwright.planner.request.load import load_request
from meshwright.planner.request.resolve import Resolved, resolve
from meshwright.planner.search.executors import Here
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


def measure(resolved: Resolved, number: int) -> dict[str, Any]:
    """What the simulator says of the first layout of a plan, of the best by the closed form, and of what the search
    discards. Percent but for counts."""
    watch = Watch(None, None, Here())
    order = SimulatedOrder(resolved, best_of_families(resolved, watch, FAMILIES, WINDOW)).run(watch)
    first_s, run = order.rows[0][0], order.simulated
    listed, others = best(resolved, order, number), discarded(resolved, round(_DISCARDED * number))
    staged = [order.of(layout) for layout in (*listed, *others)]
    steps_s, closed_s = (np.array([getattr(one, name) for one in staged]) for name in ("step_s", "closed_s"))
    ratio, window = steps_s / closed_s, int((closed_s[: len(listed)] <= closed_s[0] * (1 + WINDOW)).sum())
    best_s, near, far = order.rows[0][0], ratio[: len(listed)], ratio[len(listed) :]
    return {
        "layouts": len(listed), "discarded": len(others), "runs": run, "kept": len(order.outcome.top.kept[0]),
        "kept_within": _percent(order.outcome.top.kept_window),
        "regret": _percent(first_s / best_s - 1), "regret_of_closed_form": _percent(steps_s[0] / best_s - 1),
        "ratio": [_percent(near.min()), _percent(near.max())],
        "ratio_of_discarded": [_percent(far.min()), _percent(far.max())],
        "spread": [_percent(spread(listed[:window], near, fields)) for fields, _ in RESEMBLANCE],
    }  # fmt: skip


def best(resolved: Resolved, order: SimulatedOrder, number: int) -> list[Layout]:
    """The best layouts by the closed form."""
    _, kept = order.outcome.top.kept
    if len(kept) < number:
        return [row[2] for row in search_of(resolved, resolved.space, top=number).run().top.rows]
    return [kept.layout(row) for row in range(number)]


def spread(layouts: Sequence[Layout], ratio: Array, fields: Sequence[str]) -> float:
    """How far apart the ratios of layouts are that agree in all fields: of nineteen in twenty groups no further."""
    groups: dict[tuple[int, ...], list[float]] = {}
    for layout, value in zip(layouts, ratio.tolist(), strict=False):
        groups.setdefault(tuple(getattr(layout, name) for name in fields), []).append(value)
    return float(np.quantile([max(values) / min(values) - 1 for values in groups.values()], 0.95))


def _percent(share: float) -> float:
    return round(100 * float(share), 3)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--layouts", type=int, default=1600, help="layouts of the list [1600]")
    parser.add_argument("-o", "--output", type=Path, help="write the result here, as JSON")
    parser.add_argument("only", nargs="*", help="requests whose name has one of these texts")
    options = parser.parse_args()
    results = {}
    for fields in REQUESTS:
        name = " ".join(str(value) for value in fields.values())
        if not options.only or any(text in name for text in options.only):
            results[name] = measure(resolve(load_request(None, fields)), options.layouts)
            print(f"{name:62}  {results[name]}", flush=True)
    if options.output is not None:
        written = {"date": str(datetime.now(UTC).date()), "requests": results}
        options.output.write_text(json.dumps(written, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
