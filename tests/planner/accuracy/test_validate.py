"""Published runs: reading every variant, what is wrong in them, errors, regret, and the command."""

from __future__ import annotations

import gzip
import json
import re
from dataclasses import asdict
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from meshwright.cli.screens.validate import draw
from meshwright.cost_models.layouts import parse
from meshwright.cost_models.specs.model import MixtureOfExperts
from meshwright.cost_models.specs.stack import StackSpec
from meshwright.planner.accuracy.outcome import RunOutcome, error_statistics, quantile
from meshwright.planner.accuracy.row import Case
from meshwright.planner.accuracy.runs import Problems, read_cases, shipped_files
from meshwright.planner.accuracy.stack_features import switched_layout
from meshwright.planner.accuracy.summary import RunCounts, validation
from meshwright.planner.accuracy.sweeps import kendall_tau, sweep_of
from meshwright.planner.accuracy.validate import Prediction, predict, source_of, validate
from meshwright.profiles.io.reader import read_document
from meshwright.profiles.stack.load import FAMILIES, load_stack, stack_for, stack_names

from meshwright.errors import InputError

from ...snapshots import check, run_here

ROW = """\
- id: {id}
  source: example/repository@abc123; docs/runs.md
  stack: megatron-core-2025
  model:
    hidden: 4096
    layers: 32
    heads: 32
    kv_heads: 8
    head_dim: 128
    ffn_hidden: 14336
    gated_mlp: true
    vocab: 128256
    seq_len: 8192
    tied_embeddings: false
  cluster: {{gpu: h100_sxm_80g, num_gpus: 16, gpus_per_node: 8, nic_gbps_per_node: 3200}}
  layout:
    tp: 2
    sp: true
    pp: 2
    cp: 1
    ep: 1
    dp: 4
    zero_stage: 1
    schedule: 1f1b
    micro_batch: 1
    global_batch: 64
    precision: bf16
    recompute: {{mode: none, modules: []}}
  features: {{attention: cudnn, loss: fused, grad_reduce: fp32}}
  measured: {{step_s: 2.0, peak_memory_gib: 40.0, peak_memory_kind: allocated, peak_memory_scope: max over ranks}}
"""


def row(name: str = "one", **changed: str) -> str:
    """The example with single lines or parts of them replaced: `row(tp="tp: 3")` replaces the line of `tp`."""
    text = ROW.format(id=name)
    for key, line in changed.items():
        text, count = re.subn(rf"(?m)^( +){key}: .*\n", rf"\g<1>{line}\n" if line else "", text)
        assert count == 1, key
    return text


def cases(tmp_path: Path, text: str, name: str = "runs.yaml") -> tuple[list[Case], list[str]]:
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    problems = Problems([])
    found = list(read_cases([path], problems))
    return found, [str(problem).replace(f"{path}, ", "").replace(f"{path}: ", "") for problem in problems.first]


GPT_OSS = """\
    name: gpt-oss-120b
    moe: {experts: 128, topk: 4, expert_ffn: 2880, shared: 0, moe_layers: 36}
    sliding_window: 128
    window_layers: 18
    sink_attention: true
    qkv_bias: true
"""


def one(tmp_path: Path, text: str) -> Case:
    found, problems = cases(tmp_path, text)
    assert not problems
    return found[0]


def stack(tmp_path: Path, features: str) -> StackSpec:
    return one(tmp_path, row(features=f"features: {features}")).stack


# --- reading


def test_the_fields_of_a_row(tmp_path: Path) -> None:
    case = one(tmp_path, row())
    assert str(case.layout) == "tp2-pp2-dp4-mbs1-z1-rnone"
    assert (case.model.num_layers, case.model.hidden, case.workload.global_batch) == (32, 4096, 64)
    assert case.cluster.levels[-1].bw_bytes_per_s == 3200e9 / 8 / 8
    assert case.measured.peak_memory_bytes == 40 * 2**30
    assert (case.regime, case.quality, case.core, case.group) == ("dense-pp", "B", False, None)
    assert not case.assumptions


