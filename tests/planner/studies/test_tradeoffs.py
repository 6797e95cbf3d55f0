"""Frontiers and numbers of GPUs: equal to looking at every number by itself, whatever was bounded away."""

from __future__ import annotations

import json
import math
import os
import re
import shlex
from functools import cache
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from meshwright.planner.request.gpu_counts import GpuRange, counts, parse_range
from meshwright.planner.request.load import Request, load_request
from meshwright.planner.request.resolve import resolve
from meshwright.planner.search import tasks as search_tasks
from meshwright.planner.search.executors import Here
from meshwright.planner.search.tasks import Task, answer
from meshwright.planner.studies import gpu_curve as gpu_curve_module
from meshwright.planner.studies import tradeoffs
from meshwright.planner.studies.gpu_curve import Curve, gpu_curve
from meshwright.planner.studies.tradeoffs import AXES, Frontier, TradeoffChoice, frontier, parse_axes, unbeaten

from meshwright.errors import InputError, MeshwrightError, NoFeasibleLayoutError

from ...snapshots import ROOT, check, run_here

DAY_S = 86400.0
GPUS = "1,2,4,6,8,16"
SOME_AXES = [*combinations(AXES, 2), ("time", "gpus", "cost"), tuple(AXES)]


@pytest.fixture(autouse=True)
def _short_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three rounds, so that the later ones start from what the earlier ones found."""
    monkeypatch.setattr(search_tasks, "ROUND", 2)


def request(**more: Any) -> Request:
    asked = {"model": "llama-3.2-1b", "cluster": "aws-p5.48xlarge", "global_batch": 64, "total_tokens": "20B"}
    return load_request(None, {**asked, "fix": {"micro_batch": 1, "cp": 1}, **more})


def numbers() -> GpuRange:
    found = parse_range(GPUS)
    assert found is not None
    return found


@cache
def alone(aim: Any) -> tuple[TradeoffChoice, ...]:
    """What is best, or the frontier of time and memory, on each number of GPUs, searched by itself."""
    tried = counts(request(), numbers())
    founds = [tried.on(number) for number in tried.numbers]
    return tuple(TradeoffChoice.of(found, row) for found in founds for row in answer(Task.of(found, aim)).rows)


def beats(one: TradeoffChoice, other: TradeoffChoice, axes: tuple[str, ...]) -> bool:
    a, b = ([getattr(each, AXES[name]) for name in axes] for each in (one, other))
    return all(x <= y for x, y in zip(a, b, strict=True)) and a != b


def mismatch(axes: tuple[str, ...]) -> str | None:
    every = alone("frontier")
    expected = {tuple(getattr(one, AXES[name]) for name in axes)
                for one in every if not any(beats(other, one, axes) for other in every)}  # fmt: skip
    found = frontier(request(), axes, numbers())
    got = {tuple(getattr(one, AXES[name]) for name in axes) for one in found.points}
    assert len(got) == len(found.points)
    return None if got == expected else f"{axes}: {sorted(got ^ expected)}"


@pytest.mark.parametrize("axes", SOME_AXES, ids="-".join)
def test_frontier_over_numbers_of_gpus(axes: tuple[str, ...]) -> None:
    """Equal to all points of all numbers of GPUs that none beats."""
    assert mismatch(axes) is None


def test_rivals_that_beat_too_much_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fewer GPUs credited with a fifth of their time take points away."""
    honest = Task.of

    def task(*arguments: Any, rivals: Any = (), **more: Any) -> Task:
        return honest(*arguments, rivals=tuple((0.2 * s, b) for s, b in rivals), **more)

    monkeypatch.setattr(Task, "of", task)
    assert mismatch(("time", "memory", "gpus")) is not None


@given(st.lists(st.tuples(*[st.integers(1, 4)] * 3), min_size=1, max_size=12))
def test_unbeaten(rows: list[tuple[int, int, int]]) -> None:
    choices = [TradeoffChoice(num_gpus=n, layout_id=str(i), step_s=t, device_bytes=b, tokens_per_s=1,
                              usd_per_mtoken=None)
               for i, (t, b, n) in enumerate(rows)]  # fmt: skip
    axes = ("time", "memory", "gpus")
    expected = {row for row in rows if not any(all(x <= y for x, y in zip(o, row, strict=True)) and o != row
                                               for o in rows)}  # fmt: skip
    kept = [(int(one.step_s), int(one.device_bytes), one.num_gpus) for one in unbeaten(choices, axes)]
    assert sorted(expected) == kept


