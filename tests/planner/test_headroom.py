"""Headroom: what a chosen layout leaves free, and where it does not count."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from meshwright.cli.main import main
from meshwright.cli.text import gib
from meshwright.planner.document.plan import Plan
from meshwright.planner.request import headroom
from meshwright.planner.request.load import changed_request, load_request, request_from_dict, request_to_dict
from meshwright.planner.request.resolve import Resolved, resolve
from meshwright.planner.search.tasks import Task, answer
from meshwright.planner.studies.changes import apply
from meshwright.planner.studies.pricing import price_held, replanned

from meshwright import evaluate, plan
from meshwright.errors import InputError, NoFeasibleLayoutError

from ..snapshots import ROOT
from .search.test_search_exact import everything, price_all

SMALL: dict[str, Any] = {
    "model": "llama-3.2-1b", "gpu": "l40s", "gpus": 2, "seq_len": 4096, "global_batch": 8, "target": "any",
}  # fmt: skip
GIB = 2**30


def resolved_of(**more: Any) -> Resolved:
    return resolve(load_request(None, {**SMALL, **more}))


def layouts_by_bytes(resolved: Resolved) -> tuple[list[float], list[float]]:
    """(bytes, seconds) of every layout that the host has room for, least bytes first."""
    layouts = everything(resolved.space)
    assert layouts is not None
    estimate = price_all(resolved.space, resolved.rates, layouts)
    there = estimate.host_bytes <= resolved.host_bytes
    pairs = sorted(zip(estimate.device_bytes[there].tolist(), estimate.step_s[there].tolist(), strict=True))
    return [num_bytes for num_bytes, _ in pairs], [seconds for _, seconds in pairs]


def test_pages_state_the_headroom_of_the_published_runs() -> None:
    share = headroom.default_share()
    choice = (ROOT / "docs" / "concepts" / "choice.md").read_text()
    assert f"headroom is {share:.1%}".replace("%", " %") in choice
    assert f"stayed below {1 / (1 - share):.3f} times" in choice
    assert f"leaves {share:.1%}".replace("%", " %") in (ROOT / "docs" / "guides" / "plan.md").read_text()


def test_the_default_is_the_memory_that_the_chance_asks_for() -> None:
    """The limit less the default, and the chance of running out there, come from one distribution."""
    at_the_limit = headroom.overflow_chance(80.0 * (1 - headroom.default_share()), 80.0)
    assert at_the_limit == pytest.approx(headroom.CHANCE)
    chances = [headroom.overflow_chance(80.0 * share, 80.0) for share in (1.2, 1.0, 0.95, 0.9, 0.8)]
    assert chances == sorted(chances, reverse=True)
    assert chances[0] > 0.9
    assert chances[-1] == 0


def test_a_plan_is_the_fastest_that_leaves_the_headroom() -> None:
    resolved = resolved_of()
    needed, step_s = layouts_by_bytes(resolved)
    found = plan(**SMALL, fastest=True)
    within = [seconds for num_bytes, seconds in zip(needed, step_s, strict=True) if num_bytes <= resolved.budget_bytes]
    fits = [seconds for num_bytes, seconds in zip(needed, step_s, strict=True) if num_bytes <= resolved.memory_bytes]
    assert found.best.step_s == pytest.approx(min(within))
    assert min(fits) < min(within)  # else this request shows nothing
    assert all((row.overflow_chance or 0.0) <= headroom.CHANCE for row in found.candidates)
    assert found.resolved["headroom_bytes"] == pytest.approx(resolved.headroom_bytes)
    assert plan(**SMALL, fastest=True, headroom=0).best.step_s == pytest.approx(min(fits))


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, lambda total: total * headroom.default_share()),
        ({"headroom": "5%"}, lambda total: total * 0.05),
        ({"headroom": " 2.5 % "}, lambda total: total * 0.025),
        ({"headroom": "4 GiB"}, lambda _: 4 * GIB),
        ({"headroom": "3GB"}, lambda _: 3e9),
        ({"headroom": 0}, lambda _: 0.0),
        ({"headroom": "0"}, lambda _: 0.0),
        ({"max_memory": "40 GiB"}, lambda _: 0.0),
        ({"max_memory": "40 GiB", "headroom": "10%"}, lambda _: 4 * GIB),
    ],
)
def test_what_is_left(given: dict[str, Any], expected: Callable[[float], float]) -> None:
    resolved = resolved_of(**given)
    assert resolved.headroom_bytes == pytest.approx(expected(resolved.memory_bytes))
    assert resolved.budget_bytes == pytest.approx(resolved.memory_bytes - resolved.headroom_bytes)


def test_a_request_keeps_its_headroom(tmp_path: Path) -> None:
    path = tmp_path / "request.yaml"
    path.write_text("model: llama-3.2-1b\ncluster: 2xl40s\nworkload: {headroom: 5%}\n")
    read = load_request(path)
    assert read.workload.headroom == "5%"
    assert read.origins["workload.headroom"].endswith("line 3")
    assert request_to_dict(request_from_dict(request_to_dict(read))) == request_to_dict(read)
    assert changed_request(read, {("workload", "headroom"): "1 GiB"}).workload.headroom == f"{GIB} B"
    assert "headroom" not in request_to_dict(load_request(None, SMALL))["workload"]  # digests of old requests stay


@pytest.mark.parametrize("text", ["7", "-5%", "-1 GiB", "100%", "a lot", "5 Gb", "", "true", "nan%"])
def test_bad_headrooms_are_refused(text: str) -> None:
    with pytest.raises(InputError, match="headroom"):
        load_request(None, {**SMALL, "headroom": text}, flags=True)


def test_a_headroom_of_all_memory_is_refused() -> None:
    with pytest.raises(InputError, match=r"leaves nothing of the 44\.7"):
        resolved_of(headroom="100 GiB", gpu="l40s", max_memory="48 GB")


def test_given_layouts_are_judged_by_all_of_the_memory() -> None:
    """The fastest layout without headroom needs more than the budget: it fits, and its chance is shown."""
    tight = plan(**SMALL, fastest=True, headroom=0).best
    resolved = resolved_of()
    assert resolved.budget_bytes < tight.device_bytes <= resolved.memory_bytes
    judged = evaluate(None, tight.layout_id, **SMALL)
    assert judged.warnings == plan(**SMALL).warnings
    assert (judged.best.overflow_chance or 0.0) > headroom.CHANCE
    assert price_held(tight.to_layout(), [resolved])[0].runs


def test_searches_of_studies_and_targets_leave_it_too() -> None:
    resolved = resolved_of()
    for task in (
        Task.of(resolved, "step"),
        Task.of(resolved, "frontier"),
        Task.of(resolved, "step", target="megatron"),
    ):
        rows = answer(task).rows
        assert rows
        assert all(needed <= resolved.budget_bytes for _, needed, _ in rows)
    assert replanned(resolved, []).device_bytes <= resolved.budget_bytes


def shrunk(share: float) -> Resolved:
    """The request on GPUs of so little memory that the smallest layout takes `share` of it."""
    least = layouts_by_bytes(resolved_of())[0][0]
    return apply(resolved_of(), {"gpu.memory.capacity": least / share})


def planned(resolved: Resolved) -> Plan:
    """The plan of a request on GPUs that no catalogue has."""
    from meshwright.planner.api import plan_resolved
    from meshwright.planner.drivers.watch import Watch
    from meshwright.planner.search.executors import Here

    return plan_resolved(resolved, Watch(None, None, Here()), 0, fastest=True)


def test_where_nothing_leaves_it_the_plan_leaves_most_and_warns() -> None:
    tight = shrunk(0.97)
    found = planned(tight)
    assert found.best.device_bytes == pytest.approx(tight.memory_bytes * 0.97)
    assert "no layout leaves the headroom" in found.warnings[-1]
    assert f"{found.best.overflow_chance:.0%}" in found.warnings[-1]
    roomy = planned(shrunk(1 - headroom.default_share() - 0.001))
    assert not any("headroom" in warning for warning in roomy.warnings)


def test_where_nothing_leaves_it_a_layout_is_planned_anew_as_a_plan_is() -> None:
    tight = shrunk(0.97)
    found = replanned(tight, [])
    assert found.layout_id == planned(tight).best.layout_id
    assert found.runs
    assert not found.eligible
    with pytest.raises(NoFeasibleLayoutError, match="leaves a headroom of"):
        replanned(replace(tight, request=changed_request(tight.request, {("workload", "headroom"): "5%"})), [])
    with pytest.raises(NoFeasibleLayoutError, match="and has"):
        replanned(shrunk(1.01), [])


def test_where_nothing_leaves_what_was_asked_for_there_is_no_plan() -> None:
    tight = shrunk(0.97)
    request = changed_request(tight.request, {("workload", "headroom"): "5%"})
    with pytest.raises(NoFeasibleLayoutError, match="leaves a headroom of") as caught:
        planned(replace(tight, request=request))
    assert "`--headroom 0`" in caught.value.hint
    assert planned(replace(tight, request=changed_request(request, {("workload", "headroom"): "3%"}))).best
    with pytest.raises(NoFeasibleLayoutError, match="and has"):  # without any headroom it does not fit either
        planned(shrunk(1.01))


def test_more_memory_never_makes_a_plan_slower() -> None:
    """Also where the first plans leave less than the headroom."""
    shares = [0.99999, 0.99, 0.95, 0.92, 0.906, 0.904, 0.88, 0.8, 0.7, 0.5, 0.3]
    plans = [planned(shrunk(share)) for share in shares]
    tight = ["no layout leaves" in " ".join(found.warnings) for found in plans]
    assert tight == sorted(tight, reverse=True)
    assert tight[0]
    assert not tight[-1]
    steps = [found.best.step_s for found in plans]
    assert steps == sorted(steps, reverse=True)
    assert steps[0] > steps[-1]


@pytest.mark.slow
def test_groups_of_nodes_leave_it_each_by_its_own_memory() -> None:
    asked: dict[str, Any] = {
        "model": "llama-3.2-3b", "cluster": "dgx-h100:1+dgx-a100-80g:1", "seq_len": 4096, "global_batch": 64,
        "target": "any", "top": 3,
    }  # fmt: skip
    for given, most in ((None, 1 - headroom.default_share()), ("40%", 0.6)):
        found = plan(**asked, headroom=given)
        for row in found.candidates:
            assert row.spread is not None
            assert all(use.device_bytes <= use.memory_bytes * most * (1 + 1e-9) for use in row.spread.islands)


def test_the_screen_shows_the_margin(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["plan", "--model", "llama-3.2-1b", "--gpu", "l40s", "--gpus", "2", "--seq-len", "4096",
             "--global-batch", "8", "--target", "any", "--headroom", "6%"]  # fmt: skip
    assert main([*words, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    used = max(stage["device_bytes"] for stage in found["candidates"][0]["memory"])
    limit = found["resolved"]["memory_bytes"]
    assert main(words) == 0
    said = " ".join(capsys.readouterr().out.split())
    margin = f"{gib(used)} of {gib(limit)} GiB per GPU, {gib(limit - used)} left (headroom {gib(0.06 * limit)})"
    assert f"Memory: {margin}; chance of running out" in said