@pytest.mark.parametrize("form", ["yaml", "json", "jsonl", "jsonl.gz", "indented"])
def test_every_form_of_a_file_gives_the_same_rows(tmp_path: Path, form: str) -> None:
    text = "# two runs\n\n" + row("a") + row("b")
    data = read_document("x.yaml", text).data
    path = tmp_path / f"runs.{form}"
    if form == "json":
        path.write_text(json.dumps(data, indent=1))
    elif form.startswith("jsonl"):
        lines = "".join(json.dumps(each) + "\n" for each in data)
        path.write_bytes(gzip.compress(lines.encode()) if form.endswith("gz") else lines.encode())
    else:
        path.write_text(re.sub("(?m)^", "  ", text) if form == "indented" else text)
    problems = Problems([])
    found = list(read_cases([path], problems))
    assert [case.id for case in found] == ["a", "b"]
    assert not problems.count
    assert predict(found[1]) == predict(one(tmp_path, row("b")))


def test_memory_does_not_grow_with_the_file(tmp_path: Path) -> None:
    """Rows come one by one: the first is there before the last line of a file is read."""
    path = tmp_path / "runs.yaml"
    path.write_text(row("a") + row("b") + "- id: [broken\n")
    assert next(iter(read_cases([path], Problems([])))).id == "a"


def test_what_is_left_out_is_assumed_and_labelled(tmp_path: Path) -> None:
    text = row(micro_batch="micro_batch: null", recompute="recompute: {mode: unknown}", tied_embeddings="",
               zero_stage="", features="features: {}", measured="measured: {}", stack="",
               cluster="cluster: {gpu: h100_sxm_80g, num_gpus: 16}")  # fmt: skip
    case = one(tmp_path, text)
    check("validate-assumptions", "".join(f"{label}\n" for label in case.assumptions))
    assert (case.layout.micro_batch, case.layout.zero, case.cluster.gpus_per_node) == (1, 0, 8)
    assert not case.recompute_known
    assert case.measured.step_s is None
    assert case.stack == load_stack("generic")


@pytest.mark.parametrize(
    ("features", "field", "value"),
    [
        ("{attention: 'unfused (no flash attention)'}", "attention", "unfused"),
        ("{attention: flash3}", "attention", "flash3"),
        ("{attention: flash1, attn_impl: triton}", "attention", "triton"),
        ("{tp_comm_overlap: true}", "sequence_parallel_overlap", 0.45),
        ("{async_tp: true}", "sequence_parallel_overlap", 0.45),
        ("{tp_comm_overlap: false}", "sequence_parallel_overlap", 0.0),
        ("{dp_overlap: false}", "dp_overlap", 0.0),
        ("{grad_sync_overlap: true}", "dp_overlap", 0.8),
        ("{dp_overlap: true, param_sync_overlap: false}", "dp_gather_overlap", 0.0),
        ("{dp_overlap_grad: true, dp_overlap_param: true}", "dp_gather_overlap", 0.8),
        ("{gradient_accumulation_fusion: false}", "fused_accumulation", False),
        ("{fp8_recipe: delayed}", "cast_bytes", 2.0),
        ("{float8_allgather: true}", "fp8_gather", True),
        ("{loss: parallel}", "loss_traffic_bytes", 56.0),
        ("{loss: plain}", "logit_bytes", 12.0),
        ("{grad_reduce: bf16}", "gradient_bytes", 2),
        ("{torch_compile: true}", "fused_activation", True),
        ("{torch_compile: true, norms: eager}", "fused_norms", True),
        ("{norms: eager}", "fused_norms", False),
        ("{moe_token_drop: true}", "dropless", False),
        ("{moe_force_balance: true}", "moe_imbalance", 1.0),
        ("{moe_capacity_factor: 1.25}", "moe_imbalance", 1.25),
        ("{moe_dispatcher: hybridep}", "ep_dispatch", "deduplicated"),
        ("{moe_dispatcher: alltoall}", "ep_dispatch", "alltoall"),
    ],
)
def test_features_change_the_stack(tmp_path: Path, features: str, field: str, value: Any) -> None:
    found = getattr(stack(tmp_path, features), field)
    expected = value(load_stack("megatron-core")) if callable(value) else value
    assert found == (expected if isinstance(expected, str) else pytest.approx(expected))


