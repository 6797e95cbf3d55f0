"""The target `meshwright` and the runtime agree: what is planned for it runs, what it lacks is said at once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from meshwright.cli.main import main
from meshwright.planner import api
from meshwright.planner.document.plan import Plan
from meshwright.planner.document.reading import read_plan
from meshwright.planner.document.specs import model_of, stack_of, workload_of
from meshwright.runtime.job import job_of, unsupported

from meshwright.errors import InputError, NoFeasibleLayoutError, UnsupportedError

from ..sample_plan import unsealed

EXPLICIT = {"hidden": 64, "layers": 2, "heads": 4, "vocab": 100, "max_positions": 8192, "ffn_hidden": 128}
LACKS = [
    ({"model": "llama-3-8b", "optimizer": "adamw-8bit"}, "no optimizer adamw-8bit"),
    ({"model": "llama-3-8b", "train_layers": 2}, "all layers, or nothing but adapters"),
    ({"model": "bloom-560m", "seq_len": 2048}, "no ALiBi positions"),
    ({"model": "gpt-j-6b", "seq_len": 2048}, "not been compared with those of the family gptj"),
    ({"model": "llama-4-scout"}, "not been compared with those of the family llama4"),
    ({"model": "opt-350m", "seq_len": 2048}, "no projected embedding"),
    ({"model": {**EXPLICIT, "gated_mlp": False, "activation": "clamped swiglu"}}, "clamped swiglu only in gated"),
    ({"model": {**EXPLICIT, "family": "gemma2"}}, "does not know the model's family gemma2"),
]  # fmt: skip
# One per way of attention, positions, norms, experts; with few and many key/value heads.
RUNS = [
    ("qwen2.5-3b", 8192), ("gemma-2b", 8192), ("llama-3.1-8b", 8192), ("phi-4", 8192), ("gpt2-xl", 1024),
    ("opt-1.3b", 2048), ("qwen3-30b-a3b", 8192), ("deepseek-v2-lite", 8192), ("mistral-7b", 8192),
    ("granite-3.1-2b", 4096), ("gemma-2-2b", 8192), ("gemma-3-4b", 8192), ("gpt-oss-20b", 8192), ("olmo-2-7b", 4096),
    ("falcon-7b", 2048), ("starcoder2-3b", 8192),
]  # fmt: skip


def planned(model: str | dict[str, Any], seq_len: int = 8192, **asked: Any) -> Plan:
    return api.plan(**{"cluster": "dgx-h100:2", "global_batch": 256, **asked}, model=model, seq_len=seq_len)


def reasons(plan: Plan) -> list[str | None]:
    """What the runtime says of every layout of a plan."""
    resolved = plan.resolved
    model, workload, stack = model_of(resolved, ""), workload_of(resolved, ""), stack_of(resolved, "")
    return [unsupported(each.to_layout(), model, workload, stack) for each in plan.candidates]


@pytest.mark.parametrize(
    ("model", "targets", "message"),
    [
        ("nemotron-3-nano-30b-a3b", "gate", "no gate projection outside its routed experts"),
        ("nemotron-3-nano-30b-a3b", "q,gate", "has no gate projection"),
        ("mixtral-8x7b", "up,down", "no up, down projection"),
    ],
)
def test_adapters_need_projections_of_the_model(model: str, targets: str, message: str) -> None:
    """The hint has those of the model: of Nemotron 3 also those of its shared experts, which have no gate."""
    has = "q,k,v,o,up,down" if model.startswith("nemotron") else "q,k,v,o"
    with pytest.raises(InputError, match=message) as caught:
        planned(model, lora=f"16:{targets}")
    assert f"`--lora 16:{has}`" in (caught.value.hint or "")


def test_an_edited_plan_does_not_train_adapters_that_sit_nowhere() -> None:
    plan = api.evaluate(None, "dp8-mbs1-z3-rfull", model="llama-3.1-8b", cluster="dgx-h100:1", seq_len=2048,
                        global_batch=8, lora="16:q")  # fmt: skip
    job_of(plan, 1)
    damaged = json.loads(plan.to_json())
    damaged["resolved"]["model"]["kinds"][0] |= {"feed_forward": None, "num_norms": 1}
    damaged["resolved"]["workload"]["lora"]["targets"] = ["gate"]
    with pytest.raises(UnsupportedError, match=r"adapters of llama-3\.1-8b sit on q, k, v, o, not on gate"):
        job_of(read_plan(json.dumps(unsealed(damaged)), "plan.json"), 1)


@pytest.mark.parametrize(("model", "seq_len"), RUNS)
def test_what_is_planned_for_it_runs(model: str, seq_len: int) -> None:
    plan = planned(model, seq_len, target="meshwright", cluster="dgx-h100:1", top=8)
    runs_as_planned(plan)


def test_what_is_planned_with_every_mesh_of_tensor_and_data_ranks_runs() -> None:
    """Two key/value heads for 1, 2, 4 or 8 tensor ranks."""
    plan = planned("qwen2.5-3b", target="meshwright", cluster="dgx-h100:1", top=8, fix={"pp": 1, "cp": 1})
    runs_as_planned(plan)
    assert {each.to_layout().tp for each in plan.candidates} == {1, 2}


def runs_as_planned(plan: Plan) -> None:
    assert reasons(plan) == [None] * len(plan.candidates)
    assert {each.targets["meshwright"] for each in plan.candidates} == {None}
    assert all(job_of(plan, each.choice).layout == each.to_layout() for each in plan.candidates)


def test_a_split_backward_pass_keeps_its_weights_whole() -> None:
    """Other software shards them while the pipeline runs."""
    fix = {"pp": 2, "dp": 8, "schedule": "zb-h1", "zero": 3}
    with pytest.raises(NoFeasibleLayoutError, match="meshwright: zero"):
        planned("llama-3.1-8b", target="meshwright", stack="megatron-core", fix=fix)


def test_more_tensor_ranks_than_key_value_heads_are_never_chosen() -> None:
    with pytest.raises(NoFeasibleLayoutError, match=r"`--fix tp=8` leaves no legal layout.*meshwright: kv heads"):
        planned("qwen2.5-3b", target="meshwright", fix={"tp": 8})
    other = planned("qwen2.5-3b", target="any", fix={"tp": 8})
    said = "the runtime deals out whole key/value heads: tp 8 does not divide the 2"
    assert {each.targets["meshwright"] for each in other.candidates} == {said}
    with pytest.raises(UnsupportedError, match="does not divide the 2") as caught:
        job_of(other, 1)
    assert caught.value.hint == "plan again with `--target meshwright`"


@pytest.mark.parametrize(("asked", "reason"), LACKS)
def test_what_it_lacks_is_refused_where_it_was_asked_for(asked: dict[str, Any], reason: str) -> None:
    with pytest.raises(UnsupportedError) as caught:
        planned(**asked, target="meshwright")
    assert reason in caught.value.message
    assert "--target" in caught.value.hint
    assert "--target meshwright" not in caught.value.hint


def test_as_the_default_it_gives_way_to_one_that_can(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """And `launch` names the command that writes its files."""
    path = str(tmp_path / "plan.json")
    words = ["--model", "gpt-j-6b", "--cluster", "dgx-h100:2", "--seq-len", "2048"]
    assert main(["plan", *words, "-o", path]) == 0
    others = "deepspeed, accelerate, trl, llama-factory and axolotl have all of it: plan with `--target deepspeed`"
    told = capsys.readouterr().err
    assert "planned for deepspeed, since meshwright, the default target, cannot train it" in told
    assert main(["emit", path]) == 0
    capsys.readouterr()
    emits = "the plan is for deepspeed, which trains it: `meshwright emit PLAN --to deepspeed`"
    for command, hint in ((["launch", path, "--dry-run"], emits), (["plan", *words, "--target", "meshwright"], others)):
        assert main(command) == 2
        told = capsys.readouterr().err
        assert "not been compared with those of the family gptj" in told
        assert hint in told
    assert main(["emit", path, "--to", "megatron"]) == 2
    told = capsys.readouterr().err
    assert "gptj has attention and feed-forward in parallel" in told
    assert hint in told


def test_windows_are_seen_by_ulysses_alone() -> None:
    """Beyond 4096 tokens those of Mistral cut; ring attention adds up parts of the keys."""
    fix = {"cp": 2, "cp_algorithm": "ring"}
    with pytest.raises(NoFeasibleLayoutError, match="meshwright: windows, softcaps, sinks"):
        planned("mistral-7b", target="meshwright", fix=fix)
    assert planned("mistral-7b", 4096, target="meshwright", fix=fix).candidates
    assert planned("mistral-7b", target="meshwright", fix={**fix, "cp_algorithm": "ulysses"}).candidates


def test_an_older_plan_of_a_model_that_it_holds_in_part_is_refused() -> None:
    plan = planned("gemma-2b", target="meshwright", cluster="dgx-h100:1")
    with pytest.raises(UnsupportedError, match=r"of format 1\.2, which does not hold all that gemma computes"):
        job_of(plan.model_copy(update={"format_version": "1.2"}), 1)


def test_what_a_config_says_beside_the_fields_of_a_plan_is_refused(tmp_path: Path) -> None:
    config = {"model_type": "gpt2", "n_embd": 64, "n_layer": 4, "n_head": 4, "vocab_size": 128, "n_positions": 128,
              "scale_attn_by_inverse_layer_idx": True}  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(UnsupportedError, match="does not know the model's scale_attn_by_inverse_layer_idx"):
        planned(str(tmp_path / "config.json"), 128, target="meshwright", cluster="dgx-h100:1", global_batch=16)
