"""Launch files of plans that train by a technique: DeepSpeed's options, read back, and refused elsewhere by name."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from meshwright.planner import api
from meshwright.planner.document.plan import Plan
from meshwright.planner.importing import import_config
from meshwright.planner.targets import framework_parser
from meshwright.planner.targets.check import check_files
from meshwright.planner.targets.emit import check_trained, emit
from meshwright.planner.targets.option_lists import option_list
from meshwright.planner.targets.setup import Setup

from meshwright.errors import UnsupportedError

from .emit_plans import config_of

ASKED: dict[str, Any] = {"model": "llama-3.2-1b", "cluster": "dgx-h100:2", "seq_len": 2048, "global_batch": 64,
                         "target": "deepspeed"}  # fmt: skip
SHARDED, REPLICAS = "dp16-mbs1-z3-rnone", "dp16-mbs1-z0-rnone"


def plan_of(layout_id: str, technique: Any, **more: Any) -> Plan:
    return api.evaluate(None, layout_id, technique=technique, **{**ASKED, **more})


CASES: dict[str, tuple[Plan, dict[str, Any]]] = {
    "zero++": (plan_of(SHARDED, "zero++"), {
        "zero_quantized_weights": True, "zero_hpz_partition_size": 8, "zero_quantized_gradients": True}),
    "weights": (plan_of(SHARDED, {"zero++": {"gradient_bits": 16, "secondary": 4}}), {
        "zero_quantized_weights": True, "zero_hpz_partition_size": 4, "zero_quantized_gradients": False}),
    "drives": (plan_of(SHARDED, "zero-infinity"), {
        "offload_optimizer": {"device": "nvme", "nvme_path": "/local_nvme", "pin_memory": True},
        "offload_param": {"device": "nvme", "nvme_path": "/local_nvme", "pin_memory": True}}),
    "optimizer": (plan_of(SHARDED, {"zero-infinity": {"weights": 0}}), {
        "offload_optimizer": {"device": "nvme", "nvme_path": "/local_nvme", "pin_memory": True}}),
    "host": (plan_of(SHARDED, "cpu-offload"), {
        "offload_optimizer": {"device": "cpu", "pin_memory": True},
        "offload_param": {"device": "cpu", "pin_memory": True}}),
    "weights on the host": (plan_of(SHARDED, {"cpu-offload": {"optimizer": 0}}), {
        "offload_param": {"device": "cpu", "pin_memory": True}}),
    "1-bit-adam": (plan_of(f"{REPLICAS}-fp16", "1-bit-adam", total_tokens="1B", dtype="fp16"), {}),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_deepspeed_says_the_technique_and_reads_it_back(name: str, tmp_path: Path) -> None:
    plan, wanted = CASES[name]
    files = emit(plan, "deepspeed").files
    config = json.loads(files["ds_config.json"])

    assert wanted.items() <= config["zero_optimization"].items()
    known = option_list("deepspeed")[0].options
    assert all(f"zero_optimization.{option}" in known for option in wanted)
    if name == "1-bit-adam":
        steps = 1e9 / (64 * 2048)
        assert config["optimizer"] == {"type": "OneBitAdam", "params": {
            "lr": "auto", "freeze_step": round(0.15 * steps), "cuda_aware": False, "comm_backend_name": "nccl"}}
    assert check_files(files).problems == []
    (tmp_path / "ds_config.json").write_text(files["ds_config.json"], encoding="utf-8")
    imported = import_config("deepspeed", [tmp_path / "ds_config.json"], {
        "model": ASKED["model"], "cluster": ASKED["cluster"], "seq_len": 2048})
    assert imported.price().best.step_s == pytest.approx(plan.best.step_s, rel=1e-6)


@pytest.mark.parametrize(
    ("target", "main_file", "option", "without"),
    [("accelerate", "accelerate.yaml", "fsdp_offload_params: true", "fsdp_offload_params: false"),
     ("torchtitan", "torchtitan_plan.py", "enable_cpu_offload=True", "enable_cpu_offload=False")],
)  # fmt: skip
def test_states_on_the_host(target: str, main_file: str, option: str, without: str, tmp_path: Path) -> None:
    """The option of FSDP2 is written, read back at the same price, and missed where it is edited away."""
    plan = plan_of(SHARDED, "cpu-offload", target=target, model="llama-3.1-8b")
    files = dict(emit(plan, target).files)
    assert option in files[main_file]
    assert check_files(files).problems == []
    if target == "accelerate":
        (tmp_path / main_file).write_text(files[main_file], encoding="utf-8")
        (tmp_path / "arguments.json").write_text(files["training_arguments.json"], encoding="utf-8")
        imported = import_config(target, [tmp_path / main_file, tmp_path / "arguments.json"], {
            "model": "llama-3.1-8b", "cluster": ASKED["cluster"], "seq_len": 2048})
        assert imported.price().best.step_s == pytest.approx(plan.best.step_s, rel=1e-6)
    files[main_file] = files[main_file].replace(option, without)
    assert any("techniques is none, plan.json has cpu-offload" in str(each) for each in check_files(files).problems)


def test_inputs_of_recomputed_layers_in_parts(tmp_path: Path) -> None:
    """Megatron-LM's option is written, read back at the same price, missed where it is edited away, and refused with
    sequence parallelism, as its parser does."""
    plan = plan_of("tp4-nosp-dp4-mbs4-z1-rfull", "partitioned-checkpoints", target="megatron", model="llama-2-7b")
    files = dict(emit(plan, "megatron").files)
    assert "--distribute-saved-activations" in files["megatron.args"].splitlines()
    assert check_files(files).problems == []
    (script := tmp_path / "train.sh").write_text(
        f"torchrun --nproc_per_node 8 --nnodes 2 pretrain_gpt.py {' '.join(lines_of(files['megatron.args']))}\n")
    imported = import_config("megatron-args", [script], {"cluster": ASKED["cluster"]})
    assert imported.price().best.step_s == pytest.approx(plan.best.step_s, rel=1e-6)
    without = {**files, "megatron.args": files["megatron.args"].replace("--distribute-saved-activations\n", "")}
    problems = " ".join(map(str, check_files(without).problems))
    assert "techniques is none, plan.json has partitioned-checkpoints" in problems
    beside = {**files, "megatron.args": files["megatron.args"] + "--sequence-parallel\n"}
    assert "cannot be given together with --sequence-parallel" in " ".join(map(str, check_files(beside).problems))


@pytest.mark.parametrize(("target", "main_file"), [("megatron-bridge", "bridge_plan.py"), ("nemo", "nemo_plan.py")])
def test_inputs_of_recomputed_layers_in_parts_in_python(target: str, main_file: str) -> None:
    plan = plan_of("tp4-nosp-dp4-mbs4-z1-rfull", "partitioned-checkpoints", target=target, model="llama-2-7b")
    files = dict(emit(plan, target).files)
    assert check_files(files).problems == []
    without, count = re.subn(r"\n\s*\S*distribute_saved_activations\s*=\s*True,?", "", files[main_file])
    assert count == 1
    problems = " ".join(map(str, check_files({**files, main_file: without}).problems))
    assert "techniques is none, plan.json has partitioned-checkpoints" in problems


def lines_of(arguments: str) -> list[str]:
    return [line for line in arguments.splitlines() if line and not line.startswith("#")]


@pytest.mark.slow
def test_deepspeed_accepts_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its parser compiles nothing: it does not wait for the lock of a build that was interrupted."""
    lock = tmp_path / "deepspeed_shm_comm" / "lock"
    lock.parent.mkdir()
    lock.touch()
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path))
    monkeypatch.setattr(framework_parser, "LIMIT_S", 120.0)
    parser = config_of("deepspeed").parser
    if parser.available_source() is None:
        pytest.skip("deepspeed is not installed")
    plans = [plan for plan, _ in CASES.values()]
    cases = [parser.case(emit(plan, "deepspeed").files, Setup.of(plan, 1)) for plan in plans]
    wrong = json.loads(json.dumps(cases[0]))
    wrong["config"]["zero_optimization"]["zero_quantized_weights"] = "eight"

    assert parser.verdicts(cases) == [None] * len(cases)
    assert parser.verdicts([wrong]) != [None]
    assert list(lock.parent.iterdir()) == [lock]