@pytest.mark.parametrize(
    ("features", "fields"),
    [
        ("{moe_a2a_overlap: true}", "epo"),
        ("{cuda_graphs: layer}", "glayer"),
        ("{cuda_graphs: none}", ""),
        ("{cuda_graphs: full_iteration}", "gfull"),
        ("{cuda_graphs: partial, cuda_graph_modules: [moe_router, attn]}", "g(attn+router)"),
        ("{cuda_graphs: partial, cuda_graph_modules: [telepathy]}", ""),
    ],
)
def test_features_change_the_layout(features: str, fields: str) -> None:
    """Switches that a search compares are fields of the layout."""
    plain = parse("tp2-dp8-ep8-mbs1-z1-rnone")
    switched = switched_layout(plain, yaml.safe_load(features))
    assert str(switched) == f"tp2-dp8-ep8-{fields}{'-' if fields else ''}mbs1-z1-rnone"
    assert switched_layout(parse("tp2-dp8-mbs1-z1-rnone"), {"moe_a2a_overlap": True}).ep_overlap == 0


def test_a_stack_without_sequence_parallelism_in_pipelines(tmp_path: Path) -> None:
    """KempnerForge's stages are split plainly, whatever a row records; its models outside pipelines are not."""
    case = one(tmp_path, row(stack="stack: torch-fsdp2-2025"))
    assert case.layout.sequence_parallel == 0
    assert "no sequence parallelism in pipelines of this stack" in case.assumptions
    whole = one(tmp_path, row(stack="stack: torch-fsdp2-2025", pp="pp: 1", dp="dp: 8", schedule="schedule: none"))
    assert whole.layout.sequence_parallel == 1


@pytest.mark.parametrize(
    ("recompute", "expected"),
    [
        ("{mode: full, modules: []}", "rfull"),
        ("{mode: full, num_layers: 3}", "rfull3"),
        ("{mode: selective, modules: [core_attn]}", "rsel"),
        ("{mode: selective, modules: [layernorm, moe_act]}", "rsel(norm+act)"),
        ("{mode: selective, modules: [], every_nth_layer: 2}", "rfull8"),
        ("{mode: selective, modules: [all_but_half_of_matmuls_and_sdpa]}", "rfull9"),
        ("{mode: selective, modules: [all_but_matmuls]}", "rsel(attn+norm+act)"),
        ("{mode: unknown}", "rnone"),
    ],
)
def test_recompute(tmp_path: Path, recompute: str, expected: str) -> None:
    assert str(one(tmp_path, row(recompute=f"recompute: {recompute}")).layout).endswith(expected)


def test_the_network_is_found_by_its_words(tmp_path: Path) -> None:
    shape = "gpu: a100_sxm_80g, num_gpus: 16, gpus_per_node: 8, nic_gbps_per_node: 400"
    found = {"4x100Gb/s Omni-Path per node": "omni-path", "8x200Gb/s HDR InfiniBand": "hdr-ib", "4x EFA": "efa",
             "8x200Gb/s (DGX A100 default, not stated)": "hdr-ib"}  # fmt: skip
    for words, kind in found.items():
        cluster = f"cluster: {{{shape}, inter_node_as_stated: '{words}'}}"
        assert one(tmp_path, row(cluster=cluster, dp="dp: 4")).cluster.levels[-1].kind == kind


def test_a_rack_is_one_domain(tmp_path: Path) -> None:
    """64 trays of four GPUs on NVL72 racks: four racks of 16 trays, joined by NICs."""
    shape = "gpu: gb200_nvl72, num_gpus: 256, gpus_per_node: 4, nic_gbps_per_node: 1600"
    cluster = f"cluster: {{{shape}, intra_node: 'NVLink5, 72-GPU NVL72 domain'}}"
    case = one(tmp_path, row(cluster=cluster, dp="dp: 64"))
    assert [level.size for level in case.cluster.levels] == [64, 256]
    used = cluster.replace("72-GPU NVL72 domain", "NVL72 domain (72 GPUs per rack; 32 used per rack)")
    assert one(tmp_path, row(cluster=used, dp="dp: 64")).cluster.levels[0].size == 32


