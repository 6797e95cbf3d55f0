"""Rows of TPUs, of adapters and of chips of two devices: how they are read, and what is wrong in them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from meshwright.cost_models.layouts import module_mask
from meshwright.cost_models.specs.cluster import ClusterSpec
from meshwright.cost_models.specs.workload import Lora
from meshwright.planner.accuracy.row import Case
from meshwright.planner.accuracy.runs import Problems, read_cases
from meshwright.planner.accuracy.validate import predict, validate

ROW = """\
- id: {id}
  source: example/repository@abc123; docs/runs.md
  stack: maxtext-2025
  model: {{name: m, hidden: 4096, layers: 32, heads: 32, kv_heads: 8, head_dim: 128, ffn_hidden: 14336,
          gated_mlp: true, vocab: 128256, seq_len: {seq_len}, tied_embeddings: false}}
  cluster: {{gpu: {gpu}, num_gpus: {num}, gpus_per_node: 4, nic_gbps_per_node: null{cluster}}}
  layout: {{tp: {tp}, pp: 1, cp: {cp}, dp: {dp}, zero_stage: 3, micro_batch: {micro}, global_batch: 256,
           precision: {precision}, recompute: {{mode: selective, {recompute}}}}}
  features: {{fsdp: true{features}}}
  measured: {{{measured}}}
