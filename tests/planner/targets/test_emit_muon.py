"""Muon: written for both targets that configure Megatron Core, read back, and refused elsewhere."""

from __future__ import annotations

from pathlib import Path

import pytest
from meshwright.planner import api
from meshwright.planner.document.plan import Plan
from meshwright.planner.importing import import_config
from meshwright.planner.request.load import load_request
from meshwright.planner.targets.check import check_files
from meshwright.planner.targets.emit import LayoutRefusedError, emit

from meshwright.errors import InputError, UnsupportedError

FILES = {"megatron": "megatron.args", "megatron-bridge": "bridge_plan.py"}
SHARED, WHOLE = "tp2-dp8-ep4-mbs1-z1-rfull", "tp2-dp8-ep4-mbs1-z0-rfull"


def planned(target: str, layout_id: str = SHARED, *, optimizer: str = "muon", **more: object) -> Plan:
    return api.evaluate(None, layout_id, model="mixtral-8x7b", cluster="dgx-h100:2", seq_len=4096, global_batch=64,
                        target=target, optimizer=optimizer, **more)  # type: ignore[arg-type]  # fmt: skip


def lines_of(plan: Plan, target: str) -> set[str]:
    return {line.strip() for line in emit(plan, target).files[FILES[target]].splitlines()}


def test_megatron_shares_matrices_by_the_flag_of_the_distributed_optimizer() -> None:
    shared, whole = (lines_of(planned("megatron", layout), "megatron") for layout in (SHARED, WHOLE))
    assert {"--optimizer muon", "--use-distributed-optimizer", "--overlap-param-gather"} <= shared
    assert "--optimizer muon" in whole
    assert "--use-distributed-optimizer" not in whole
    assert not [line for line in shared | whole if "muon-" in line]  # all at the defaults


def test_bridge_shares_them_by_the_name_of_the_optimizer() -> None:
    shared, whole = (lines_of(planned("megatron-bridge", layout), "megatron-bridge") for layout in (SHARED, WHOLE))
    assert 'optimizer="dist_muon",' in shared
    assert 'optimizer="muon",' in whole
    assert not [line for line in shared if "use_distributed_optimizer" in line or line == "overlap_param_gather=True,"]


@pytest.mark.parametrize("target", FILES)
@pytest.mark.parametrize("layout", [SHARED, WHOLE])
def test_what_is_written_is_in_order_and_read_back(target: str, layout: str, tmp_path: Path) -> None:
    files = emit(planned(target, layout), target).files
    assert not check_files(files).problems
    path = tmp_path / FILES[target]
    path.write_text(files[FILES[target]], encoding="utf-8")
    kind = {"megatron": "megatron-args"}.get(target, target)
    found = import_config(kind, [path], {"cluster": "dgx-h100:2"})
    assert found.request.workload.optimizer == "muon"
    assert str(found.layout) == layout


def test_the_older_name_of_the_layer_wise_optimizer_is_read(tmp_path: Path) -> None:
    text = emit(planned("megatron"), "megatron").files["megatron.args"]
    older = text.replace("--optimizer muon", "--optimizer dist_muon").replace("--use-distributed-optimizer\n", "")
    path = tmp_path / "megatron.args"
    path.write_text(older, encoding="utf-8")
    found = import_config("megatron-args", [path], {"cluster": "dgx-h100:2"})
    assert (found.request.workload.optimizer, found.layout.zero) == ("muon", 1)