def test_four_gpus_without_a_switch_have_a_third_of_the_links_to_each_other(tmp_path: Path) -> None:
    text = row(cluster="cluster: {gpu: h200_sxm, num_gpus: 2, gpus_per_node: 4, intra_node: NVLink}", pp="pp: 1",
               dp="dp: 1")  # fmt: skip
    switched = text.replace("intra_node: NVLink", "intra_node: NVSwitch")
    mesh, switch = (one(tmp_path, each).cluster.levels[0].bw_bytes_per_s for each in (text, switched))
    assert mesh == pytest.approx(switch / 3)


def test_stated_stages_are_priced_as_they_are(tmp_path: Path) -> None:
    """The slowest stage of 20 layers instead of 16 makes the step longer; stages that do not add up are left out."""
    even = one(tmp_path, row())
    stated = one(tmp_path, row(schedule="schedule: 1f1b\n    stage_split: {layers: [16, 16]}"))
    uneven = one(tmp_path, row(schedule="schedule: 1f1b\n    stage_split: {layers: [20, 12]}"))
    wrong = one(tmp_path, row(schedule="schedule: 1f1b\n    stage_split: {layers: [20, 20]}"))
    assert uneven.chunks == (20, 12)
    assert predict(stated) == predict(even)
    assert 1.1 < predict(uneven).step_s / predict(even).step_s < 1.3
    assert wrong.chunks is None
    assert any("do not add up" in label for label in wrong.assumptions)


def test_stages_spread_over_their_chunks(tmp_path: Path) -> None:
    text = row(schedule="schedule: interleaved-1f1b\n    vpp: 4\n    stage_split: {layers: [15, 17]}")
    case = one(tmp_path, text)
    assert case.chunks is not None
    assert (sum(case.chunks[0::2]), sum(case.chunks[1::2])) == (15, 17)


def test_the_memory_of_the_kind_and_rank_that_was_measured(tmp_path: Path) -> None:
    def peak(kind: str, scope: str = "max over ranks") -> float:
        measured = f"measured: {{peak_memory_gib: 40, peak_memory_kind: {kind}, peak_memory_scope: {scope}}}"
        return predict(one(tmp_path, row(measured=measured))).peak_memory_bytes

    assert peak("allocated") < peak("reserved") < peak("nvidia-smi")
    assert peak("allocated") == max(peak("allocated", "one rank"), peak("allocated", "last rank"))


def test_orders_that_no_layout_names(tmp_path: Path) -> None:
    """The less of its activations a V keeps, the more it waits (arXiv 2405.15362): where F, I and W differ
    V-Half as long as 1F1B, V-Min longer."""
    def run(schedule: str) -> Prediction:
        changed = row(schedule=f"schedule: {schedule}", pp="pp: 8", tp="tp: 1", sp="sp: false", dp="dp: 2",
                      global_batch="global_batch: 64")  # fmt: skip
        return predict(one(tmp_path, changed))

    names = ("zb-v", "v-half", "v-min")
    runs = {name: run(name) for name in names}
    times = [runs[name].step_s for name in names]
    assert times == sorted(times)
    assert times[0] < times[1] < 1.01 * run("1f1b").step_s < times[2]
    kept = [runs[name].peak_memory_bytes for name in ("v-min", "v-half", "zb-v")]
    assert kept == sorted(kept)
    assert run("V_Half") == runs["v-half"]
    assert sum(runs["v-half"].terms.values()) == pytest.approx(runs["v-half"].step_s)


def test_stacks_belong_to_families() -> None:
    table = read_document(FAMILIES).data
    assert len(table["families"]) <= 9  # eight on GPUs, XLA on TPUs and Trainium
    assert set(table["families"]) == set(stack_names())
    for name, version in table["versions"].items():
        spec, warnings = stack_for(name)
        assert spec.name == version["family"]
        assert not warnings
        kernels = ("attention", "logit_bytes", "loss_traffic_bytes")
        counts = ("messages_ahead", "step_reductions") if name == "meshwright" else ()  # of calls, in its own code
        numbers = [key for key, fact in version.items() if key not in ("family", *kernels, *counts)
                   and isinstance(fact["value"], int | float) and not isinstance(fact["value"], bool)
                   and fact["value"] != 0]  # fmt: skip
        assert len(numbers) <= (4 if name == "meshwright" else 2)  # its own overlaps are measured, not fitted to runs
        assert all(fact["source"] for key, fact in version.items() if key != "family")


