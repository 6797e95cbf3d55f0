"""Plans of deployments: the search against all deployments, what is refused and why, the document, the screen."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from meshwright.cli.screens.serving_plan import closing
from meshwright.cost_models.serving.arrivals import Requests
from meshwright.cost_models.serving.constants import ServingConstants
from meshwright.cost_models.serving.lengths import RequestLengths
from meshwright.cost_models.serving.pool import Pool
from meshwright.cost_models.serving.simulation import Simulated, simulate
from meshwright.planner.api import plan_serving
from meshwright.planner.document.serving_plan import ServingPlan
from meshwright.planner.request.load import load_any_request, load_request
from meshwright.planner.request.serving import ServingFields, ServingRequest
from meshwright.planner.serving import candidates as listing
from meshwright.planner.serving.instance import pool
from meshwright.planner.serving.promises import Promises, priced
from meshwright.planner.serving.search import fleets_pool, search
from meshwright.planner.serving.space import Served, Space, sites_of, space_of
from meshwright.profiles.cluster.load import load_cluster
from meshwright.profiles.model.load import load_model
from meshwright.profiles.stack.engines import shipped_engines

from meshwright.errors import InputError, MeshwrightError, NoFeasibleLayoutError

from ...snapshots import run_here

ENGINES = shipped_engines()
ASKED = ("--model", "llama-3.1-70b", "--cluster", "8xh100-sxm-80gb", "--input", "2000", "--output", "300")
FIELDS: ServingFields = {"model": "llama-3.1-70b", "cluster": "8xh100-sxm-80gb", "input": 2000, "output": 300,
                         "rate": "4/s", "ttft": "1s", "tpot": "50ms", "top": 1}  # fmt: skip


def planned(changes: ServingFields) -> ServingPlan:
    fields: ServingFields = {**FIELDS, **changes}
    return plan_serving(**fields)


@pytest.fixture(scope="module")
def plan() -> ServingPlan:
    return planned({"top": 2})


def space(
    model: str = "llama-3.1-70b", cluster: str = "8xh100-sxm-80gb", fix: Mapping[str, int] | None = None
) -> Space:  # fmt: skip
    served = Served(model=load_model(model)[0], weights="bf16", cache="bf16", engine=ENGINES.of("vllm"),
                    host_s=ENGINES.host_s("vllm", ""))  # fmt: skip
    return space_of(sites_of(load_cluster(cluster, gpu=None, num_gpus=None, exclude=()))[0], served, fix or {})


def bursts(number: int, *, pause_s: float = 1.0) -> RequestLengths:
    """Bursts of `number` requests, `pause_s` apart, as a trace has them."""
    arrivals, count = np.repeat(np.arange(50.0) * pause_s, number), 50 * number
    return RequestLengths(np.full(count, 2000.0), np.full(count, 300.0), np.full(count, 1 / count), arrivals)


@pytest.mark.parametrize(("model", "cluster", "rate", "requests"), [
    ("llama-3.1-70b", "8xh100-sxm-80gb", 4.0, RequestLengths.equal(2000, 300)),
    ("llama-3.1-70b", "dgx-h100:2", 9.0, RequestLengths.equal(2000, 300)),
    ("llama-3.1-8b", "8xa100-sxm-80gb", 12.0, RequestLengths.equal(2000, 300)),
    ("qwen3-30b-a3b", "8xh100-sxm-80gb", 20.0, RequestLengths.equal(2000, 300)),
    ("qwen3-8b", "dgx-h100:1", 40.0, bursts(16)), ("qwen3-8b", "dgx-h100:1", 40.0, bursts(1)),
])  # fmt: skip
def test_the_search_finds_what_pricing_every_deployment_finds(
    model: str, cluster: str, rate: float, requests: RequestLengths
) -> None:  # fmt: skip
    """Bursts of 16 are burstier than Poisson arrivals, and equal gaps less so: n instances carry neither n times the
    load of one."""
    promises = Promises(requests=requests, ttft_s=1.0, tpot_s=0.05, share=0.9, closed=False)
    of_model = space(model, cluster)
    found = search([of_model], rate, promises, ENGINES.constants)
    every = [(row, n) for row, most in enumerate(of_model.most) for n in range(1, most + 1)]
    columns = pool(of_model.instances).rows(np.array([row for row, _ in every]), np.array([float(n) for _, n in every]))
    fits = columns.capacity(np.array(2000.0), np.array(300.0)) >= 1
    kept = priced(columns, columns, np.zeros(len(every), dtype=bool), np.full(len(every), rate), promises,
                  ENGINES.constants).kept & fits  # fmt: skip
    assert found.deployments[0].gpus == int(columns.gpus[kept].min())
    least = {row: min(n for (other, n), is_kept in zip(every, kept, strict=True) if is_kept and other == row)
             for row, _ in {pair for pair, is_kept in zip(every, kept, strict=True) if is_kept}}  # fmt: skip
    assert len(found.deployments) == len(least)
    assert sorted(it.decode.instances for it in found.deployments) == sorted(least.values())
    assert int((~fits).sum()) == found.out_of_memory
    for deployment in found.deployments:
        columns = fleets_pool([deployment.decode])
        around = deployment.largest_load * np.array([0.9999, 1.0001])
        both = columns.rows(np.zeros(2, dtype=np.int64), np.full(2, deployment.decode.instances, dtype=float))
        keeps = priced(both, both, np.zeros(2, dtype=bool), around, promises, ENGINES.constants).kept
        assert keeps.tolist() == [True, False]


def test_messages_take_the_links_that_stages_are_on() -> None:
    """Two stages of four GPUs are in a node of eight, two of eight are not; one stage sends nothing."""
    of_model = space(cluster="dgx-h100:2", fix={"chunk_tokens": 8192})
    layouts = [(it.layout.tp, it.layout.pp) for it in of_model.instances]
    sent = pool(of_model.instances).p2p.s_per_byte[[layouts.index(it) for it in ((8, 1), (4, 2), (8, 2))]]
    inside, between = (level.bw_bytes_per_s for level in of_model.site.levels)
    assert sent[0] == 0
    assert sent[2] / sent[1] == pytest.approx(inside / between, rel=0.5)


@pytest.mark.parametrize(("engine", "cluster", "tp", "own"), [
    ("vllm", "8xh100-sxm-80gb", 8, 2**18), ("vllm", "8xh100-sxm-80gb", 4, 2**23),
    ("vllm", "8xb200-sxm-180gb", 8, 2**20), ("vllm", "8xa100-sxm-80gb", 8, 2**23),
    ("sglang", "8xh100-sxm-80gb", 8, 2**23),
    ("tensorrt-llm", "8xh100-sxm-80gb", 2, 16e6), ("tensorrt-llm", "8xh100-sxm-80gb", 8, 8e6),
    ("vllm", "8xh100-pcie-80gb", 2, 2**23), ("vllm", "8xh100-pcie-80gb", 4, 0),
    ("tensorrt-llm", "8xh100-pcie-80gb", 2, 0), ("vllm", "dgx-h100:2", 16, 0),
    ("vllm", "gb200-nvl72:2", 4, 2**21), ("vllm", "gb200-nvl72:2", 8, 0), ("sglang", "gb200-nvl72:2", 8, 0),
    ("tensorrt-llm", "gb200-nvl72:2", 8, 8e6)])  # fmt: skip
def test_engines_sum_by_kernels_of_their_own_where_gpus_read_each_other(
    engine: str, cluster: str, tp: int, own: float
) -> None:  # fmt: skip
    """Not over PCIe among more than two (vLLM, SGLang) or at all (TensorRT-LLM), nor between nodes; among the hosts of
    a rack of NVLink by TensorRT-LLM alone."""
    served = Served.of(load_model("llama-3.1-70b")[0], "fp8", "bf16", shipped_engines(), engine)
    space = space_of(sites_of(load_cluster(cluster))[0], served, {"tp": tp}, across_nodes=True)
    assert set(pool(space.instances).own_sum_bytes) == {own}


def test_the_counts_add_up(plan: ServingPlan) -> None:
    counted = plan.certificate.space
    parts = (counted.dominated, counted.out_of_memory, counted.priced, *counted.ruled_out.values())
    assert sum(parts) == counted.total
    assert plan.certificate.proven
    assert plan.certificate.unit == "USD/h"
    assert plan.certificate.lower_bound == min(it.usd_per_hour or 0.0 for it in plan.candidates)


@pytest.mark.parametrize("replicas", [1, 2, 9])
def test_a_fixed_number_of_replicas_stays(replicas: int) -> None:
    promises = Promises(requests=RequestLengths.equal(2000, 300), ttft_s=1.0, tpot_s=0.05, share=0.9, closed=False)
    of_model = space(fix={"replicas": replicas})
    found = search([of_model], 1.0, promises, ENGINES.constants)
    assert all(it.decode.instances == replicas for it in found.deployments)
    assert bool(found.deployments) == (replicas < 9)
    counted = (found.dominated, found.out_of_memory, len(found.deployments), *found.ruled_out.values())
    assert sum(counted) == found.total


def test_the_best_deployment_keeps_its_promises_when_it_is_simulated(plan: ServingPlan) -> None:
    best = plan.best
    assert best.ttft_promised_s <= 1.0
    assert best.tpot_promised_s <= 0.05
    assert best.simulated is not None
    assert best.simulated.kept >= 0.9
    assert best.simulated.ttft_s.p50 <= best.simulated.ttft_s.p90 <= best.simulated.ttft_s.p99
    assert best.binds == "tpot"
    assert best.largest_load >= 4.0
    assert best.stable_load is not None
    assert best.stable_load > best.largest_load


def test_each_instance_is_simulated_once_under_its_load(monkeypatch: pytest.MonkeyPatch) -> None:
    ran = list[tuple[object, ...]]()

    def counted(of: Pool, constants: ServingConstants, requests: Requests, capacity: float, *, prefills: bool = True,
                decodes: bool = True) -> Simulated:  # fmt: skip
        ran.append((of.tp[0], of.pp[0], of.chunk_tokens[0], requests, prefills, decodes))
        return simulate(of, constants, requests, capacity, prefills=prefills, decodes=decodes)

    monkeypatch.setattr(listing, "simulate", counted)
    plan = planned({"rate": "4/s", "top": 10})
    assert sum(len(it.pools) for it in plan.candidates) > len(set(ran))
    assert len(ran) == len(set(ran))


def test_cost_is_rent_over_tokens(plan: ServingPlan) -> None:
    best = plan.best
    assert best.usd_per_hour is not None
    assert best.usd_per_mtoken is not None
    assert best.usd_per_mtoken == pytest.approx(best.usd_per_hour / 3600 / (4 * 300) * 1e6, rel=1e-6)
    assert planned({"rate": "2/s"}).best.gpus < best.gpus


def test_without_a_rate_the_plan_carries_as_much_as_it_can() -> None:
    plan = planned({"rate": None})
    assert plan.certificate.unit == "requests/s"
    assert plan.certificate.lower_bound >= plan.best.largest_load * (1 - 1e-9)
    assert plan.best.largest_load >= (1 - plan.indifference) * plan.certificate.lower_bound


UNLIKE: ServingFields = {"model": "llama-3.1-8b", "cluster": "8xa100-sxm-80gb", "input": "2000:rms=4000",
                         "output": "300:rms=500", "rate": None, "fix": ["chunk_tokens=8192", "pp=1"]}  # fmt: skip


def test_a_choice_behind_the_best_has_its_gap() -> None:
    """The deployment that carries most breaks its promises when it is simulated, so a later one is chosen."""
    plan = planned({**UNLIKE, "ttft": "400ms", "tpot": "30ms"})
    proof = plan.certificate
    assert proof.space.simulated > 1
    assert proof.gap == pytest.approx(proof.lower_bound / plan.best.largest_load - 1)
    assert proof.gap > plan.indifference
    assert not proof.proven
    shown = shown_proof(plan)
    assert f"carries more than {proof.lower_bound:.3g} requests/s, {proof.gap:.1%}".replace("%", " % more") in shown
    assert "deployment 1 is the first of them that keeps the promises there, too" in shown


def test_promises_that_simulated_requests_break_are_not_proven() -> None:
    plan = planned({**UNLIKE, "ttft": "1s", "tpot": "15ms", "percentile": 99})
    assert plan.best.simulated is not None
    assert plan.best.simulated.kept < 0.99
    shown = shown_proof(plan)
    assert "Proven" not in shown
    assert "not proven to keep them" in shown
    assert "none of them keeps the promises there" in shown


def shown_proof(plan: ServingPlan) -> str:
    return " ".join(" ".join(part for part in closing(plan) if isinstance(part, str)).split())


def test_a_closed_loop_has_no_more_requests_than_the_cache_holds() -> None:
    best = planned({"rate": None, "concurrency": 64}).best
    assert best.pools[0].cache_sequences * best.pools[0].instances >= 64
    assert best.concurrency == pytest.approx(64, rel=0.05)


@pytest.mark.parametrize(("flags", "says", "never"), [
    (("--rate", "4/s", "--ttft", "50ms"), "more tp or shorter prompts", "more replicas"),
    (("--rate", "4/s", "--tpot", "5ms"), "more tp", "more replicas"),
    (("--rate", "40/s", "--ttft", "1s", "--tpot", "50ms"), "the queue is stable up to", "alone"),
    (("--rate", "4/s", "--fix", "tp=1", "--fix", "pp=1"), "the KV cache holds no sequence", "rate"),
    (("--rate", "4/s", "--fix", "tp=3"), "heads", "memory"),
])  # fmt: skip
def test_the_answer_is_no(flags: tuple[str, ...], says: str, never: str) -> None:
    result = run_here("plan", "--workload", "serve", *ASKED, *flags)
    assert result.code == 1
    assert says in result.err
    assert never not in result.err


@pytest.mark.parametrize(("flags", "says"), [
    (("--rate", "4"), "`4/s`"), (("--rate", "0/s"), "more than 0"), (("--tpot", "50"), "has no unit"),
    (("--percentile", "120"), "from 50 to below 100"), (("--fix", "zero=3"), "tp, pp, ep"),
    (("--rate", "4/s", "--concurrency", "8"), "open or closed"), (("--seq-len", "512"), "unknown key"),
    (("--target", "vlm"), "vllm"), (("--trace", "x.json"), "training step"), (("--kv-cache", "fp7"), "fp8"),
])  # fmt: skip
def test_wrong_input_is_named(flags: tuple[str, ...], says: str) -> None:
    result = run_here("plan", "--workload", "serve", *ASKED, *flags)
    assert result.code == 2
    assert says in result.err


def test_flags_of_serving_need_the_workload() -> None:
    result = run_here("plan", *ASKED[:4], "--rate", "4/s")
    assert result.code == 2
    assert "--workload serve" in result.err
    result = run_here("plan", "--workload", "serve", *ASKED[:4])
    assert "--input 2000" in result.err
    assert "--output 300" in result.err


def test_a_file_of_its_kind_is_planned_and_other_commands_name_it(tmp_path: Path) -> None:
    file = tmp_path / "serve.yaml"
    file.write_text("model: llama-3.1-70b\ncluster: 8xh100-sxm-80gb\n"
                    "workload: {kind: serve, input: 2K, output: 300, rate: 240/min, tpot: 50ms}\n")  # fmt: skip
    request = load_any_request(file)
    assert isinstance(request, ServingRequest)
    assert (request.workload.input, request.workload.rate, request.workload.tpot) == (2048, 4.0, 0.05)
    assert request.origins["workload.rate"] == f"{file}, line 3"
    with pytest.raises(InputError, match=r"workload\.kind"):
        load_request(file)
    result = run_here("plan", file.name, "--tpot", "40ms", "--top", "1", "-o", "plan.json", cwd=tmp_path)
    assert result.code == 0, result.err
    document = json.loads((tmp_path / "plan.json").read_text())
    assert document["kind"] == "serving-plan"
    assert document["request"]["workload"]["tpot"] == 0.04


def test_output_is_a_file_or_tokens(tmp_path: Path) -> None:
    args = ("plan", "--workload", "serve", *ASKED, "--rate", "2/s", "--top", "1")
    assert run_here(*args, "-o", "a.json", cwd=tmp_path).code == 0
    both = run_here(*args[:-2], "--output", "b.json", "-o", "a.json", "--force", cwd=tmp_path)
    assert both.code == 2
    assert "two files" in both.err


def test_the_screen_fits_80_columns() -> None:
    result = run_here("plan", "--workload", "serve", *ASKED, "--rate", "4/s", "--ttft", "1s", "--tpot", "50ms")
    assert result.code == 0, result.err
    lines = result.out.splitlines()
    assert len(lines) <= 40
    assert max(map(len, lines)) <= 80
    assert "Proven by the closed form: no other deployment" in result.out


def test_a_screen_without_promises_has_none() -> None:
    asked = ("--model", "llama-3.1-8b", "--cluster", "1xh100-sxm-80gb", "--input", "500", "--output", "100")
    shown = run_here("plan", "--workload", "serve", *asked, "--rate", "2/s").out
    assert "No latency is promised; those below hold for 90 % of the requests" in shown
    assert shown.lower().count("promise") == 1


def test_an_error_has_its_exit_code() -> None:
    with pytest.raises(NoFeasibleLayoutError):
        planned({"rate": "400/s"})
    with pytest.raises(MeshwrightError, match="unknown engine"):
        planned({"target": "tgi"})
