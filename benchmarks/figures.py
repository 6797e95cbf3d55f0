"""`make figures`: measure what must only get better, and write it to benchmarks/figures.json.

Speeds stand beside a yardstick timed in the same process, np.where over 10^7 elements, since machines differ. Nothing
here is asserted by a test. `--suite` also runs the test suite and records its seconds.
"""

from __future__ import annotations

import argparse
import json
import platform
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from limits import measure as limits
from meshwright.cost_models import build_ledger
from meshwright.cost_models.arrays import Ints
from meshwright.cost_models.layouts import Layouts
from meshwright.cost_models.quantities.tables import build, index_keys
from meshwright.cost_models.schedules.simulator import Costs, make, simulate
from meshwright.cost_models.step import step
from meshwright.planner.accuracy.fold_report import LEFT_OUT_FILE, fold_report
from meshwright.planner.accuracy.outcome import ErrorStatistics, RunOutcome, error_statistics
from meshwright.planner.accuracy.plan_path import PathSummary, compared
from meshwright.planner.accuracy.runs import Problems, read_cases, shipped_files
from meshwright.planner.accuracy.validate import outcome, validate
from meshwright.planner.api import plan
from meshwright.planner.request.load import Request, load_request
from meshwright.planner.request.resolve import Resolved, resolve
from meshwright.planner.search.run import search_of
from meshwright.planner.space.rules import RULES
from meshwright.planner.space.tree import Columns, Count, Space, allowed, select
from placement import measure as placement_figures
from plan_commands import measure as plan_commands

HERE = Path(__file__).parent
OUT = HERE / "figures.json"
ROWS = 1 << 14
SAMPLES = 200_000
OPERATIONS = 60_000
BRIDGE = "megatron-bridge"
REQUESTS: dict[str, dict[str, Any]] = {
    "llama-3.1-405b, 16,384 H100, any": {
        "model": "llama-3.1-405b", "cluster": "dgx-h100:2048", "global_batch": 2048, "target": "any"},
    "llama-3.1-405b, 16,384 H100, megatron": {
        "model": "llama-3.1-405b", "cluster": "dgx-h100:2048", "global_batch": 2048, "target": "megatron"},
    "llama-3.1-405b, 100,000 H100, any": {
        "model": "llama-3.1-405b", "cluster": "dgx-h100:12500", "global_batch": 10_000, "target": "any"},
    "deepseek-v3, 2,048 H100, any": {
        "model": "deepseek-v3", "cluster": "dgx-h100:256", "seq_len": 4096, "global_batch": 15_360, "precision": "fp8",
        "target": "any"},
    "llama-3.1-8b, 16 H100, meshwright": {"model": "llama-3.1-8b", "cluster": "dgx-h100:2", "global_batch": 512},
}  # fmt: skip


def best_of(repeats: int, action: Callable[[], object]) -> float:
    """Least wall seconds of `repeats` runs."""
    seconds = []
    for _ in range(repeats):
        started = time.perf_counter()
        action()
        seconds.append(time.perf_counter() - started)
    return min(seconds)


def yardstick_ns() -> float:
    """Nanoseconds per element of np.where(x > .5, a * x, x) over 10^7 elements."""
    x = np.random.default_rng(0).random(10**7)
    return best_of(5, lambda: np.where(x > 0.5, 1.1 * x, x)) * 1e2


def draw(space: Space, number: int) -> Layouts:
    """Random legal layouts: a uniform mesh, then a uniform option of each level."""
    rng = np.random.default_rng(0)
    meshes = space.meshes(Count())
    columns: Columns = select(meshes, rng.integers(0, len(meshes["tp"]), number))
    order, parts = np.argsort(columns["pp"], kind="stable"), []
    columns = select(columns, order)
    for pp in np.unique(columns["pp"]).tolist():
        part = select(columns, columns["pp"] == pp)
        size = len(part["tp"])
        for options in (space.schedules(pp), space.recomputes(pp), space.states(2)):
            chosen = rng.integers(0, len(next(iter(options.values()))), size)
            part.update(select(options, chosen))
        part["zero"] = np.where(part["dp"] * part["cp"] > 1, part["zero"], 0)
        part["shard"] = _shards(space, part, rng)
        parts.append(part)
    joined = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    joined = select(joined, rng.permutation(number))
    return Layouts(select(joined, allowed(RULES, joined, space.problem)))


