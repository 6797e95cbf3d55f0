"""`make search-table`: what the search has to reach, and what it takes here, in CPU seconds of one core.

Measured anew by the functions of `make figures` and of mixed_clusters.py, in a few minutes; no test asserts it. Layouts
per second are by the clock: run it on a machine that is idle.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

from figures import REQUESTS, layouts_per_second
from layerwise import measure_all as layerwise_figures
from meshwright.cost_models.layouts import parse
from meshwright.cost_models.quantities.stages import Partition
from meshwright.planner.document.partitions import stages_by_layout
from meshwright.planner.evaluation.staged import Staged
from meshwright.planner.request.load import load_request
from meshwright.planner.request.resolve import Resolved, resolve
from meshwright.planner.search.run import search_of
from meshwright.planner.stages.coefficients import problem_of
from meshwright.planner.stages.solve import solve
from mixed_clusters import measure as mixed_figures
from placement import measure as placement_figures
from plan_commands import COMMANDS
from plan_commands import measure as plan_commands

_FINALISTS = 5
_BY_HAND = "tp2-pp16-vpp2-dp64-ep64-mbs1-z1-rsel(norm+act+mla)"  # DeepSeek-V3: 61 layers and an MTP module


def cpu_seconds(action: Callable[[], Any]) -> tuple[float, Any]:
    started = time.process_time()
    result = action()
    return time.process_time() - started, result


def requested(name: str) -> Resolved:
    return resolve(load_request(None, REQUESTS[name]))


def simulated_search(name: str) -> str:
    """Search of a whole space, and its best layouts simulated."""
    resolved = requested(name)

    def run() -> int:
        outcome = search_of(resolved, resolved.space, top=_FINALISTS).run()
        for _, _, layout in outcome.top.rows:
            _ = Staged.of(resolved, layout, simulate=True).step_s
        return outcome.count.total

    seconds, total = cpu_seconds(run)
    return f"{seconds:.1f} s for {total:,} layouts"


def deepseek_stages() -> str:
    """The program of the stages, from even ones."""
    resolved, layout = requested("deepseek-v3, 2,048 H100, any"), parse(_BY_HAND)

    def score(base: Staged, partition: Partition) -> float:
        split = base.split(partition)
        return split.step_s if split.device_bytes <= resolved.budget_bytes else float("inf")

    def run() -> float:
        base = Staged.of(resolved, layout, simulate=True)
        problem = problem_of(base, resolved.budget_bytes, separate_recompute=False)
        even = Partition(stages_by_layout(layout, resolved.model.num_layers)[0])
        return solve(problem, partial(score, base), incumbent=even, rounds=2, good_enough=0.01).gap

    seconds, gap = cpu_seconds(run)
    return f"{seconds:.1f} s, gap {100 * gap:.1f} %"


def placements() -> list[tuple[str, str, str, str]]:
    measured = placement_figures()
    sixteen, exact, large = measured.values()
    return [
        ("placement: 20 matrices of 16 nodes, times less than a random order", "1.54-1.61x on one", "median 1.5x",
         f"{sixteen['times_less_median']}x, gap {sixteen['gap_percent_median']} %"),
        ("placement: 8 nodes, equal to the exact optimum", "", "20 of 20", f"{exact} of 20"),
        ("placement, 512 nodes", "", "30 s", f"{large['cpu_seconds_median']} s, gap {large['gap_percent_median']} %"),
    ]  # fmt: skip


def strategies() -> list[tuple[str, str, str, str]]:
    """A strategy of its own for every layer: every case of layerwise/search.py."""
    elsewhere = {"7B, 28 layers, 8 GPUs": "111 s", "80 layers, 64 GPUs": "> 120 s, stopped"}
    return [
        (f"layer-wise: {x['case']}, all chunk counts", elsewhere.get(x["case"], ""), f"{x['reach_cpu_seconds']:g} s",
         f"{x['cpu_seconds']} s, {x['gain_percent']} % faster than one strategy for all, gap {x['gap_percent']} %")
        for x in layerwise_figures()
    ]  # fmt: skip


def mixed_clusters() -> list[tuple[str, str, str, str]]:
    """A row per example: the plan beside the best even one, by the same numbers."""
    return [
        (f"mixed cluster {name}: the plan beside an even one", "", "no slower",
         f"{x['step_s']} s beside {x['even_s']} s, gap {x['gap_percent']} %, {x['cpu_s']} s")
        for name, x in mixed_figures().items()
    ]  # fmt: skip


def commands() -> list[tuple[str, str, str, str]]:
    """A row per plan: the whole command, cold."""
    return [
        (f"plan {name}, whole command", "", f"{COMMANDS[name].reach_s:g} s",
         f"{x['cpu_s']} s, of them the search {x['search_cpu_s']} s, {x['peak_mib']} MiB")
        for name, x in plan_commands().items()
    ]  # fmt: skip


def rows() -> list[tuple[str, str, str, str]]:
    """(what, best elsewhere, to reach, measured)."""
    large, larger = "llama-3.1-405b, 16,384 H100, any", "llama-3.1-405b, 100,000 H100, any"
    return [
        ("layouts priced per second, time and memory", "270-355 (Calculon)", "300,000",
         f"{layouts_per_second(requested(large)):,.0f}"),
        (f"{large}, finalists simulated", "206 s for 59,040 layouts", "5 s", simulated_search(large)),
        (larger, "", "15 s", simulated_search(larger)),
        ("stages of DeepSeek-V3, pp 16 x vpp 2", "by hand", "5 s, gap 1 %", deepseek_stages()),
        *commands(),
        *strategies(),
        *placements(),
        *mixed_clusters(),
    ]  # fmt: skip


def main() -> None:
    table = [("what", "best elsewhere", "to reach", "measured"), *rows()]
    widths = [max(len(row[column]) for row in table) for column in range(4)]
    for row in table:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


if __name__ == "__main__":
    main()
