"""`make document-degrees`: documents of mixed lengths against what was published and proven, as JSON.

- ratios: static over FlexSP's steps of Wikipedia, by FlexSP's printed constants, and by the ledger where `--rows FILE`
  names its published rows (the form of docs/concepts/trust.md), beside the published ratios.
- rules: Megatron's hybrid and dynamic rules over the exact program, on draws of 6 documents on 8 ranks, and over the
  search, on batches of 512 documents on 64 ranks, priced by FlexSP's constants.
- batches: CPU seconds and proven gap of a batch of 512 documents on 64 ranks, of the four cells of FlexSP and of the
  command of docs/guides/mixed-lengths.md.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from meshwright.cost_models.arrays import Array
from meshwright.planner import api
from meshwright.planner.accuracy.validate import validate
from meshwright.planner.batches import one_degree
from meshwright.planner.batches.batch_plan import batch_plan
from meshwright.planner.batches.consecutive import BUCKETS, consecutive_plan
from meshwright.planner.batches.costs import GroupCosts
from meshwright.planner.batches.draws import draw
from meshwright.planner.batches.dynamic_rule import dynamic_micro_batches
from meshwright.planner.batches.hybrid_rule import hybrid_micro_batches
from meshwright.planner.batches.published_costs import flexsp_costs
from meshwright.planner.batches.unlike_degrees import best_plan
from meshwright.planner.request.lengths import parse_lengths

# (model, thousand tokens) -> static step over FlexSP's: bars of figs/main-result.jpg of AFDWang/Hetu-Galvatron, flexsp.
PUBLISHED = {("gpt-6.7b", 192): 1.72, ("gpt-13b", 192): 1.59, ("gpt-6.7b", 384): 1.46, ("gpt-13b", 384): 1.43}
COMMAND = {"model": "llama-2-7b", "cluster": "dgx-a100-40gb:8", "lengths": "wikipedia", "max_len": "192K"}
RULES = {"hybrid": hybrid_micro_batches, "dynamic": dynamic_micro_batches}
_RULE_RANKS, _RULE_LONGEST = 8, 24_000  # of the draws that are planned exactly
LIMIT = 0.25  # of a rule over the plans here


def wikipedia(longest: int, size: int, num: int, multiple: int) -> list[Array]:
    """Batches of Wikipedia without documents beyond `longest` tokens, rounded up to a multiple."""
    lengths = tuple(pair for pair in parse_lengths("wikipedia").items() if pair[0] <= longest)
    return [np.ceil(drawn / multiple) * multiple for drawn in draw(lengths, size, num)]


def ratios(rows: Path | None) -> dict[str, Any]:
    """Static steps over per-sequence steps, by cell."""
    out: dict[str, Any] = {}
    for (model, length_k), published in PUBLISHED.items():
        ratio = round(printed_ratio(model, length_k), 2)
        out[f"{model} {length_k}K"] = {"published": published, "printed_constants": ratio}
    steps = {run.id: run.step_s for run in validate([rows]).rows if run.step_s} if rows is not None else {}
    for name in out if steps else ():
        model, length = name.lower().split()
        static_s, own_s = (steps[f"flexsp-{model}-{length}-wikipedia-{system}"]
                           for system in ("deepspeed-ulysses", "flexsp"))  # fmt: skip
        out[name]["ledger"] = round(static_s / own_s, 2)
    return out


def printed_ratio(model: str, length_k: int) -> float:
    """Static over per-sequence steps of a cell, by the printed constants."""
    costs, batches = flexsp_costs(model, length_k), wikipedia(length_k * 1024, 512, 30, 128)
    degree = one_degree.least_degree(max(float(batch.max()) for batch in batches), costs)
    static = [plan.step_s for batch in batches if (plan := one_degree.with_degree(batch, costs, degree))]
    return float(np.mean(static) / np.mean([consecutive_plan(batch, costs, BUCKETS).step_s for batch in batches]))


def rules() -> dict[str, Any]:
    """Few documents on few ranks, which are planned exactly, and whole batches."""
    out: dict[str, Any] = {}
    for name in RULES:
        for draws, more in (("6 documents on 8 ranks", beyond_exact(name)),
                            ("512 documents on 64 ranks", _beyond(name, *_many()))):  # fmt: skip
            out[f"{name}, {draws}"] = {
                "draws": len(more), "mean_percent": round(100 * float(np.mean(more)), 1),
                "most_percent": round(100 * max(more), 1), "above_25_percent": sum(each > LIMIT for each in more),
            }  # fmt: skip
    return out


def beyond_exact(rule: str) -> list[float]:
    """By how much steps of a rule of Megatron are longer than those of the exact program, relative, on 200 draws."""
    return _beyond(rule, *_few())


@cache
def _few() -> tuple[GroupCosts, list[tuple[Array, float]]]:
    """Draws that are planned exactly."""
    costs = flexsp_costs("gpt-6.7b", 192)
    few = replace(costs.up_to_degree(_RULE_RANKS), num_ranks=_RULE_RANKS)
    return few, _with_best(few, wikipedia(_RULE_LONGEST, 6, 200, 2 * _RULE_RANKS))


@cache
def _many() -> tuple[GroupCosts, list[tuple[Array, float]]]:
    """Whole batches."""
    costs = flexsp_costs("gpt-6.7b", 192)
    return costs, _with_best(costs, wikipedia(192 * 1024, 512, 10, 128))


def _with_best(costs: GroupCosts, drawn: Iterable[Array]) -> list[tuple[Array, float]]:
    """Batches with the seconds of the best step that is found."""
    return [(lengths, best_plan(lengths, costs).plan.step_s) for lengths in drawn]


def _beyond(rule: str, costs: GroupCosts, planned: Iterable[tuple[Array, float]]) -> list[float]:
    form, tokens, ranks = RULES[rule], costs.rank_tokens, costs.num_ranks
    return [batch_plan(form(lengths, tokens, ranks), lengths, costs).step_s / best_s - 1 for lengths, best_s in planned]


def batches() -> dict[str, Any]:
    """Seconds and gaps of single batches."""
    out = {}
    for model, length_k in PUBLISHED:
        costs = flexsp_costs(model, length_k)
        out[f"{model} {length_k}K"] = _planned(wikipedia(length_k * 1024, 512, 8, 128), costs)
    planned = api.plan_documents(**COMMAND)  # type: ignore[arg-type]
    out["command of the guide"] = _planned(planned.batches, planned.costs)
    return out


def _planned(drawn: Iterable[Array], costs: GroupCosts) -> dict[str, Any]:
    seconds, gaps = [], []
    for lengths in drawn:
        started = time.process_time()
        gaps.append(100 * best_plan(lengths, costs).gap)
        seconds.append(time.process_time() - started)
    return {"batches": len(gaps), "mean_s": round(float(np.mean(seconds)), 2), "most_s": round(max(seconds), 2),
            "mean_gap_percent": round(float(np.mean(gaps)), 2), "most_gap_percent": round(max(gaps), 2)}  # fmt: skip


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=Path, help="published rows of FlexSP")
    rows = parser.parse_args().rows
    print(json.dumps({"ratios": ratios(rows), "rules": rules(), "batches": batches()}, indent=1))