def test_overview_begins_with_the_ends() -> None:
    found = frontier(request(gpus=8), ("time", "memory"))
    assert set(found.overview[:2]) == {0, len(found.points) - 1}
    assert sorted(found.overview) == list(range(len(found.points)))
    assert found.space.total == sum(found.space.ruled_out.values()) + sum(
        getattr(found.space, name) for name in ("dominated", "out_of_memory", "bounded", "priced"))  # fmt: skip


def test_jobs_change_no_byte() -> None:
    one = frontier(request(), ("time", "memory", "gpus"), numbers())
    two = frontier(request(), ("time", "memory", "gpus"), numbers(), jobs=2)
    assert one.model_dump_json() == two.model_dump_json()


@cache
def curve() -> Curve:
    return gpu_curve(request(), numbers())


def test_curve_has_the_best_of_each_number() -> None:
    best = {point.num_gpus: point.best for point in curve().points if point.best}
    assert best == {one.num_gpus: one for one in alone("step")}
    assert max(point.efficiency or 0.0 for point in curve().points) == 1.0


@pytest.mark.parametrize("share", [1.0, 0.6, 0.3, 0.15])
def test_deadline_finds_the_cheapest(share: float) -> None:
    """The same as looking at every number of GPUs, and what was bounded away is neither in time nor cheaper."""
    days = {point.num_gpus: point.best for point in curve().points if point.best}
    deadline = share * max(one.days or 0.0 for one in days.values())
    met = [one for one in days.values() if (one.days or 0.0) <= deadline]
    cheapest = min(met, key=lambda one: (one.cost_usd, one.num_gpus))
    found = gpu_curve(request(), numbers(), deadline * DAY_S)
    assert found.chosen == cheapest.num_gpus
    for point in found.points:
        here = days.get(point.num_gpus)
        if point.status == "too slow":
            assert here is None or (here.days or 0.0) > deadline
        if point.status == "dearer":
            assert here is None or (here.cost_usd or 0.0) >= (cheapest.cost_usd or 0.0)


def test_a_bound_on_the_price_that_is_too_high_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """A second said to cost ten times what it does hides the cheapest number."""
    honest = gpu_curve_module._price_per_s
    deadline = max(point.best.days or 0.0 for point in curve().points if point.best) * DAY_S
    right = gpu_curve(request(), numbers(), deadline).chosen
    monkeypatch.setattr(gpu_curve_module, "_price_per_s", lambda found: 10 * honest(found))
    assert gpu_curve(request(), numbers(), deadline).chosen != right


def test_a_deadline_that_no_number_meets() -> None:
    """Says the least days, and how many GPUs would do."""
    least = min((point.best.days or 0.0) for point in curve().points if point.best)
    with pytest.raises(NoFeasibleLayoutError) as caught:
        gpu_curve(request(), numbers(), 0.5 * least * DAY_S)
    assert caught.value.details["least_days"] == pytest.approx(least)
    enough = caught.value.details["enough_gpus"]
    fast = gpu_curve(request(), GpuRange(16, enough, (16, enough)), 0.5 * least * DAY_S)
    assert fast.chosen == enough
    assert f"{enough} GPUs take" in caught.value.hint


class _Interrupted:
    """An executor that Ctrl-C meets after three answers."""

    answers = 0

    def run(self, function: Any, tasks: Any) -> Any:
        for index, task in enumerate(tasks):
            if self.answers == 3:
                raise KeyboardInterrupt
            self.answers += 1
            yield index, function(task)


def test_interrupt_keeps_what_was_found(monkeypatch: pytest.MonkeyPatch) -> None:
    from contextlib import nullcontext

    monkeypatch.setattr(tradeoffs, "opened", lambda *_: nullcontext(_Interrupted()))
    found = frontier(request(), ("time", "gpus"), numbers())
    assert (found.stopped, found.proven) == ("interrupted", False)
    assert [one.num_gpus for one in found.points] == [4, 2, 1]