def test_a_framework_that_does_not_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(framework_parser, "LIMIT_S", 0.0)
    script = tmp_path / "parser.py"
    script.write_text("import time\ntime.sleep(60)\n", encoding="utf-8")
    parser = framework_parser.FrameworkParser(script=script, case=lambda files, setup: {}, modules=())
    with pytest.raises(UnsupportedError, match="gave no verdict in 1 s"):
        parser.verdicts([{}])


def test_an_edit_is_seen() -> None:
    files = dict(emit(CASES["zero++"][0], "deepspeed").files)
    files["ds_config.json"] = files["ds_config.json"].replace('weights": true', 'weights": false')

    (problem,) = check_files(files).problems
    assert "techniques is zero++:weight_bits=16" in str(problem)


@pytest.mark.parametrize(
    ("layout_id", "technique", "more", "to", "message", "hint"),
    [
        (SHARDED, "zero++", {}, "megatron", "megatron does not train by zero\\+\\+", "emit PLAN --to deepspeed`"),
        (SHARDED, "zero++", {}, "meshwright", "meshwright does not train by", "emit PLAN --to deepspeed`"),
        (SHARDED, "zero++", {"target": "any"}, "megatron", "megatron does not", "plan with `--target deepspeed`"),
        (SHARDED, "three-level:weights_over=2", {}, "deepspeed", "no target trains by three-level", "without"),
        (SHARDED, "zero++:weight_bits=4", {}, "deepspeed", "zero_quantized_weights sends 8 bits, not 4", "its knobs"),
        (SHARDED, "zero++:gradient_bits=8", {}, "deepspeed", "sends 4 bits, not 8", "its knobs"),
        (SHARDED, "zero++:secondary=3", {}, "deepspeed", "3 does not divide 16 ranks", "its knobs"),
        ("tp2-nosp-dp8-mbs1-z3-rnone", "zero++", {}, "deepspeed", "neighbours of ZeRO\\+\\+ count ranks", ""),
        (REPLICAS, "1-bit-adam", {}, "deepspeed", "plan with `--total-tokens`", "its knobs"),
        (SHARDED, "zero-infinity:optimizer=0", {}, "deepspeed", "only together with the optimizer", "its knobs"),
    ],
)  # fmt: skip
def test_what_cannot_be_said_is_refused(
    layout_id: str, technique: str, more: dict[str, Any], to: str, message: str, hint: str
) -> None:
    with pytest.raises(UnsupportedError, match=message) as refusal:
        emit(plan_of(layout_id, technique, **more), to)
    assert hint in refusal.value.hint


def test_a_launch_of_a_plan_for_another_target_names_emit() -> None:
    with pytest.raises(UnsupportedError, match=r"meshwright cannot train .* it does not train by zero") as refusal:
        check_trained(CASES["zero++"][0], "meshwright")
    assert "`meshwright emit PLAN --to deepspeed`" in refusal.value.hint
