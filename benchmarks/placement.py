"""The communication time that the search for an order of nodes saves, over seeded random links.

Every pair of nodes has a share of the NICs' speed drawn from 1, .85, .6 and .35, each direction by itself.
Communication time: seconds that the links take in a step of llama-3-70b if nothing hides them, as `plan` minimises it.
"""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Iterator
from dataclasses import replace
from statistics import median
from typing import Any

import numpy as np
from meshwright.cost_models.layouts import parse
from meshwright.cost_models.specs.cluster import NodeLinks
from meshwright.planner.placement.problem import OrderProblem
from meshwright.planner.placement.search import best_order
from meshwright.planner.placement.traffic import NodeTraffic
from meshwright.planner.request.load import load_request
from meshwright.planner.request.resolve import resolve

SHARES = (1.0, 0.85, 0.6, 0.35)
MATRICES = 20
# Nodes of 8 GPUs -> layout: data parallel rings and pipelines both leave the nodes.
LAYOUTS = {8: "tp8-pp4-dp2-mbs1-z1-rsel", 16: "tp8-pp4-dp4-mbs1-z1-rsel", 512: "tp8-pp16-dp32-mbs1-z1-rsel"}


def problems(num_nodes: int) -> Iterator[OrderProblem]:
    """The same request over one random matrix after another."""
    fields = {"model": "llama-3-70b", "cluster": f"dgx-h100:{num_nodes}", "global_batch": 64 * num_nodes}
    resolved = resolve(load_request(None, fields))
    node_bw = resolved.cluster.levels[-1].bw_bytes_per_s * resolved.cluster.gpus_per_node
    for seed in itertools.count():
        bw = node_bw * np.random.default_rng(seed).choice(SHARES, (num_nodes, num_nodes))
        np.fill_diagonal(bw, 0.0)
        links = NodeLinks(bw_bytes_per_s=tuple(map(tuple, bw.tolist())), source=f"seed {seed}")
        placed = replace(resolved, cluster=replace(resolved.cluster, links=links))
        yield NodeTraffic(placed, parse(LAYOUTS[num_nodes])).problem


def against_random(num_nodes: int, most: int, orders: int = 1000) -> dict[str, float]:
    """Seconds of the mean random order over those of the search, and its gap: medians over `most` matrices."""
    ratios: list[float] = []
    gaps: list[float] = []
    seconds: list[float] = []
    rng = np.random.default_rng(0)
    random_orders = np.array([rng.permutation(num_nodes) for _ in range(orders)])
    for problem in itertools.islice(problems(num_nodes), most):
        started = time.process_time()
        order = best_order(problem)
        seconds.append(time.process_time() - started)
        ratios.append(float(problem.seconds(random_orders).mean()) / order.seconds)
        gaps.append(1.0 - order.lower_bound_s / order.seconds)
    return {
        "times_less_median": round(median(ratios), 2), "times_less_least": round(min(ratios), 2),
        "gap_percent_median": round(100 * median(gaps), 1), "cpu_seconds_median": round(median(seconds), 2),
    }  # fmt: skip


def equal_to_all_orders() -> int:
    """On how many of the 8-node matrices the found order is proven and as good as the best of all 40,320."""
    all_orders = np.array(list(itertools.permutations(range(8))))
    equal = 0
    for problem in itertools.islice(problems(8), MATRICES):
        order = best_order(problem)
        equal += order.proven and order.seconds <= float(problem.seconds(all_orders).min()) * (1 + 1e-9)
    return equal


def measure() -> dict[str, Any]:
    """The figures of placement (half a minute)."""
    return {
        f"16 nodes, {MATRICES} matrices": against_random(16, MATRICES),
        f"8 nodes, exact optimum of {MATRICES}": equal_to_all_orders(),
        "512 nodes": against_random(512, 1, orders=100),
    }


if __name__ == "__main__":
    print(json.dumps(measure(), indent=1))
