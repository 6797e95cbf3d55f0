"""`make tuned-plans PLANS=FILE`: judge plans that experts tuned, and write the figures to benchmarks/tuned_plans.json.

The figures are those of `meshwright validate --plans`: how many plans the space has, how many are said to fit, and the
step of each over that of the best layout for its request, of dense models and of those with experts.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from meshwright.planner.accuracy.tuned_plan_outcome import PlanOutcome
from meshwright.planner.accuracy.tuned_plans import validate_plans

OUT = Path(__file__).parent / "tuned_plans.json"
DIGITS = 4


def figures(paths: Sequence[Path], jobs: int) -> dict[str, Any]:
    """The summary, and one line per plan."""
    started = time.perf_counter()
    validation = validate_plans(paths, jobs=jobs, keep_going=True)
    summary = {name: value for name, value in asdict(validation.summary).items() if name != "assumptions"}
    return {
        "seconds": round(time.perf_counter() - started),
        "left_out": len(validation.problems),
        **_rounded(summary),
        "rows": {plan.id: _rounded(_line(plan)) for plan in validation.rows},
    }


def _line(plan: PlanOutcome) -> dict[str, Any]:
    if plan.refused is not None:
        return {"refused": plan.refused}
    best = None if plan.best_layout == plan.layout else plan.best_layout
    return {"fits": plan.fits, "step_s": plan.step_s, "ratio": plan.ratio, "best": best,
            **({} if plan.gains is None else {"gains": asdict(plan.gains), "kin": plan.kin})}  # fmt: skip


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}")
    if isinstance(value, dict):
        return {name: _rounded(item) for name, item in value.items()}
    return [_rounded(item) for item in value] if isinstance(value, list | tuple) else value


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("plans", nargs="+", type=Path, help="files of tuned plans")
    parser.add_argument("--jobs", type=int, default=2, help="processes that search [2]")
    options = parser.parse_args()
    result = figures(options.plans, options.jobs)
    OUT.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(json.dumps({name: value for name, value in result.items() if name != "rows"}, indent=1))


if __name__ == "__main__":
    main()
