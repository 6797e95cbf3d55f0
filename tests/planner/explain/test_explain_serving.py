"""Where the latencies of a deployment go, what more of a resource carries, and the report on it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from meshwright.planner.api import plan_serving
from meshwright.planner.document.serving_plan import ServingPlan
from meshwright.planner.explain.serving import ServingExplanation, explain_serving
from meshwright.planner.explain.serving_why_not import compared
from meshwright.planner.request.serving import ServingFields

from meshwright.errors import InputError, NoFeasibleLayoutError

from ...snapshots import run_here

ASKED: ServingFields = {"model": "llama-3.1-70b", "cluster": "8xh100-sxm-80gb", "input": 2000, "output": 300,
                        "rate": "4/s", "ttft": "1s", "tpot": "50ms", "top": 3,
                        "fix": ["pp=1", "chunk_tokens=8192"]}  # fmt: skip
DISAGGREGATED: ServingFields = {"model": "llama-3.1-70b", "cluster": "8xh100-sxm-80gb", "input": 8000, "output": 100,
                        "rate": "1/s", "ttft": "2s", "tpot": "20ms", "precision": "fp8", "top": 1,
                        "fix": ["pp=1", "chunk_tokens=8192"]}  # fmt: skip
CLOSED: ServingFields = {"model": "qwen3-30b-a3b", "cluster": "4xh100-sxm-80gb", "input": 1000, "output": 200,
                         "concurrency": 32, "top": 1, "fix": ["pp=1", "chunk_tokens=8192"]}  # fmt: skip


@pytest.fixture(scope="module")
def plans() -> dict[str, ServingPlan]:
    asked = {"aggregated": ASKED, "disaggregated": DISAGGREGATED, "closed": CLOSED}
    return {name: plan_serving(**fields) for name, fields in asked.items()}


@pytest.fixture(scope="module")
def explained(plans: dict[str, ServingPlan]) -> dict[str, ServingExplanation]:
    return {name: explain_serving(plan) for name, plan in plans.items()}


@pytest.fixture(scope="module")
def plan(plans: dict[str, ServingPlan]) -> ServingPlan:
    return plans["aggregated"]


@pytest.mark.parametrize("name", ["aggregated", "disaggregated", "closed"])
def test_the_parts_add_up_to_the_promised_latencies(
    name: str, plans: dict[str, ServingPlan], explained: dict[str, ServingExplanation]
) -> None:  # fmt: skip
    best, parts = plans[name].best, explained[name].parts
    assert sum(part.ttft_s for part in parts) == pytest.approx(best.ttft_promised_s, rel=1e-6)
    assert sum(part.tpot_s for part in parts) == pytest.approx(best.tpot_promised_s, rel=1e-6)
    assert all(part.ttft_s >= 0 for part in parts if part.name in ("host", "compute", "memory bandwidth", "links"))


def test_decoding_reads_memory_and_prompts_compute(explained: dict[str, ServingExplanation]) -> None:
    parts = {part.name: part for part in explained["aggregated"].parts}
    assert parts["memory bandwidth"].tpot_s == max(part.tpot_s for part in parts.values())
    assert parts["compute"].ttft_s > parts["memory bandwidth"].ttft_s


def test_a_slower_host_is_seen_as_host(plan: ServingPlan, explained: dict[str, ServingExplanation]) -> None:
    """Its seconds come in once per iteration, for 800 kernels; nothing else of an iteration depends on them."""
    slow = plan.model_copy(update={"resolved": {**plan.resolved, "host_s": 4 * plan.resolved["host_s"]}})
    before, after = ({part.name: part for part in it.parts} for it in (explained["aggregated"], explain_serving(slow)))
    assert after["host"].ttft_s > before["host"].ttft_s + 2.9 * 0.8 * plan.resolved["host_s"]
    assert after["compute"].ttft_s == pytest.approx(before["compute"].ttft_s, rel=0.2)


@pytest.mark.parametrize("name", ["aggregated", "disaggregated", "closed"])
def test_more_of_a_resource_never_carries_less(
    name: str, plans: dict[str, ServingPlan], explained: dict[str, ServingExplanation]
) -> None:  # fmt: skip
    best, effects = plans[name].best, explained[name].effects
    # The fixed point of a load is the mean of 24 rounds, which the room of a cache starts.
    assert all(effect.largest_load >= best.largest_load * (1 - 2e-3) for effect in effects)
    assert all(effect.largest_load <= best.largest_load * 1.3 for effect in effects)
    assert max(effect.largest_load for effect in effects) > best.largest_load * 1.005


def test_the_curve_breaks_the_promise_at_the_largest_load(
    plan: ServingPlan, explained: dict[str, ServingExplanation]
) -> None:  # fmt: skip
    points = explained["aggregated"].curve
    assert [point.ttft_s for point in points] == sorted(point.ttft_s for point in points)
    for point in points:
        kept = point.ttft_s <= 1.0 and point.tpot_s <= 0.05
        assert kept == (point.load <= plan.best.largest_load)


def test_disaggregated_pools_transfer_caches(
    plans: dict[str, ServingPlan], explained: dict[str, ServingExplanation]
) -> None:  # fmt: skip
    disaggregated = plans["disaggregated"]
    assert len(disaggregated.best.pools) == 2, disaggregated.best.deployment_id
    parts = {part.name: part for part in explained["disaggregated"].parts}
    # Elements of keys and values of a prompt on a GPU.
    tokens = 8000 * 2 * 8 * 128 * 80 / disaggregated.best.pools[0].tp
    bytes_per_s = disaggregated.resolved["cluster"]["levels"][0]["bw_bytes_per_s"]
    assert parts["transfer of the cache"].ttft_s == pytest.approx(tokens / bytes_per_s, rel=0.5)
    assert "prompts of others" not in parts


def test_an_instance_fewer_is_too_few(plan: ServingPlan, explained: dict[str, ServingExplanation]) -> None:
    explanation = explained["aggregated"]
    if plan.best.pools[0].instances > 1:
        assert explanation.one_less is not None
        assert explanation.one_less < 4.0
    assert [rival.choice for rival in explanation.rivals] == [it.choice for it in plan.candidates[1:]]


def test_plans_without_the_constants_are_refused(plan: ServingPlan) -> None:
    resolved = {name: value for name, value in plan.resolved.items() if name != "constants"}
    with pytest.raises(InputError, match="older version"):
        explain_serving(plan.model_copy(update={"resolved": resolved}))
    with pytest.raises(InputError, match="no deployment 99"):
        explain_serving(plan, 99)


@pytest.mark.slow
def test_the_commands_read_the_plan(plan: ServingPlan, plans: dict[str, ServingPlan], tmp_path: Path) -> None:
    (tmp_path / "p.json").write_text(plan.to_json())
    (tmp_path / "disaggregated.json").write_text(plans["disaggregated"].to_json())
    (tmp_path / "train.json").write_text('{"kind": "plan"}')
    explained = run_here("explain", "p.json", cwd=tmp_path)
    assert explained.code == 0, explained.err
    for expected in ("Where the latencies of p90 go", "With a tenth more", "memory bandwidth", "Not disaggregated"):
        assert expected in explained.out
    assert json.loads(run_here("explain", "p.json", "2", "--json", cwd=tmp_path).out)["choice"] == 2
    assert "workload.rate" in run_here("explain", "p.json", "--origins", cwd=tmp_path).out
    for file in ("p.json", "disaggregated.json"):
        reported = run_here("report", file, "-o", f"{file}.html", cwd=tmp_path)
        assert reported.code == 0, reported.err
        page = (tmp_path / f"{file}.html").read_text()
        assert page.count("<polyline") == 2
        assert "nan" not in page.split("</style>")[1]
    changed = run_here("diff", "p.json", "disaggregated.json", "--exit-code", cwd=tmp_path)
    assert changed.code == 1
    assert "largest_load" in changed.out
    assert run_here("diff", "p.json", "p.json", "--exit-code", cwd=tmp_path).code == 0


@pytest.mark.parametrize("words", [
    ("explain", "p.json", "9"), ("explain", "p.json", "--plot"), ("report", "p.json", "--choice", "0"),
    ("report", "broken.json"), ("diff", "p.json", "train.json"), ("diff", "p.json", "none.json"),
    ("what-if", "p.json", "--set", "gpus=4"), ("memory", "p.json"), ("launch", "p.json"),
])  # fmt: skip
def test_what_they_refuse(words: tuple[str, ...], plan: ServingPlan, tmp_path: Path) -> None:
    (tmp_path / "p.json").write_text(plan.to_json())
    (tmp_path / "train.json").write_text('{"kind": "plan"}')
    (tmp_path / "broken.json").write_text('{"kind": "serving-plan", "format_version": "1.1"}')
    refused = run_here(*words, cwd=tmp_path)
    assert refused.code == 2
    assert refused.err.startswith("error:")
    assert "Traceback" not in refused.err


def test_why_not_prices_what_the_plan_does_not_list(plan: ServingPlan) -> None:
    listed = plan.candidates[1]
    assert compared(plan, listed.deployment_id).other == listed
    named = "1 x tp4"
    assert named not in {it.deployment_id for it in plan.candidates}
    one, best = compared(plan, named), plan.best
    assert (best.deployment_id, one.other.gpus, one.rival.more_gpus) == ("2 x tp4", 4, -4)
    assert one.other.largest_load >= best.largest_load / 2 * (1 - 1e-6)  # its best chunk size is no worse
    assert one.enough == (one.other.largest_load >= 4)


def test_why_not_prices_disaggregated_pools(plan: ServingPlan) -> None:
    """The same pools as a plan of them alone."""
    other = compared(plan, "1 x tp2 + 1 x tp4").other
    fixed: ServingFields = {**ASKED, "rate": None, "fix": ["prefill.tp=2", "decode.tp=4", "prefill.replicas=1",
                                                           "decode.replicas=1", "pp=1"]}  # fmt: skip
    alone = plan_serving(**fixed).best
    assert [(it.role, it.gpus) for it in other.pools] == [("prefill", 2), ("decode", 4)]
    assert other.largest_load == pytest.approx(alone.largest_load)


@pytest.mark.parametrize(("name", "expected", "error"), [
    ("2 x tp8", "needs 16 GPUs, and there are 8", NoFeasibleLayoutError),
    ("1 x tp3", "breaks rules of heads", NoFeasibleLayoutError),
    ("8 x tp1", "holds no sequence", NoFeasibleLayoutError),
    ("two", "is no deployment", InputError), ("tp2-tp4", "is no deployment", InputError),
    ("1 x tp0", "a degree below 1", InputError), ("0 x tp4", "a degree below 1", InputError),
    ("1 x tp4 + 1 x tp2 + 1 x tp1", "has 3 pools", InputError), ("1 x tp4 + two", "is no deployment", InputError),
    ("2 x tp4 + 1 x tp8", "prefills takes 4 of the GPUs and one that decodes 8", NoFeasibleLayoutError),
    ("1 x tp3 + 1 x tp4", "breaks rules of heads", NoFeasibleLayoutError),
])  # fmt: skip
def test_why_not_names_the_reason(name: str, expected: str, error: type[Exception], plan: ServingPlan) -> None:
    with pytest.raises(error, match=expected):
        compared(plan, name)


def test_the_screen_of_why_not(plan: ServingPlan, tmp_path: Path) -> None:
    (tmp_path / "p.json").write_text(plan.to_json())
    shown = run_here("explain", "p.json", "--why-not", "1 x tp4", cwd=tmp_path)
    assert shown.code == 0, shown.err
    assert "1 x tp4: 4 fewer GPUs" in " ".join(shown.out.split())
    assert ("Too little for 4/s" in shown.out) != compared(plan, "1 x tp4").enough
    document = json.loads(run_here("--json", "explain", "p.json", "--why-not", "1 x tp4", cwd=tmp_path).out)
    assert document["other"]["deployment_id"] == "1 x tp4"
    assert run_here("explain", "p.json", "--why-not", "2 x tp8", cwd=tmp_path).code == 1