def test_time_limit_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rounds that the limit leaves out are not reached."""
    ends = property(lambda self: 0.0 if self.done >= 2 else 1e12, lambda self, value: None)
    monkeypatch.setattr(search_tasks.Rounds, "ends_s", ends, raising=False)
    found = gpu_curve(request(), numbers(), time_limit_s=1.0)
    assert found.stopped == "time limit"
    assert [point.status for point in found.points] == ["searched"] * 2 + ["not reached"] * 4


def test_a_search_cut_short_is_no_answer() -> None:
    """All tasks share one end, and the first that is cut ends the rest; what it found is shown as such."""
    tried = counts(request(), numbers())
    late = [Task.of(tried.on(number), "step", ends_s=0.0) for number in tried.numbers[-3:]]
    calls: list[float] = []
    answers = search_tasks.in_order(Here(), late, lambda count, best: calls.append(best))
    assert [one.stopped for one in answers] == ["time limit"] * 3
    assert not calls  # the first one ends within its first batch of meshes
    assert gpu_curve_module._tried(tried.on(16), answers[0], math.inf).status in ("cut short", "not reached")


def test_interrupt_ends_all_comparisons() -> None:
    """Ctrl-C inside of a search, which keeps its best: those after it do not start."""
    tried = counts(request(), numbers())
    tasks = [Task.of(tried.on(number), "step") for number in tried.numbers[-2:]]
    calls: list[float] = []

    def interrupt(count: Any, best: float) -> None:
        calls.append(best)
        raise KeyboardInterrupt

    answers = search_tasks.in_order(Here(), tasks, interrupt)
    assert [one.stopped for one in answers] == ["interrupted"] * 2
    assert len(calls) == 1


@pytest.mark.parametrize(
    ("text", "expected"),
    [("8..24", [8, 16, 24]), ("6..17", [6, 7, 8, 16]), ("1..9", [*range(1, 9)]), ("16,8", [8, 16])],
)
def test_which_numbers_are_tried(text: str, expected: list[int]) -> None:
    """Any number within a node, whole nodes beyond."""
    asked = parse_range(text)
    assert asked is not None
    tried = counts(request(), asked)
    assert list(tried.numbers) == expected
    assert [tried.on(number).cluster.num_gpus for number in expected] == expected


def test_a_described_cluster_grows_by_nodes() -> None:
    """As the same request with that many nodes written out, price and all."""
    group = {"node": "dgx-h100", "count": 2, "price": "40 USD/h"}
    tried = counts(request(cluster={"groups": [group]}), GpuRange(8, 32))
    grown = resolve(request(cluster={"groups": [{**group, "count": 4}]}))
    assert tried.on(32).cluster == grown.cluster
    assert tried.on(32).cluster.usd_per_hour == 160


def test_a_cluster_file_elsewhere_keeps_what_was_measured(tmp_path: Path) -> None:
    """Its profiles are named from where it lies."""
    memory = {"kind": "memory-profile", "gpu": "h100-sxm-80gb", "overheads": {"reserve_share": 0.03}}
    (tmp_path / "memory.yaml").write_text(json.dumps(memory), encoding="utf-8")
    file = tmp_path / "cluster.yaml"
    file.write_text("groups: [{node: dgx-h100, count: 2}]\nprofiles: [memory.yaml]\n", encoding="utf-8")
    tried = counts(request(cluster=str(file)), GpuRange(8, 32))
    assert tried.on(32).cluster.measured == resolve(request(cluster=str(file))).cluster.measured != {}


@pytest.mark.parametrize(
    "text", ["8..", "..8", "8..4", "8..8", "0..8", "a..b", "8,", "8,8", "1..2..3", "9..15", "8,12", "8..1000000"]
)
def test_ranges_that_are_wrong(text: str) -> None:
    def tried() -> None:
        if asked := parse_range(text):
            counts(request(), asked)

    with pytest.raises(InputError) as caught:
        tried()
    assert caught.value.hint


@pytest.mark.parametrize("text", ["time", "tim,memory", "time,time", "", "time,memory,speed"])
def test_axes_that_are_wrong(text: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_axes(text)
    assert caught.value.hint


def test_axes_that_cannot_be_traded() -> None:
    for axes, more in ((("time", "gpus"), {"gpus": 8}), (("time", "cost"), {"gpus": 8}),
                       (("time", "cost", "memory"), {"cluster": "8xrtx-4090"})):  # fmt: skip
        with pytest.raises(MeshwrightError):
            frontier(request(**more), axes)


PLAN = ["plan", "--model", "llama-3.2-1b", "--cluster", "aws-p5.48xlarge", "--global-batch", "64", "--fix", "cp=1"]
TOKENS = ["--total-tokens", "20B"]


@pytest.mark.parametrize(
    ("name", "args", "code"),
    [
        ("frontier", ["--gpus", "16", "--pareto", "time,memory"], 0),
        ("curve", ["--gpus", "6..24", *TOKENS], 0),
        ("deadline", ["--gpus", "6..24", *TOKENS, "--deadline", "10h"], 0),
        ("deadline-missed", ["--gpus", "4..16", *TOKENS, "--deadline", "2h"], 1),
        ("bad-range-backwards", ["--gpus", "24..4"], 2),
        ("bad-pareto-name", ["--gpus", "16", "--pareto", "tme,memory"], 2),
        ("bad-pareto-one", ["--gpus", "16", "--pareto", "time"], 2),
        ("bad-jobs", ["--gpus", "6..24", "--jobs", "0"], 2),
        ("bad-executor", ["--gpus", "6..24", "--executor", "dsk://here:1"], 2),
        ("bad-techniques", ["--gpus", "8,16", "--allow-technique", "diloco"], 2),
        ("bad-objective", ["--gpus", "8,16", "--objective", "memory"], 2),
        ("bad-time-limit", ["--gpus", "8,16", "--time-limit", "0s"], 2),
        ("bad-deadline-alone", ["--gpus", "16", "--deadline", "3d"], 2),
    ],
)
def test_screens(name: str, args: list[str], code: int, tmp_path: Path) -> None:
    done = run_here(*PLAN, *args, cwd=tmp_path)
    assert done.code == code
    check(f"tradeoff-{name}", done)


def test_deadline_writes_the_plan_it_chose(tmp_path: Path) -> None:
    """A plan like any other, on that number of GPUs; and the answer as one JSON document."""
    args = [*PLAN, "--gpus", "8,16", *TOKENS, "--deadline", "10h", "-o", "plan.json", "--json"]
    document = json.loads(run_here(*args, cwd=tmp_path).out)
    kept = json.loads((tmp_path / "plan.json").read_text())
    assert Curve.model_validate(document).chosen == 16
    assert (kept["kind"], kept["request"]["gpus"]) == ("plan", 16)
    frontiers = json.loads(run_here(*PLAN, "--gpus", "8", "--pareto", "time,memory", "--json", cwd=tmp_path).out)
    assert Frontier.model_validate(frontiers).proven


def test_a_gpu_alone_is_enough() -> None:
    done = run_here("plan", "--model", "llama-3.2-1b", "--gpu", "h100", "--gpus", "1,2", "--deadline", "90d",
                    "--total-tokens", "1B")  # fmt: skip
    assert done.code == 0, done
    assert "<- cheapest" in done.out


GUIDE = ROOT / "docs/guides/plan.md"
BLOCKS = re.findall(r"^```\n(meshwright plan [^\n]*(?:--pareto|--deadline)[^\n]*)\n```\n\n```\n(.*?)^```",
                    GUIDE.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)  # fmt: skip


@pytest.mark.parametrize(("line", "screen"), BLOCKS, ids=["deadline", "pareto"])
def test_the_guide_is_what_its_commands_print(
    line: str, screen: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """UPDATE_SNAPSHOTS=1 writes what they print into the page."""
    monkeypatch.undo()  # rounds of their usual length
    done = run_here(*shlex.split(line)[1:], cwd=tmp_path)
    assert done.code == 0, done.err
    printed = done.out.rstrip() + "\n"
    if os.environ.get("UPDATE_SNAPSHOTS"):
        GUIDE.write_text(GUIDE.read_text(encoding="utf-8").replace(screen, printed), encoding="utf-8")
        return

    assert printed == screen
