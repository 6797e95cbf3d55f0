"""The layout that a plan chooses equals the stated rule, applied by hand to every layout of the space."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from meshwright.cli.main import main
from meshwright.cost_models.layouts import Layout
from meshwright.planner.drivers.families import best_of_families
from meshwright.planner.drivers.preference import prefer
from meshwright.planner.drivers.watch import Watch
from meshwright.planner.evaluation import intervals
from meshwright.planner.request.load import load_request
from meshwright.planner.request.resolve import Resolved, resolve
from meshwright.planner.search.executors import Here

from .test_search_exact import everything, price_all


def asked(model: str, gpu: str, seq_len: int, target: str, **more: Any) -> dict[str, Any]:
    return {"model": model, "gpu": gpu, "gpus": 2, "seq_len": seq_len, "global_batch": 8, "target": target, **more}


# Requests of small spaces, and why their choice is not the fastest layout.
CASES: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    # A layout with room is slower by between one and two times the indifference.
    "the fastest": (asked("llama-3.2-3b", "h100-sxm-80gb", 4096, "deepspeed"), ()),
    "room": (asked("llama-3.2-1b", "l40s", 4096, "any"), ("memory",)),
    "room on another axis": (asked("llama-3.2-3b", "h100-sxm-80gb", 16384, "meshwright"), ("memory",)),
    "room by offloading": (asked("llama-3.2-3b", "a100-sxm-40gb", 16384, "any"), ("memory",)),
    "fewer axes": (asked("llama-3.2-3b", "l40s", 4096, "any"), ("axes",)),
    "no offload": (
        asked("llama-3.2-3b", "l40s", 16384, "any", gpus=4, fix={"pp": 1, "micro_batch": 1}), ("memory", "offload"),
    ),
}  # fmt: skip


def by_hand(resolved: Resolved) -> str:
    """The id of the choice."""
    layouts = everything(resolved.space)
    assert layouts is not None
    estimate = price_all(resolved.space, resolved.rates, layouts)
    step_s, needed = estimate.step_s, estimate.device_bytes
    fits = (needed <= resolved.memory_bytes) & (estimate.host_bytes <= resolved.host_bytes)
    ids = {row: str(layouts.layout(row)) for row in np.flatnonzero(fits).tolist()}
    rows = sorted(ids, key=lambda row: (float(f"{step_s[row]:.9g}"), ids[row]))
    fastest = layouts.layout(rows[0])
    near = [row for row in rows if step_s[row] <= step_s[rows[0]] * (1 + intervals.indifference())]
    roomy = [row for row in near if needed[row] <= resolved.memory_bytes / intervals.memory_margin()]
    on_gpu = [row for row in near if layouts.layout(row).offload == 0]
    both = [row for row in roomy if layouts.layout(row).offload == 0]
    for preferred in (both, roomy if fastest.offload else [], on_gpu, rows[:1]):
        if preferred:
            axes = {row: sum(degree > 1 for degree in degrees(layouts.layout(row))) for row in preferred}
            return ids[min(preferred, key=lambda row: (axes[row], rows.index(row)))]
    raise AssertionError("the fastest layout is always there")


def degrees(layout: Layout) -> tuple[int, ...]:
    return (layout.tp, layout.cp, layout.pp, layout.ep, layout.etp)


@pytest.mark.parametrize("name", CASES)
def test_the_choice_is_that_of_the_rule(name: str) -> None:
    fields, reasons = CASES[name]
    resolved = resolve(load_request(None, fields))
    watch = Watch(None, None, Here())
    (_, chosen, _), preference = prefer(resolved, best_of_families(resolved, watch), watch)
    assert chosen == by_hand(resolved)
    assert (preference.reasons if preference else ()) == reasons


def test_the_plan_names_the_fastest_and_a_flag_takes_it(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["plan", "--model", "llama-3.2-1b", "--gpu", "l40s", "--gpus", "2", "--seq-len", "4096",
             "--global-batch", "8", "--target", "any"]  # fmt: skip
    assert main(words) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "1 dp2-mbs2-z1-rnone" in said
    assert "Layout 1 leaves room for what nine in ten published runs needed. The fastest, layout 2, leads" in said
    assert "Proven: layout 2 is the fastest of this space" in said
    assert main([*words, "--fastest"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "1 dp2-mbs4-z1-rsel(norm+act)" in said
    assert "Proven: no other layout of this space is faster" in said


def test_a_limit_that_is_asked_for_leaves_no_margin() -> None:
    """Then the user has set the room."""
    fields, _ = CASES["room"]
    resolved = resolve(load_request(None, {**fields, "max_memory": "40 GiB"}))
    watch = Watch(None, None, Here())
    outcome = best_of_families(resolved, watch)
    assert prefer(resolved, outcome, watch) == (outcome.top.rows[0], None)


def test_the_chance_of_running_out_falls_with_room() -> None:
    chances = [intervals.overflow_chance(80.0 * share, 80.0) for share in (1.2, 1.0, 0.95, 0.9, 0.8)]
    assert chances == sorted(chances, reverse=True)
    assert chances[0] > 0.9
    assert chances[-1] == 0
    assert intervals.overflow_chance(80.0 / intervals.memory_margin(), 80.0) == pytest.approx(1 - intervals.CLAIMED)
