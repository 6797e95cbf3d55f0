"""Measured runs of engines: read, predicted, left out by name, and the fit that the constants come from."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
from meshwright.planner.accuracy.runs import Problems, read_rows
from meshwright.planner.serving.fit import PRIORS, Fit, Runs, fit, predicted, text_of
from meshwright.planner.serving.row import LeftOut, ServingCase, read_serving_row
from meshwright.planner.serving.validate import are_serving, validate_serving
from meshwright.profiles.rates.calibration import load_yaml
from meshwright.profiles.stack.engines import release_of, shipped_engines

from meshwright.errors import InputError

from ...snapshots import run_here

ROW = """\
- {{id: {id}, source: a, kind: closed-loop, engine: {engine}, engine_version: '{version}', model: {model},
   gpu: H200-SXM-141GB, num_gpus: {gpus}, parallel: {parallel}, precision: {{w: {weights}, kv: null}},
   isl: {isl}, osl: {osl}, load: {{mode: closed, concurrency: {concurrency}}},
   measured: {{ttft_ms: 100.0, tpot_ms: 10.0}}}}
"""
USUAL = {"id": "run", "engine": "vllm", "version": "0.18.0", "model": "meta-llama/Llama-3.1-70B", "gpus": 2,
         "parallel": "{tp: 2, pp: 1, ep: 1, attn_dp: 1}", "weights": "fp8", "isl": 2000, "osl": 300,
         "concurrency": 8}  # fmt: skip


def text(**changes: object) -> str:
    return ROW.format(**{**USUAL, **changes})


def read(tmp_path: Path, content: str) -> list[ServingCase | LeftOut]:
    path = tmp_path / "rows.yaml"
    path.write_text(content, encoding="utf-8")
    problems = Problems([])
    rows: list[ServingCase | LeftOut] = list(read_rows([path], read_serving_row, problems))
    assert not problems.count
    return rows


def case_of(tmp_path: Path, **changes: object) -> ServingCase:
    row = read(tmp_path, text(**changes))[0]
    assert isinstance(row, ServingCase)
    return row


def test_fields_become_a_case(tmp_path: Path) -> None:
    case = case_of(tmp_path)
    assert (case.model.name, case.gpu.name, case.decode.tp, case.cache) == ("llama-3.1-70b", "h200-sxm-141gb", 2, "fp8")
    assert (case.ttft_s, case.tpot_s, case.prompt) == (0.1, 0.01, 2000)


def test_nominal_lengths_of_inferencex_are_their_means(tmp_path: Path) -> None:
    """Drawn from [0.8, 1] times the nominal length, with ten times the concurrency as prompts."""
    case = case_of(tmp_path, isl=1024, osl=8192)
    assert (case.prompt, case.output, case.burst_share) == pytest.approx((921.6, 7372.8, 0.1))
    assert np.isnan(case_of(tmp_path, isl=1024, osl=128).burst_share)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"isl": "null"}, "the lengths of prompts are not stated"),
        ({"id": "llmd-pd-evict-q5"}, "prompts share prefixes"),
        ({"model": "no-such-model"}, "unknown model"), ({"engine": "tgi"}, "unknown engine"),
        ({"gpus": 16}, "the layout has 2 GPUs, the row 16"), ({"weights": "int3"}, "no bytes are known"),
    ],
)  # fmt: skip
def test_rows_without_a_prediction_are_left_out_by_name(
    tmp_path: Path, changes: dict[str, object], reason: str
) -> None:
    row = read(tmp_path, text(**changes))[0]
    assert isinstance(row, LeftOut)
    assert row.reason.startswith(reason)


@pytest.mark.parametrize(
    ("model", "weights"),
    [("Qwen/Qwen3-32B-FP8", "fp8"), ("nvidia/DeepSeek-R1-0528-NVFP4-v2", "nvfp4"), ("Qwen/Qwen3-32B", "bf16"),
     ("amd/Llama-3.1-405B-Instruct-FP8-KV", "fp8")],
)  # fmt: skip
def test_weights_without_a_format_have_that_of_the_name(tmp_path: Path, model: str, weights: str) -> None:
    assert case_of(tmp_path, model=model, weights="null").weights == weights


@pytest.mark.parametrize("model", ["Qwen/Qwen2.5-7B-Instruct-AWQ", "x/Llama-3.1-70B-Instruct-quantized.w4a16"])
def test_a_format_of_the_name_without_known_bytes_leaves_a_row_out(tmp_path: Path, model: str) -> None:
    row = read(tmp_path, text(model=model, weights="null"))[0]
    assert isinstance(row, LeftOut)
    assert row.reason.startswith("no bytes are known of weights in")


def test_an_unknown_gpu_leaves_a_row_out(tmp_path: Path) -> None:
    row = read(tmp_path, text().replace("H200-SXM-141GB", "unknown-8gpu"))[0]
    assert row == LeftOut("run", "unknown GPU `unknown-8gpu`")


def test_speculation_leaves_tpot(tmp_path: Path) -> None:
    row = read(tmp_path, text().replace("isl:", "speculative: unknown, isl:"))[0]
    assert isinstance(row, ServingCase)
    assert (row.tpot_s, row.ttft_s) == (None, 0.1)


@pytest.mark.parametrize(
    ("parallel", "gpus", "expected"),
    [
        ("{tp: 4, pp: 1, ep: 4, attn_dp: 4}", 4, (1, 4, 4)), ("{tp: 1, pp: 1, ep: 8, attn_dp: 8}", 8, (1, 8, 8)),
        ("{tp: 8, pp: 1, ep: null, attn_dp: null}", 8, (8, 1, 1)),
    ],
)  # fmt: skip
def test_both_ways_to_count_attention_data_parallelism(
    tmp_path: Path, parallel: str, gpus: int, expected: tuple[int, int, int]
) -> None:
    layout = case_of(tmp_path, parallel=parallel, gpus=gpus).decode
    assert (layout.tp, layout.attention_dp, layout.ep) == expected


@pytest.mark.parametrize(
    ("version", "release"),
    [("1.2.0rc6.post1", "1.2"), ("0.5.9", "0.5.9"), ("0.5.8.post1", "0.5.8"), ("nightly-2026-02", "nightly-2026-02"),
     ("nightly-dev-20260216-d3bae71e", "nightly-2026-02"), ("nightly", "nightly"), ("", "unstated")],
)  # fmt: skip
def test_releases(version: str, release: str) -> None:
    assert release_of(version) == release


def test_a_release_that_no_run_measured_takes_the_median_of_its_engine() -> None:
    engines = shipped_engines()
    assert engines.host_s("vllm", "99.0") == np.median(list(engines.hosts["vllm"].values()))
    assert engines.host_s("trtllm", "1.2.0rc2") == engines.hosts["tensorrt-llm"]["1.2"]


def some_cases(tmp_path: Path) -> list[ServingCase]:
    grid = [(tp, isl, osl, n, engine) for tp in (1, 2, 8) for isl, osl in ((500, 500), (4000, 200))
            for n in (2, 16, 64, 256) for engine in ("vllm", "sglang")]  # fmt: skip
    rows = [text(id=f"run{i}", parallel=f"{{tp: {tp}}}", gpus=tp, isl=isl, osl=osl, concurrency=n, engine=engine,
                 version="0.1.0") for i, (tp, isl, osl, n, engine) in enumerate(grid)]  # fmt: skip
    return [row for row in read(tmp_path, "".join(rows)) if isinstance(row, ServingCase)]


def test_the_fit_finds_the_constants_that_made_the_measurements(tmp_path: Path) -> None:
    """A known answer: predictions by constants away from the prior means are fitted again."""
    engines, cases = shipped_engines(), some_cases(tmp_path)
    runs = Runs.of(cases, engines)
    truth = replace(engines.constants, compute_share=0.6, bandwidth_share=0.8, sequence_s=2e-5)
    made = predicted(runs.service(truth, np.full(len(cases), 0.06)))
    measured = [replace(case, ttft_s=float(ttft), tpot_s=float(tpot))
                for case, (ttft, tpot, _) in zip(cases, made.T, strict=True)]  # fmt: skip
    again = Runs.of(measured, engines)
    fitted = fit(again)
    off = np.abs(np.log(predicted(fitted.service(again)) / made))[:2]
    priors = type(truth)(**{name: mean for name, (mean, _) in PRIORS.items()})
    untouched = Fit(priors, dict.fromkeys(runs.releases, 0.04), 0)
    assert np.median(off) < 0.03
    assert np.median(np.abs(np.log(predicted(untouched.service(again)) / made))[:2]) > 0.08


def test_the_fit_ends_at_the_same_place_from_two_starts(tmp_path: Path) -> None:
    engines, cases = shipped_engines(), some_cases(tmp_path)[:12]
    runs = Runs.of(cases, engines)
    made, scatter = predicted(runs.service(engines.constants, np.full(12, 0.06))), np.random.default_rng(0)
    noisy = made * np.exp(scatter.normal(0, 0.2, made.shape))
    runs = Runs.of([replace(case, ttft_s=float(ttft), tpot_s=float(tpot))
                    for case, (ttft, tpot, _) in zip(cases, noisy.T, strict=True)], engines)  # fmt: skip
    far = Fit(replace(engines.constants, compute_share=1.2, step_s=4e-3), dict.fromkeys(runs.releases, 0.2), 0)
    assert fit(runs, start=far).loss == pytest.approx(fit(runs).loss, rel=1e-3)


def test_a_run_of_weight_zero_moves_nothing(tmp_path: Path) -> None:
    cases = some_cases(tmp_path)[:6]
    wrong = [replace(cases[0], tpot_s=100.0), *cases[1:]]
    weights = np.array([0.0, *np.ones(5)])
    fits = [fit(Runs.of(some, shipped_engines()), weights=weights) for some in (cases, wrong)]
    assert asdict(fits[0].constants) == asdict(fits[1].constants)


def test_the_shipped_file_has_the_form_that_the_fit_writes(tmp_path: Path) -> None:
    engines = shipped_engines()
    hosts = {f"{name} {release}": value
             for name, releases in engines.hosts.items() for release, value in releases.items()}  # fmt: skip
    (tmp_path / "serving.yaml").write_text(text_of(Fit(engines.constants, hosts, 0.0), 1), encoding="utf-8")
    content = load_yaml(tmp_path / "serving.yaml")
    assert content["constants"] == asdict(engines.constants)
    assert content["host_s"] == engines.hosts
    assert len(content["constants"]) == len(PRIORS) <= 12


def test_files_of_engine_runs_are_told_from_others(tmp_path: Path) -> None:
    (tmp_path / "runs.yaml").write_text(text(), encoding="utf-8")
    (tmp_path / "other.yaml").write_text("- {id: a, workflow: grpo}\n", encoding="utf-8")
    assert are_serving([tmp_path / "runs.yaml"])
    assert not are_serving([tmp_path / "runs.yaml", tmp_path / "other.yaml"])
    assert not are_serving([])


def test_pairs_of_layouts_are_ordered(tmp_path: Path) -> None:
    two = text(id="a", parallel="{tp: 1}", gpus=1) + text(id="b", parallel="{tp: 8}", gpus=8)
    path = tmp_path / "rows.yaml"
    path.write_text(two.replace("tpot_ms: 10.0", "tpot_ms: 30.0", 1), encoding="utf-8")
    table = validate_serving([path]).tables["shipped"]
    assert (table.ordered, table.pairs) == (1, 1)
    path.write_text(two.replace("tpot_ms: 10.0", "tpot_ms: 3.0", 1), encoding="utf-8")
    table = validate_serving([path]).tables["shipped"]
    assert (table.ordered, table.pairs) == (0, 1)


def test_wrong_rows_are_reported_together(tmp_path: Path) -> None:
    path = tmp_path / "rows.yaml"
    path.write_text(text(isl=-1) + text(id="b").replace("tpot_ms: 10.0", "tpot_ms: 0"), encoding="utf-8")
    with pytest.raises(InputError) as error:
        validate_serving([path])
    assert [problem.field for problem in error.value.problems] == ["isl", "measured.tpot_ms"]


def test_the_command_predicts_and_names_what_it_leaves_out(tmp_path: Path) -> None:
    (tmp_path / "rows.yaml").write_text(text() + text(id="set", isl="null"), encoding="utf-8")
    result = run_here("validate", "rows.yaml", "--json", cwd=tmp_path)
    document = json.loads(result.out)
    assert (result.code, document["kind"]) == (0, "serving-validation")
    assert [row["id"] for row in document["rows"]] == ["run"]
    assert {"ttft_ms", "tpot_ms", "output_tok_s_per_gpu"} <= document["rows"][0].keys()
    assert [row["id"] for row in document["left_out"]] == ["set"]
    screen = run_here("validate", "rows.yaml", "--rows", cwd=tmp_path).out
    assert "12 fitted constants" in screen
    assert "1 left out: the lengths of prompts" in screen
    refused = run_here("validate", "rows.yaml", "--core", cwd=tmp_path)
    assert refused.code == 2
    assert "--core" in refused.err