def _shards(space: Space, part: Columns, rng: np.random.Generator) -> Ints:
    rows = zip(part["dp"].tolist(), part["cp"].tolist(), part["zero"].tolist(), strict=True)
    return np.array([rng.choice(space.shards(*row)) for row in rows], dtype=np.int64)


def layouts_per_second(resolved: Resolved) -> float:
    """Priced (time and memory) per second on one core: from columns to seconds and bytes, tables included."""
    layouts = draw(resolved.space_under(), SAMPLES)

    def price() -> None:
        keys, index = index_keys(layouts)
        tables = build(resolved.problem, keys)
        for start in range(0, len(layouts), ROWS):
            part = slice(start, start + ROWS)
            ledger = build_ledger.build(resolved.problem, tables, layouts.take(part), index[part])  # type: ignore[arg-type]
            _ = step.price(ledger, resolved.rates).device_bytes  # they are worked out when they are asked for

    return len(layouts) / best_of(3, price)


def simulated_operations_per_s() -> dict[str, int]:
    """Operations of pipelines that the simulator walks per second on one core, without extrapolation."""
    speeds = {}
    for name, p, v in (("1f1b", 16, 1), ("interleaved", 8, 4), ("zb-v", 8, 2)):
        order = make(name, p, OPERATIONS // (2 * p * v) // p * p, v)
        costs = Costs.even(order, 1.03, 0.97, 0.81, 0.013)
        speeds[name] = round(len(order.code) / best_of(3, partial(simulate, order, costs, extrapolate=False)))
    return speeds


def searches() -> dict[str, dict[str, float]]:
    """Seconds to a proven optimum, and the size of each space."""
    out = {}
    for name, fields in REQUESTS.items():
        resolved = resolve(load_request(None, fields))
        started = time.perf_counter()
        outcome = search_of(resolved, resolved.space, top=5).run()
        out[name] = {
            "seconds": round(time.perf_counter() - started, 3), "layouts": outcome.count.total,
            "priced": outcome.count.priced, "best_step_s": outcome.top.rows[0][0],
        }  # fmt: skip
    return out


# Sets of published runs that are followed one by one: name -> whether a run is in it.
SETS: dict[str, Callable[[RunOutcome], bool]] = {
    "core": lambda run: run.core,
    "core, dense": lambda run: run.core and "moe" not in run.regime,
    "core, experts": lambda run: run.core and "moe" in run.regime,
    "Korthikanti": lambda run: run.source.startswith("Korthikanti"),
    "SC21 table 1": lambda run: run.source.startswith("Narayanan") and run.source.endswith("Table 1"),
    "SC21 table 2, PTD-P": lambda run: run.source.endswith("SC21 Table 2") and run.family == "megatron-lm",
    "SC21 table 2, ZeRO-3": lambda run: run.source.endswith("SC21 Table 2") and run.family == "deepspeed",
    "vTrain multi-node": lambda run: run.source.endswith("ground_truth_multi.csv"),
    "vTrain single-node": lambda run: run.source.endswith("ground_truth_single.csv"),
    "SimuMax B200": lambda run: run.source.startswith("MooreThreads/SimuMax"),
}


def folds() -> dict[str, Any]:
    """Errors (percent) by the shipped fit and by fits that saw nothing like a run, and the report of
    `validate --folds`."""
    shipped = [outcome(case) for case in read_cases(shipped_files(), Problems([]))]
    predicted = json.loads(LEFT_OUT_FILE.read_text(encoding="utf-8"))
    stages = {"shipped": shipped, "left_out": [replace(run, step_s=predicted.get(run.id, [run.step_s])[0])
                                               for run in shipped]}  # fmt: skip
    errors: dict[str, dict[str, Any]] = {}
    for name, member in SETS.items():
        for stage, runs in stages.items():
            statistics = error_statistics([e for run in runs if member(run) and (e := run.step_error) is not None])
            if statistics:
                shown = {"median": round(100 * statistics.median, 1), "mean": round(100 * statistics.mean, 1)}
                errors.setdefault(name, {"count": statistics.count})[stage] = shown
    report = fold_report()
    return {
        "left_out_error_percent": errors,
        "left_out_order_percent": report.order and {"median": round(100 * report.order.median, 1),
                                                    "mean": round(100 * report.order.mean, 1)},
        "left_out_regret_percent": {
            kind: round(100 * item.choice.mean_regret, 1) for kind, item in report.sweeps.items()
        },
        "left_out_coverage_percent": {
            name: {"covers": round(100 * item.covered, 1), "unseen_cells": round(100 * item.covered_unseen, 1),
                   "half_width": round(100 * item.half_width, 1)} for name, item in report.coverage.items()
        },
    }  # fmt: skip


def accuracy() -> dict[str, Any]:
    """Errors (percent) of step time and memory on the published runs, and the regret of choosing by them."""
    validation = validate()
    summary, groups = validation.summary, validation.groups
    step_time, choice = summary.step_time, summary.choice

    def percent(statistics: ErrorStatistics | None) -> dict[str, Any]:
        counts = ("count", "too_little")
        values = asdict(statistics) if statistics else {}
        return {key: value if key in counts else round(100 * value, 1) for key, value in values.items()}

    return {
        "step_time_error_percent": {"core": percent(step_time.core), "all": percent(step_time.all)},
        "step_time_error_percent_by_source": {k: percent(v) for k, v in step_time.by_source.items()},
        "memory_error_percent": {name: percent(statistics) for name, statistics in summary.memory.items()},
        "choice_regret_percent": round(100 * choice.mean_regret, 1) if choice else None,
        "choice_regret_percent_by_sweep": {group.group: round(100 * group.regret, 1) for group in groups},
        "interval_coverage_percent": round(100 * summary.coverage.covered, 1) if summary.coverage else None,
        **folds(),
    }


def plan_path() -> dict[str, Any]:
    """NVIDIA's published runs of Megatron-Bridge, pinned as requests: how many have the step of `validate`, which
    prices by the closed form."""
    def step_of(request: Request) -> float:
        return plan(request, fastest=True).best.closed_s

    runs = [case for case in read_cases(shipped_files(), Problems([])) if case.stack_name.startswith(BRIDGE)]
    summary = PathSummary.of([compared(case, BRIDGE, step_of) for case in runs])
    return {**summary.to_dict(), "largest_difference": float(f"{summary.largest_difference:.1g}")}


def tuned_plans() -> dict[str, Any]:
    """The summary that `make tuned-plans` wrote last: how much of what experts chose is in the space, fits and wins."""
    written = json.loads((HERE / "tuned_plans.json").read_text(encoding="utf-8"))
    return {name: written[name] for name in ("counts", "in_space_share", "fit_share", "ratio_dense", "ratio_moe",
                                             "gains_moe", "slow_moe")}  # fmt: skip


def ranking() -> dict[str, Any]:
    """Percent that the first layout of a plan takes longer than the fastest of 200, both simulated, as
    `make ranking` wrote it last, and when."""
    written = json.loads((HERE / "ranking.json").read_text(encoding="utf-8"))
    rows = written["requests"]
    return {"ranking_date": written["date"], "ranking_regret_percent": max(row["regret"] for row in rows.values()),
            "ranking_regret_percent_by_request": {name: row["regret"] for name, row in rows.items()},
            "ranking_layouts": sum(row["layouts"] + row["discarded"] for row in rows.values())}  # fmt: skip


def calculon() -> dict[str, Any]:
    """The comparison with Calculon that `benchmarks/calculon.py` wrote last, with its date."""
    written = HERE / "calculon.json"
    return {"calculon": json.loads(written.read_text(encoding="utf-8"))} if written.exists() else {}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--suite", action="store_true", help="also time the test suite")
    options = parser.parse_args()
    yard = yardstick_ns()
    big = resolve(load_request(None, REQUESTS["llama-3.1-405b, 16,384 H100, any"]))
    figures: dict[str, Any] = {
        "python": platform.python_version(), "numpy": np.__version__,
        "yardstick_ns_per_element": round(yard, 2),
        "layouts_priced_per_s": round(layouts_per_second(big)),
        "simulated_operations_per_s": simulated_operations_per_s(),
        "searches": searches(),
        "placement": placement_figures(),
        **accuracy(),
        "plan_path": plan_path(),
        "tuned_plans": tuned_plans(),
        **ranking(),
        "search_peak_rss_gib": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20, 2),
        "plan_commands": plan_commands(),
        **limits(),
        **calculon(),
    }  # fmt: skip
    if options.suite:
        started = time.perf_counter()
        subprocess.run([sys.executable, "-m", "pytest", "-q", "-n", "2"], check=True, cwd=HERE.parent)
        figures["suite_s"] = round(time.perf_counter() - started)
    OUT.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