@pytest.mark.parametrize(("more", "text"), [
    ("--use-precision-aware-optimizer", "is only supported with --optimizer adam"),
    ("--num-distributed-optimizer-instances 2", "the layer-wise optimizer has one instance"),
    ("--ckpt-format fsdp_dtensor", "emerging optimizers support torch and torch_dist"),
    ("--use-torch-fsdp2", "emerging optimizers do not support Torch-FSDP2"),
])  # fmt: skip
def test_arguments_that_megatron_refuses_beside_muon_are_named(more: str, text: str) -> None:
    files = emit(planned("megatron"), "megatron").files
    edited = {**files, "megatron.args": f"{files['megatron.args']}{more}\n"}
    assert text in "\n".join(str(problem) for problem in check_files(edited).problems)
    plain = emit(planned("megatron", optimizer="adamw"), "megatron").files
    edited = {**plain, "megatron.args": f"{plain['megatron.args']}{more}\n"}
    assert text not in "\n".join(str(problem) for problem in check_files(edited).problems)


def test_bridge_shares_no_states_of_adam_beside_muon() -> None:
    files = emit(planned("megatron-bridge"), "megatron-bridge").files
    more = 'optimizer="dist_muon",\n            use_distributed_optimizer=True,'
    module = files["bridge_plan.py"].replace('optimizer="dist_muon",', more)
    problems = "\n".join(str(problem) for problem in check_files({**files, "bridge_plan.py": module}).problems)
    assert "goes with adam; dist_muon shares the states of muon" in problems


@pytest.mark.parametrize(("layout", "text"), [
    ("tp2-dp8-ep4-mbs1-z2-rfull", "muon needs whole weights and gradients"),
    ("tp2-dp8-ep4-mbs1-z1-rfull-oopt", "muon needs its states on the GPU"),
    ("tp2-dp8-sh4-ep4-mbs1-z1-rfull", "one instance: shard 4 of dp 8"),
])  # fmt: skip
@pytest.mark.parametrize("target", FILES)
def test_layouts_that_muon_cannot_have_are_refused(target: str, layout: str, text: str) -> None:
    with pytest.raises((InputError, LayoutRefusedError), match=text):
        emit(planned(target, layout), target)


@pytest.mark.parametrize("target", ["meshwright", "torchtitan", "deepspeed", "accelerate"])
def test_other_targets_refuse_it_when_planned_and_when_written(target: str) -> None:
    with pytest.raises(UnsupportedError, match=r"muon|Muon") as refused:
        api.plan(None, model="llama-3-8b", cluster="dgx-h100", target=target, optimizer="muon")
    assert "megatron and megatron-bridge have all of it" in (refused.value.hint or "")
    with pytest.raises(LayoutRefusedError, match=r"muon|Muon"):
        emit(planned("any", "dp16-mbs1-z0-rfull"), target)


def test_half_precision_and_old_releases_are_refused() -> None:
    with pytest.raises(UnsupportedError, match="Muon does not train in fp16"):
        api.plan(None, model="llama-3-8b", cluster="dgx-h100", target="megatron", optimizer="muon", dtype="fp16")
    with pytest.raises(LayoutRefusedError, match=r"muon is planned for core_v0\.18\.0 and later"):
        emit(planned("megatron"), "megatron", version="0.17.0")


def test_what_is_not_priced_with_muon_is_an_error() -> None:
    asked = {"model": "llama-3-8b", "cluster": "dgx-h100", "optimizer": "muon"}
    with pytest.raises(InputError, match="optimizer muon: adapters are not priced with it"):
        load_request(None, {**asked, "lora": 8}).to_workload()
    with pytest.raises(InputError, match="optimizer muon: diloco is not priced with it"):
        load_request(None, {**asked, "technique": {"diloco": {}}}).to_workload()


def test_a_config_of_deepspeed_with_its_muon_is_not_read_as_adam(tmp_path: Path) -> None:
    path = tmp_path / "ds_config.json"
    path.write_text('{"optimizer": {"type": "Muon"}, "train_micro_batch_size_per_gpu": 1, "train_batch_size": 16}')
    found = import_config("deepspeed", [path], {"cluster": "dgx-h100:2", "model": "llama-3.1-8b"})
    assert [(gap.field, gap.message) for gap in found.gaps] == [("optimizer.type", "Muon has no counterpart in a plan")]
