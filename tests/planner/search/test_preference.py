"""The layout that a plan chooses equals the stated rule, applied by hand to every layout of the space."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from meshwright.cli.main import main
from meshwright.cost_models.layouts import Layout
from meshwright.planner.drivers.families import best_of_families
from meshwright.planner.drivers.preference import prefer
from meshwright.planner.drivers.simulated_order import WINDOW, SimulatedOrder
from meshwright.planner.drivers.watch import Watch
from meshwright.planner.evaluation import intervals
from meshwright.planner.request.load import load_request
from meshwright.planner.request.resolve import Resolved, resolve
from meshwright.planner.search import top_k
from meshwright.planner.search.executors import Here

from .test_search_exact import everything, price_all


def asked(model: str, gpu: str, seq_len: int, target: str, **more: Any) -> dict[str, Any]:
    return {"model": model, "gpu": gpu, "gpus": 2, "seq_len": seq_len, "global_batch": 8, "target": target, **more}


# Requests of small spaces, and why their choice is not the fastest layout.
CASES: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "the fastest": (asked("llama-3.2-3b", "h100-sxm-80gb", 4096, "deepspeed"), ()),
    "fewer axes": (asked("llama-3.2-3b", "l40s", 4096, "any", headroom="0"), ("axes",)),
    "fewer axes, both offload": (asked("llama-3.2-3b", "l40s", 16384, "any"), ("axes",)),
    "no offload": (asked("llama-3.2-3b", "l40s", 2048, "any"), ("offload",)),
}


def by_hand(resolved: Resolved) -> str:
    """The id of the choice."""
    layouts = everything(resolved.space)
    assert layouts is not None
    estimate = price_all(resolved.space, resolved.rates, layouts)
    step_s, needed = estimate.step_s, estimate.device_bytes
    fits = (needed <= resolved.budget_bytes) & (estimate.host_bytes <= resolved.host_bytes)
    ids = {row: str(layouts.layout(row)) for row in np.flatnonzero(fits).tolist()}
    rows = sorted(ids, key=lambda row: (float(f"{step_s[row]:.9g}"), ids[row]))
    near = [row for row in rows if step_s[row] <= step_s[rows[0]] * (1 + intervals.indifference())]
    on_gpu = [row for row in near if layouts.layout(row).offload == 0]
    for preferred in (on_gpu, near):
        if preferred:
            axes = {row: sum(degree > 1 for degree in degrees(layouts.layout(row))) for row in preferred}
            return ids[min(preferred, key=lambda row: (axes[row], rows.index(row)))]
    raise AssertionError("the fastest layout is always there")


def degrees(layout: Layout) -> tuple[int, ...]:
    return (layout.tp, layout.cp, layout.pp, layout.ep, layout.etp)


@pytest.mark.parametrize(("window", "most_kept"), [(0.0, 0), (WINDOW, 2), (WINDOW, 4), (WINDOW, 10**6)])
@pytest.mark.parametrize("name", CASES)
def test_the_choice_is_that_of_the_rule(
    monkeypatch: pytest.MonkeyPatch, name: str, window: float, most_kept: int
) -> None:  # fmt: skip
    """Whether the search kept none, some or all of the layouts that the choice is among."""
    monkeypatch.setattr(top_k, "MOST_KEPT", most_kept)
    fields, reasons = CASES[name]
    resolved = resolve(load_request(None, fields))
    watch = Watch(None, None, Here())
    order = SimulatedOrder(resolved, best_of_families(resolved, watch, window=window)).run(watch)
    (_, chosen, _), preference = prefer(order, watch)
    assert chosen == by_hand(resolved)
    assert (preference.reasons if preference else ()) == reasons


def test_the_plan_names_the_fastest_and_a_flag_takes_it(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["plan", "--model", "llama-3.2-3b", "--gpu", "l40s", "--gpus", "2", "--seq-len", "2048",
             "--global-batch", "8", "--target", "any"]  # fmt: skip
    assert main(words) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "Layout 1 offloads nothing. The fastest, layout 2, leads" in said
    assert "were simulated: layout 2 is the fastest." in said
    fastest = re.findall(r" 2 (\S*dp\d\S*)", said)[0]
    assert main([*words, "--fastest"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert f" 1 {fastest}" in said
    assert "were simulated: layout 1 is the fastest." in said