@pytest.mark.parametrize(
    ("name", "family"),
    [
        ("megatron-bridge-27.01", "megatron-core"), ("torchtitan-2026", "torchtitan"), ("maxtext-2025", "xla"),
        ("megatron-deepspeed-2023", "megatron-lm"), ("Megatron-LM-2020", "megatron-lm"),
        ("deepspeed-0.17", "deepspeed"), ("my-own-trainer", "generic"), ("", "generic"),
    ],
)  # fmt: skip
def test_an_unknown_stack_takes_its_family_with_a_warning(name: str, family: str) -> None:
    spec, warnings = stack_for(name)
    assert spec == load_stack(family)
    assert warnings


# --- what is wrong


BAD = {
    "missing": row(hidden="", tp="", global_batch=""),
    "unknown-gpu": row(cluster="cluster: {gpu: h1000, num_gpus: 16}"),
    "degrees": row(dp="dp: 5"),
    "nan": row(measured="measured: {step_s: .nan}"),
    "zero": row(measured="measured: {step_s: 0, peak_memory_gib: -3}"),
    "types": row(layers="layers: many", tp="tp: 2.5", sp="sp: 3"),
    "parts": row(measured="").replace("model:\n", "model: 7\n  rest:\n"),
    "heads": row(kv_heads="kv_heads: 7"),
    "syntax": row("a") + row("b", tp="tp: [2") + row("c", dp="dp: 9"),
    "duplicate": row("a") + row("b") + row("a"),
    "not-a-list": "model: x\n",
    "empty": "\n# nothing\n",
    "scalar": "- 3\n",
}


@pytest.mark.parametrize("name", BAD)
def test_what_is_wrong_is_said_with_line_and_field(tmp_path: Path, name: str) -> None:
    _, problems = cases(tmp_path, BAD[name])
    assert problems
    check(f"validate-bad-{name}", "".join(f"{problem}\n" for problem in problems).replace(str(tmp_path), "[TMP]"))


def test_all_problems_come_together_and_nothing_is_judged(tmp_path: Path) -> None:
    path = tmp_path / "runs.yaml"
    path.write_text(row("a", dp="dp: 5") + row("b") + row("c", measured="measured: {step_s: .nan}"))
    with pytest.raises(InputError) as raised:
        validate([path, tmp_path / "none.yaml"])
    assert len(raised.value.details["problems"]) == 3
    found = validate([path], keep_going=True)
    assert [run.id for run in found.rows] == ["b"]
    assert len(found.problems) == 2
    path.write_text(row("a", dp="dp: 5"))
    with pytest.raises(InputError):
        validate([path], keep_going=True)


# --- errors, summary, sweeps


def outcome(name: str, predicted: float | None, measured: float | None, **changed: Any) -> RunOutcome:
    values: dict[str, Any] = {
        "id": name, "source": "s", "hardware": "g", "regime": "dense", "stack": "k", "family": "f", "group": None,
        "core": False, "quality": "B", "scored": True, "memory_scored": True, "step_s": predicted,
        "measured_step_s": measured, "peak_memory_bytes": None, "measured_peak_memory_bytes": None,
        "memory_kind": "allocated", "refused": None if predicted else "cannot", "tp_pp": 1, "micro_batch": 1,
        "layout": name,
    }  # fmt: skip
    return RunOutcome(**{**values, **changed})


def test_statistics_of_errors_by_hand() -> None:
    found = error_statistics([0.1, -0.2, 0.3, -0.4])
    assert found is not None
    by_hand = {"count": 4, "mean": 0.25, "median": 0.25, "p90": 0.37, "max": 0.4, "bias": -0.05}
    assert asdict(found) == pytest.approx(by_hand)
    assert error_statistics([]) is None
    assert quantile([1.0], 0.9) == 1.0