"""
USUAL = {"id": "one", "seq_len": "8192", "gpu": "tpu_v5p", "num": "64", "cluster": "", "tp": "1", "cp": "1", "dp": "64",
         "micro": "1", "precision": "bf16", "recompute": "policy: full", "features": "",
         "measured": "step_s: 2.0"}  # fmt: skip


def read(tmp_path: Path, **changed: str) -> tuple[list[Case], Problems]:
    path = tmp_path / "runs.yaml"
    path.write_text(ROW.format(**USUAL | changed), encoding="utf-8")
    problems = Problems([])
    return list(read_cases([path], problems)), problems


def one(tmp_path: Path, **changed: str) -> Case:
    found, problems = read(tmp_path, **changed)
    assert not problems.first, problems.first
    return found[0]


def complaints(tmp_path: Path, **changed: str) -> list[str]:
    found, problems = read(tmp_path, **changed)
    assert not found
    return [str(problem).partition("runs.yaml, ")[2] for problem in problems.first]


def test_a_slice_is_one_torus_whatever_hosts_it_has(tmp_path: Path) -> None:
    case = one(tmp_path)
    assert [(level.name, level.size, level.torus) for level in case.cluster.levels] == [("slice", 64, (4, 4, 4))]
    two = one(tmp_path, features=", dcn_slices: 2")
    assert [(level.name, level.size, level.torus) for level in two.cluster.levels] == [
        ("slice", 32, (2, 4, 4)), ("cluster", 64, ())]  # fmt: skip
    assert predict(two).step_s > predict(case).step_s
    assert one(tmp_path, cluster=", torus: 2x4x8").cluster.levels[0].torus == (2, 4, 8)


def test_torus_that_is_wrong(tmp_path: Path) -> None:
    assert complaints(tmp_path, cluster=", torus: [4, 4, 8]") == [
        "line 6, cluster.torus: 4 x 4 x 8 = 128 chips, but a slice has 64"]  # fmt: skip
    assert complaints(tmp_path, cluster=", torus: [4, 4, 4]", features=", dcn_slices: 2") == [
        "line 6, cluster.torus: 4 x 4 x 4 = 64 chips, but a slice has 32"]  # fmt: skip
    assert complaints(tmp_path, cluster=", torus: 4by4") == [
        "line 6, cluster.torus: must be lengths of axes in chips, is '4by4'"]  # fmt: skip
    assert complaints(tmp_path, features=", dcn_slices: 3") == [
        "line 9, features.dcn_slices: 64 devices are not 3 equal slices"]  # fmt: skip


@pytest.mark.parametrize(
    ("policy", "mode", "modules", "offload", "sent"),
    [
        ("policy: full", 2, (), 0, 0),
        ("policy: minimal", 1, ("attn", "norm", "act"), 0, 0),
        ("policy: minimal_flash", 1, ("norm", "act"), 0, 0),
        ("policy: save_qkv_proj", 1, ("attn", "norm", "act", "moe", "mlp", "shared"), 0, 0),
        ("policy: qkv_proj_offloaded", 1, ("attn", "norm", "act", "moe", "mlp", "shared"), 0, 1),
        ("policy: custom, host_offloaded: [decoder_layer_input]", 2, (), 2, 0),
        ("policy: custom, kept_on_device: [query_proj, key_proj, value_proj, context]", 1,
         ("norm", "act", "moe", "mlp", "shared"), 0, 0),
    ],
)  # fmt: skip
def test_policies_of_rematerialisation(
    tmp_path: Path, policy: str, mode: int, modules: tuple[str, ...], offload: int, sent: int
) -> None:
    layout = one(tmp_path, recompute=policy).layout
    assert (layout.recompute, layout.recompute_modules, layout.offload) == (mode, module_mask(modules), offload)
    assert bool(layout.offload_modules) == bool(sent)


def test_outputs_of_blocks_on_the_host(tmp_path: Path) -> None:
    """Four micro-batches: 32 layers of 8,192 x 4,096 x 2 bytes leave and come back over a link of 12 MB/s, and show as
    far as no compute hides them; inputs of layers go the same way."""
    inputs, both = ("decoder_layer_input", "decoder_layer_input, mlpwo")
    first, second = (one(tmp_path, recompute=f"policy: custom, host_offloaded: [{names}]") for names in (inputs, both))
    assert (first.sends_outputs, second.sends_outputs) == (False, True)
    assert predict(second).step_s >= predict(first).step_s
    slow = [replace(case, cluster=_slow_host(case.cluster)) for case in (first, second)]
    terms = [predict(case).terms for case in slow]
    way_s = 32 * 8192 * 4096 * 2 / (0.8 * 15e6)  # a thousandth of the bandwidth: all of it shows, but for the compute
    assert terms[1]["offload"] - terms[0]["offload"] == pytest.approx(8 * way_s, rel=1e-3)
    assert 8 * way_s < terms[0]["offload"] < 9 * way_s  # and the inputs of both ends
    assert one(tmp_path, recompute="policy: minimal_offloaded").sends_outputs


def _slow_host(cluster: ClusterSpec) -> ClusterSpec:
    (group,) = cluster.groups
    gpu = replace(group.gpu, pcie_bw_bytes_per_s=group.gpu.pcie_bw_bytes_per_s / 1000)
    return replace(cluster, groups=(replace(group, gpu=gpu),))


def test_less_kept_takes_longer(tmp_path: Path) -> None:
    times = [predict(one(tmp_path, recompute=f"policy: {name}")).step_s
             for name in ("minimal_flash", "minimal", "save_qkv_proj", "full")]  # fmt: skip
    assert times == sorted(times)
    assert times[0] < times[-1]


def test_a_policy_that_is_not_known(tmp_path: Path) -> None:
    assert complaints(tmp_path, recompute="policy: most")[0].startswith(
        "line 8, layout.recompute.policy: `most` is none of full, none, minimal_with_context, minimal,")  # fmt: skip


def test_chips_of_two_devices(tmp_path: Path) -> None:
    """64 chips of Ironwood run 128 ranks; a row may count either."""
    chips, devices = (one(tmp_path, gpu="tpu7x", num=num, dp="128") for num in ("64", "128"))
    assert "num_gpus counts chips of 2 devices" in chips.assumptions
    assert chips.cluster.num_gpus == devices.cluster.num_gpus == 128
    assert chips.cluster.levels[0].torus == (4, 4, 4)
    assert predict(chips) == predict(devices)
    (problem,) = complaints(tmp_path, gpu="tpu7x", num="64", dp="32")
    assert "tp 1 x cp 1 x pp 1 x dp 32 = 32, but cluster.num_gpus is 64" in problem


def test_a_micro_batch_per_device(tmp_path: Path) -> None:
    """The batch is 256: MaxText gives 4 of 64 devices each, or four devices that share their work 16."""
    case = one(tmp_path, tp="4", dp="16", micro="4")
    assert (case.layout.micro_batch, case.layout.dp) == (16, 16)
    assert "micro_batch per device: times tp x cp" in case.assumptions
    assert one(tmp_path, micro="4").layout.micro_batch == 4
    assert one(tmp_path, tp="4", dp="16", micro="2").layout.micro_batch == 2  # gradients of two are added up
    assert complaints(tmp_path, cp="8", dp="8", micro="0.125") == [
        "line 7, layout.micro_batch: must be a whole number, is 0.125"]  # fmt: skip


def test_what_the_source_leaves_out_is_refused_by_name(tmp_path: Path) -> None:
    found, problems = read(tmp_path, seq_len="null", tp="null")
    assert not found
    assert not problems.first
    assert [run.reason for run in problems.unpriced] == ["not published: model.seq_len, layout.tp"]
    result = validate([tmp_path / "runs.yaml"])
    assert result.summary.refused == {"one": "not published: model.seq_len, layout.tp"}
    assert result.rows[0].step_error == -1.0


def test_a_quantity_in_two_units(tmp_path: Path) -> None:
    assert complaints(tmp_path, measured="step_s: 2.0, step_ms: 2100") == [
        "line 10, measured.step_ms: 2100 is 2.1 as `step_s`, and `step_s` is 2: one quantity, one unit"]  # fmt: skip
    assert complaints(tmp_path, measured="step_ms: 2100") == ["line 10, measured.step_ms: 2100 is 2.1 as `step_s`"]
    (problem,) = complaints(tmp_path, measured="peak_memory_gib: 40, peak_memory_gb: 43")
    assert "43 is 40.0" in problem.replace("40.0468", "40.0")


@pytest.mark.parametrize(
    ("peft", "lora"),
    [
        ("LoRA rank 16 on attention (qkv, proj); base weights frozen", Lora(rank=16, targets=("q", "k", "v", "o"))),
        ("QLoRA (4-bit base weights)",
         Lora(rank=64, targets=("q", "k", "v", "o", "gate", "up", "down"), base_dtype="nf4")),
    ],
)  # fmt: skip
def test_adapters(tmp_path: Path, peft: str, lora: Lora) -> None:
    frozen, whole = one(tmp_path, features=f', peft: "{peft}"'), one(tmp_path)
    assert frozen.workload.lora == lora
    assert predict(frozen).step_s < predict(whole).step_s  # no gradients of weights, nothing to update
    assert complaints(tmp_path, features=", peft: prefix")[0].endswith("must be LoRA or QLoRA, is 'prefix'")


def test_int8_on_a_tpu_without_fp8(tmp_path: Path) -> None:
    narrow = one(tmp_path, precision="int8")
    assert predict(narrow).step_s < predict(one(tmp_path)).step_s


def test_windows_by_their_period(tmp_path: Path) -> None:
    path = tmp_path / "runs.yaml"
    pattern = "sliding_window: 1024, sliding_pattern: '5 local : 1 global', seq_len"
    path.write_text(ROW.format(**USUAL).replace("seq_len", pattern), encoding="utf-8")
    (case,) = read_cases([path], Problems([]))
    windowed = [case.model.kinds[kind].transformer_blocks[0].window for kind in case.model.pattern]
    assert sum(window == 1024 for window in windowed) == 27  # 5 periods of 6, and 2 of the last
