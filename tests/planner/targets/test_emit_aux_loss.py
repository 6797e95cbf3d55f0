"""The balancing loss of experts: of the model's config or asked for, written where a framework takes it, read back."""

from __future__ import annotations

from pathlib import Path

import pytest
from meshwright.planner import api
from meshwright.planner.document.plan import Plan
from meshwright.planner.document.specs import model_of
from meshwright.planner.importing import import_config
from meshwright.planner.targets.check import check_files
from meshwright.planner.targets.emit import emit
from meshwright.profiles.model.huggingface import read_config

from meshwright.errors import InputError

from ...runtime.model.test_families import CASES

_FILES = {"megatron": "megatron.args", "megatron-bridge": "bridge_plan.py"}


def planned(target: str, coefficient: float | None = 0.0125, layout_id: str = "tp2-dp8-ep4-mbs1-z1-rfull") -> Plan:
    return api.evaluate(None, layout_id, model="mixtral-8x7b", cluster="dgx-h100:2", seq_len=4096, global_batch=64,
                        target=target, moe_aux_loss_coeff=coefficient)  # fmt: skip


@pytest.mark.parametrize(("target", "lines"), [
    ("megatron", {"--moe-aux-loss-coeff 0.0125"}),
    ("megatron-bridge", {"moe_aux_loss_coeff=0.0125,"}),
])  # fmt: skip
def test_it_is_written_and_an_edit_is_named(target: str, lines: set[str]) -> None:
    files, name = emit(planned(target), target).files, _FILES[target]
    assert lines <= {line.strip() for line in files[name].splitlines()}
    assert not check_files(files).problems
    edited = {**files, name: files[name].replace("0.0125", "0.5")}
    (problem,) = check_files(edited).problems
    assert "another model than plan.json (moe_aux_loss_coeff of mixtral-8x7b)" in problem.message
    assert "aux_loss" not in emit(planned(target, 0.0), target).files[name]


def test_it_is_read_back(tmp_path: Path) -> None:
    path = tmp_path / "megatron.args"
    path.write_text(emit(planned("megatron"), "megatron").files["megatron.args"], encoding="utf-8")
    found = import_config("megatron-args", [path], {"cluster": "dgx-h100:2"})
    assert isinstance(found.request.model, dict)
    assert found.request.model["moe_aux_loss_coeff"] == 0.0125
    assert not found.request.model["moe_aux_loss_per_sequence"]


def test_that_of_sequences_is_written_as_such() -> None:
    plan = api.evaluate(None, "tp2-pp2-dp8-ep8-mbs1-z1-rfull", model="deepseek-v3", cluster="dgx-h100:4", seq_len=4096,
                        global_batch=64, target="megatron", moe_aux_loss_coeff=0.0125)  # fmt: skip
    lines = emit(plan, "megatron").files["megatron.args"].splitlines()
    assert {"--moe-router-load-balancing-type seq_aux_loss", "--moe-aux-loss-coeff 0.0125"} <= set(lines)


@pytest.mark.parametrize(("target", "model"), [("torchtitan", "qwen3-30b-a3b"), ("deepspeed", "mixtral-8x7b"),
                                               ("accelerate", "mixtral-8x7b")])  # fmt: skip
def test_files_of_others_come_with_a_warning(target: str, model: str) -> None:
    plan = api.evaluate(None, "dp16-mbs1-z3-rfull", model=model, cluster="dgx-h100:2", seq_len=4096,
                        global_batch=64, target="any", moe_aux_loss_coeff=0.0125)  # fmt: skip
    emitted = emit(plan, target)
    assert any("do not set the balancing loss" in warning for warning in emitted.warnings)
    assert not check_files(emitted.files).problems


def test_the_plan_holds_what_the_config_says_in_each_layer() -> None:
    """transformers: a mean over layers, and loads over all experts of a token. DeepSeek: neither, and by sequence."""
    mixtral = read_config({**CASES["mixtral"].data(), "router_aux_loss_coef": 0.02}, "tiny")[0]
    assert mixtral.moe_aux_loss_coeff == pytest.approx(0.02 * 4 / 4)
    dense = {**CASES["qwen2_moe, dense layers"].data(), "router_aux_loss_coef": 0.02}
    assert read_config(dense, "tiny")[0].moe_aux_loss_coeff == pytest.approx(0.02 * 4 / 3)
    deepseek = read_config({**CASES["deepseek_v3"].data(), "aux_loss_alpha": 0.001}, "tiny")[0]
    assert (deepseek.moe_aux_loss_coeff, deepseek.moe_aux_loss_per_sequence) == (0.001, True)


def test_zero_turns_it_off_and_dense_models_refuse_it() -> None:
    assert model_of(planned("meshwright").resolved, "plan").moe_aux_loss_coeff == 0.0125
    assert model_of(planned("meshwright", 0.0).resolved, "plan").moe_aux_loss_coeff == 0.0
    with pytest.raises(InputError, match="has no experts"):
        api.plan(model="llama-3.1-8b", cluster="dgx-h100:1", moe_aux_loss_coeff=0.01)
    with pytest.raises(InputError, match="moe_aux_loss_coeff"):
        planned("meshwright", -0.1)
    damaged = planned("meshwright")
    damaged.resolved["model"]["moe_aux_loss_coeff"] = "much"
    with pytest.raises(InputError, match=r"resolved\.model\.moe_aux_loss_coeff"):
        model_of(damaged.resolved, "plan")