def test_summary_counts_what_is_scored() -> None:
    runs = [
        outcome("a", 1.1, 1.0, core=True),
        outcome("b", 0.9, 1.0, regime="moe"),
        outcome("c", None, 1.0),
        outcome("d", 2.0, 1.0, scored=False, memory_scored=False),
        outcome("e", 2.0, None, peak_memory_bytes=9.0, measured_peak_memory_bytes=10.0),
        outcome("f", 2.0, None, peak_memory_bytes=9.0, measured_peak_memory_bytes=10.0, memory_scored=False),
    ]
    summary = validation(runs).summary
    assert summary.counts == RunCounts(
        rows=6, core=1, step_time_scored=3, memory_scored=1, refused=1, without_step_time=2, quality_c=1,
        memory_with_unknown_recompute=1, with_assumptions=0,
    )  # fmt: skip
    all_runs, core_runs = summary.step_time.all, summary.step_time.core
    assert all_runs is not None
    assert all_runs.mean == pytest.approx((0.1 + 0.1 + 1.0) / 3)  # refused: 100 % off
    assert core_runs is not None
    assert core_runs.count == 1
    assert summary.step_time.by_regime["moe"].bias == pytest.approx(-0.1)
    assert summary.memory["allocated"].too_little == 1
    assert summary.refused == {"c": "cannot"}
    assert set(validation(runs, core=True).summary.step_time.by_regime) == {"dense"}


def test_regret_by_hand() -> None:
    """Predicted best is the second: 12 s against 10 s. The rule takes tp x pp = 1 with micro batch 4: 11 s."""
    runs = [
        outcome("a", 5.0, 10.0, tp_pp=2), outcome("b", 4.0, 12.0, tp_pp=1, micro_batch=2),
        outcome("c", 6.0, 11.0, tp_pp=1, micro_batch=4), outcome("d", None, 20.0, tp_pp=4),
    ]  # fmt: skip
    found = sweep_of("g", runs)
    assert found.regret == pytest.approx(0.2)
    assert found.rule_regret == pytest.approx(0.1)
    assert found.random_regret == pytest.approx((10 + 12 + 11 + 20) / 4 / 10 - 1)
    assert (found.chosen, found.best, found.picked_best) == ("b", "a", False)


def test_kendall_tau_by_hand() -> None:
    """tau-b over all pairs: (concordant - discordant) / sqrt(pairs untied in one x pairs untied in the other)."""
    predicted, measured = [1.0, 2.0, 2.0, 4.0, 3.0], [10.0, 30.0, 20.0, 40.0, 40.0]
    signs = [
        ((a > b) - (a < b), (x > y) - (x < y))
        for (a, x), (b, y) in combinations(zip(predicted, measured, strict=True), 2)
    ]
    score = sum(s * t for s, t in signs)
    expected = score / (sum(s != 0 for s, _ in signs) * sum(t != 0 for _, t in signs)) ** 0.5
    assert kendall_tau(predicted, measured) == pytest.approx(expected)
    assert kendall_tau([1.0, 1.0], [1.0, 2.0]) is None
    assert kendall_tau([1.0, float("inf")], [1.0, 2.0]) == pytest.approx(1.0)


@pytest.mark.parametrize("seed", range(30))
def test_kendall_tau_is_that_of_scipy(seed: int) -> None:
    from scipy.stats import kendalltau  # takes seconds, in every worker that collects this file

    draw = np.random.default_rng(seed)
    predicted, measured = draw.integers(1, 3 + seed, (2, 2 + seed)).astype(float).tolist()
    expected = None if min(len(set(predicted)), len(set(measured))) < 2 else kendalltau(predicted, measured).statistic
    assert kendall_tau(predicted, measured) == expected


@pytest.mark.parametrize(
    ("text", "label"),
    [
        ("VIA-Research/vTrain@f8dda84 data/ground_truth_multi.csv (MIT)", "VIA-Research/vTrain ground_truth_multi.csv"),
        ("mlcommons/training_results_v3.0@63e; a/n64_23.04_nemo/gpt3; b", "mlcommons/training_results_v3.0"),
        ("Narayanan et al., SC21 Table 2; examples in cli99/llm-analysis@1", "Narayanan et al., SC21 Table 2"),
        ("a@b; docs/summary.md section 26.08", "a summary.md"),
    ],
)  # fmt: skip
def test_sources_are_grouped_by_repository_and_file(text: str, label: str) -> None:
    assert source_of(text) == label


# --- the shipped runs and the command


def test_measured_values_do_not_reach_the_prediction(tmp_path: Path) -> None:
    slower = row(measured="measured: {step_s: 9.0, peak_memory_gib: 10, peak_memory_kind: allocated}")
    assert predict(one(tmp_path, slower)) == predict(one(tmp_path, row()))


def test_the_shipped_runs_are_all_read() -> None:
    problems = Problems([])
    found = list(read_cases(shipped_files(), problems))
    assert (len(found), problems.count) == (706, 0)
    assert all(case.source != "not stated" for case in found)
    assert len({case.id for case in found}) == 706


def test_the_command_prints_tables(tmp_path: Path) -> None:
    """Measured values are the predictions with a known error, so that the figures on the screen do not move."""
    path = tmp_path / "runs.yaml"
    step_s = predict(one(tmp_path, row())).step_s
    path.write_text(row("a", measured=f"measured: {{step_s: {step_s / 1.1}}}"))
    result = run_here("validate", "runs.yaml", "--rows", cwd=tmp_path)
    assert result.code == 0
    assert "1 runs, 1 scored on time, 0 on memory" in result.out
    assert re.search(r"all +1 +10\.0 +10\.0 +10\.0 +10\.0 +10\.0", result.out)
    document = json.loads(run_here("validate", "runs.yaml", "--json", cwd=tmp_path).out)
    assert document["kind"] == "validation"
    wanted = {"id", "step_s", "measured_step_s", "step_s_low", "step_s_high", "peak_memory_bytes",
              "measured_peak_memory_bytes", "refused"}  # fmt: skip
    assert wanted <= set(document["rows"][0])
    assert document["rows"][0]["step_error"] == pytest.approx(0.1)
    assert {"groups", "summary", "problems"} <= set(document)


def test_the_command_says_what_is_wrong(tmp_path: Path) -> None:
    (tmp_path / "runs.yaml").write_text(row("a", dp="dp: 5") + row("b"))
    check("validate-error", run_here("validate", "runs.yaml", cwd=tmp_path))
    assert run_here("validate", "runs.yaml", "--keep-going", "--no-rows", cwd=tmp_path).code == 0


def test_the_picture(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    draw([outcome("a", 1.1, 1.0)], tmp_path / "errors.png")
    assert (tmp_path / "errors.png").read_bytes().startswith(b"\x89PNG")


def test_a_plot_without_matplotlib_is_an_error_with_a_hint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "matplotlib", None)
    (tmp_path / "runs.yaml").write_text(row())
    result = run_here("validate", "runs.yaml", "--plot", "errors.png", cwd=tmp_path)
    assert result.code == 2
    assert "meshwright[plot]" in result.err


def test_what_rows_leave_out_of_experts_is_the_catalogues(tmp_path: Path) -> None:
    """Shapes of gpt-oss under its name: its experts have biases, and YaRN stretches its positions. Under other shapes,
    or as another model, nothing is added."""
    shapes = {"hidden": "hidden: 2880", "layers": "layers: 36", "heads": "heads: 64", "head_dim": "head_dim: 64",
              "ffn_hidden": "ffn_hidden: 2880", "vocab": "vocab: 201088"}  # fmt: skip
    text = row(**shapes).replace("  model:\n", f"  model:\n{GPT_OSS}")
    case = one(tmp_path, text)
    block, scaling = case.model.kinds[-1].feed_forward, case.model.rope_scaling
    assert isinstance(block, MixtureOfExperts)
    assert block.expert_bias
    assert scaling is not None
    assert scaling.kind == "yarn"
    assert any(label.endswith("of gpt-oss-120b (not stated)") for label in case.assumptions)
    for other in (text.replace("expert_ffn: 2880", "expert_ffn: 1440"), text.replace("gpt-oss-120b", "of our own")):
        found = one(tmp_path, other).model
        assert isinstance(found.kinds[-1].feed_forward, MixtureOfExperts)
        assert not found.kinds[-1].feed_forward.expert_bias
        assert found.rope_scaling is None
