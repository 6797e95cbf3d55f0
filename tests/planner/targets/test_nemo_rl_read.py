"""Configs of NeMo-RL read back: the emitted ones as their plans, others with the line of what is wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from meshwright.cost_models.offload_modules import mask_of_modules
from meshwright.planner.api import plan_rl
from meshwright.planner.document.rl_plan import RlPlan
from meshwright.planner.drivers.imported_step import import_step
from meshwright.planner.targets.nemo_rl.read import read_step
from meshwright.planner.targets.post_training.emit import emit_rl

from meshwright.errors import InputError

from ...snapshots import run_here

_CLUSTER = "dgx-h100:2"
_REQUEST: dict[str, Any] = {"algorithm": "grpo", "model": "llama-3.2-1b", "cluster": "4xh100-sxm-80gb", "output": 300,
                            "prompts": 16, "lag": 1, "output_max": 1024}  # fmt: skip
PARENT = """\
grpo:
  num_prompts_per_step: 32
  num_generations_per_prompt: 16
  async_grpo: {enabled: false, max_trajectory_age_steps: 1}
policy:
  model_name: Qwen/Qwen2.5-1.5B
  train_global_batch_size: 512
  max_total_sequence_length: 512
  dtensor_cfg: {enabled: false, tensor_parallel_size: 4}
  megatron_cfg:
    enabled: true
    tensor_model_parallel_size: 1
    optimizer: {lr: 1.0e-6}
  generation:
    backend: vllm
    max_new_tokens: ${policy.max_total_sequence_length}
    vllm_cfg:
      tensor_parallel_size: ${policy.megatron_cfg.tensor_model_parallel_size}
      gpu_memory_utilization: 0.6
    colocated:
      enabled: true
      resources: {gpus_per_node: null, num_nodes: null}
cluster:
  gpus_per_node: 1
  num_nodes: 1
"""
CHILD = """\
defaults: base.yaml
grpo:
  num_prompts_per_step: 64
policy:
  model_name: Qwen/Qwen3-8B
  train_global_batch_size: 512
  max_total_sequence_length: 4096
  megatron_cfg:
    tensor_model_parallel_size: 2
    activation_checkpointing: true
cluster:
  num_nodes: 2
  gpus_per_node: 8
"""
LAG = """\
defaults: child.yaml
grpo:
  async_grpo:
    enabled: true
policy:
  generation:
    colocated:
      enabled: false
      resources:
        num_nodes: 1
"""


def written(folder: Path, **texts: str) -> Path:
    """base.yaml, child.yaml and lag.yaml; other texts in their place, `` for none. Returns lag.yaml."""
    for name, text in {"base": PARENT, "child": CHILD, "lag": LAG, **texts}.items():
        if text:
            (folder / f"{name}.yaml").write_text(text)
    return folder / "lag.yaml"


def read(path: Path, *given: str) -> Any:
    return read_step({str(path): path.read_text()}, given)


def test_parents_give_what_a_child_does_not_change(tmp_path: Path) -> None:
    step = read(written(tmp_path).with_name("child.yaml"))
    expected = {"prompts": 64, "samples": 16, "updates": 2, "lag": 0, "model": "qwen3-8b", "trainer": "megatron",
                "kl": True}  # fmt: skip
    assert {name: step.fields[name] for name in expected} == expected
    assert (step.train["tp"], step.train["recompute"], step.generate["tp"]) == (2, 2, 2)
    assert (step.gpus, step.row_tokens, step.old_logprobs) == (16, 4096, True)
    lag = read(tmp_path / "lag.yaml")
    assert (lag.fields["lag"], lag.trainer_gpus, lag.rollout_gpus, lag.gpus) == (1, 8, 8, 16)
    waits = read(tmp_path / "lag.yaml", "grpo.async_grpo.enabled=false")
    assert (waits.fields["lag"], waits.trainer_gpus, waits.gpus) == (0, 8, 16)
    assert read(tmp_path / "lag.yaml", "policy.megatron_cfg.tensor_model_parallel_size=4").generate["tp"] == 4


def test_a_block_may_replace_that_of_its_parent(tmp_path: Path) -> None:
    child = CHILD.replace("  megatron_cfg:\n", "  megatron_cfg:\n    _override_: true\n    enabled: true\n").replace(
        "    tensor_model_parallel_size: 2\n", "")  # fmt: skip
    step = read(written(tmp_path, child=child).with_name("child.yaml"),
                "policy.generation.vllm_cfg.tensor_parallel_size=1")  # fmt: skip
    assert step.train["tp"] == 1


def test_a_parent_may_have_the_name_of_its_child(tmp_path: Path) -> None:
    written(tmp_path)
    (tmp_path / "exp").mkdir()
    path = tmp_path / "exp" / "child.yaml"
    path.write_text("defaults: ../child.yaml\ngrpo: {num_generations_per_prompt: 8}\n")
    step = read(path)
    assert (step.fields["prompts"], step.fields["samples"]) == (64, 8)


def test_parents_are_taken_by_name_from_the_files_given(tmp_path: Path) -> None:
    files = {"child.yaml": CHILD.replace("base.yaml", "../examples/base.yaml"), "base.yaml": PARENT}
    assert read_step(files).fields["samples"] == 16


def test_modules_that_are_recomputed_are_named(tmp_path: Path) -> None:
    path = written(tmp_path).with_name("child.yaml")
    given = "policy.megatron_cfg.recompute_granularity=selective"
    line = "policy.megatron_cfg.recompute_modules: priced as selective recomputation of attention"
    for modules, named in (("[mlp]", True), ("[core_attn]", False)):
        step = read(path, given, f"policy.megatron_cfg.recompute_modules={modules}")
        assert (step.train["recompute"], line in step.assumed) == (1, named)


def test_overrides_change_the_files_before_them(tmp_path: Path) -> None:
    text = "grpo.num_prompts_per_step=128\ncluster.num_nodes=%s\n"
    step = read_step({"base.yaml": PARENT, "child.yaml": CHILD, "nemo-rl.overrides": text % 4})
    assert (step.fields["prompts"], step.gpus) == (128, 32)
    with pytest.raises(InputError, match=r"nemo-rl\.overrides, line 2, cluster\.num_nodes: must be 1 or more"):
        read_step({"base.yaml": PARENT, "child.yaml": CHILD, "nemo-rl.overrides": text % 0})


def test_variables_give_text(tmp_path: Path) -> None:
    """OmegaConf 2.3: the default of oc.env is text, `null` is none."""
    child = CHILD.replace("num_nodes: 2", "num_nodes: ${oc.env:NODES,2}")
    with pytest.raises(InputError, match=r"line 12, cluster\.num_nodes: `2` is not a whole number") as caught:
        read(written(tmp_path, child=child).with_name("child.yaml"))
    assert "oc.decode" in caught.value.hint
    child = CHILD.replace("num_nodes: 2", "num_nodes: ${oc.env:NODES,null}")
    assert read(written(tmp_path, child=child).with_name("child.yaml")).gpus == 8


def test_dtensor_trains_where_megatron_is_off(tmp_path: Path) -> None:
    child = CHILD.replace("  megatron_cfg:\n", "  dtensor_cfg: {enabled: true}\n  megatron_cfg:\n    enabled: false\n")
    step = read(written(tmp_path, child=child).with_name("child.yaml"))
    assert (step.fields["trainer"], step.train["tp"]) == ("torchtitan", 4)


def test_what_is_on_the_host_is_read(tmp_path: Path) -> None:
    def of(core: str) -> Any:
        child = CHILD.replace("    tensor_model_parallel_size: 2\n", f"    tensor_model_parallel_size: 2\n{core}")
        return read(written(tmp_path, child=child).with_name("child.yaml"))

    on = "    optimizer: {optimizer_cpu_offload: %s, optimizer_offload_fraction: %s}\n"
    places = [of(core).train["offload"] for core in ("", on % ("true", 1.0), on % ("false", 1.0), on % ("true", 0.0))]
    assert places == [0, 1, 0, 0]
    assert any("optimizer_offload_fraction 0.5: priced with all" in line for line in of(on % ("true", 0.5)).assumed)
    sends = "    fine_grained_activation_offloading: true\n    offload_modules: [%s]\n"
    assert of(sends % "core_attn, moe_act").train["offload_modules"] == mask_of_modules("core_attn", "moe_act")
    with pytest.raises(InputError, match=r"child\.yaml, line 11, policy\.megatron_cfg\.offload_modules: .*`nothing`"):
        of(sends % "nothing")
    assert of("").train["offload_modules"] == 0


def test_the_room_of_packed_answers_is_read(tmp_path: Path) -> None:
    def of(policy: str) -> Any:
        child = CHILD.replace("  max_total_sequence_length: 4096\n", f"  max_total_sequence_length: 4096\n{policy}")
        return read(written(tmp_path, child=child).with_name("child.yaml")).packed_tokens

    packing = "  sequence_packing: {enabled: %s, train_mb_tokens: %s}\n"
    assert of("") == 4096
    assert of("  train_micro_batch_size: 2\n") == 8192
    assert of(packing % ("true", 6000)) == 6000
    assert of(packing % ("true", "'${mul:${policy.max_total_sequence_length}, 2}'")) == 8192
    assert of(packing % ("false", 6000)) is None
    for text, reason in (("'${oc.env:TOKENS}'", "is set when it runs"), ("many", "`many` is no number of tokens")):
        with pytest.raises(InputError, match=rf"sequence_packing\.train_mb_tokens: .*{reason}"):
            of(packing % ("true", text))


def test_a_step_is_priced_with_its_room_for_packed_answers(tmp_path: Path) -> None:
    """512 answers of an update with their prompts are 358,400 tokens: 233 sequences of 1,536, or 117 of 3,072, and so
    many that 8 copies have as many each. A micro-batch is one of them."""
    def trained(tokens: int) -> tuple[int | None, int | None, int]:
        packing = f"  sequence_packing: {{train_mb_tokens: {tokens}}}\n"
        child = CHILD.replace("  max_total_sequence_length: 4096\n", f"  max_total_sequence_length: 1536\n{packing}")
        path = written(tmp_path, child=child).with_name("child.yaml")
        theirs = import_step([path], {"cluster": _CLUSTER, "output": 600, "input": 100}, kind="nemo-rl").theirs
        assert theirs is not None
        train = next(call for call in theirs.calls if call.kind == "train")
        return train.sequences, train.seq_len, (train.layout or {})["micro_batch"]

    assert trained(1536) == (240, 1536, 1)
    assert trained(3072) == (120, 3072, 1)


@pytest.fixture(scope="module")
def plan() -> RlPlan:
    return plan_rl(**_REQUEST, target="nemo-rl")


def test_emitted_files_are_read_as_their_plan_at_its_price(tmp_path: Path, plan: RlPlan) -> None:
    for wanted in (plan.best, next(it for it in plan.candidates if not it.lag)):
        file = tmp_path / "nemo-rl.overrides"
        file.write_text(emit_rl(plan, "nemo-rl", wanted.choice).files[file.name])
        imported = import_step([file], {"cluster": "4xh100-sxm-80gb", "output": 300}, kind="nemo-rl")
        assert imported.theirs is not None
        assert imported.theirs.placement_id == wanted.placement_id
        assert imported.step.fields["output_max"] == 1024


def test_a_config_is_priced_beside_a_faster_one(tmp_path: Path) -> None:
    written(tmp_path)
    result = run_here("import", "nemo-rl", "lag.yaml", "--cluster", _CLUSTER, "--output", "1000", "-o", "rl.json",
                      cwd=tmp_path)  # fmt: skip
    assert result.code == 0, result.err
    for part in ("nemo-rl 0.6.0: ", "Yours: lag1-train8-generate8", "Planned: ", "emit rl.json --to nemo-rl"):
        assert part in result.out
    assert run_here("check", "rl.json", cwd=tmp_path).code == 0


@pytest.mark.parametrize(("changes", "message"), [
    ({"base": ""}, "child.yaml, line 1: `base.yaml`: no such file"),
    ({"base": "defaults: child.yaml\n"}, "names this file as its parent, too"),
    ({"child": CHILD.replace("num_nodes: 2", "num_nodes: two")}, "child.yaml, line 12, cluster.num_nodes: `two`"),
    ({"child": CHILD.replace("tensor_model_parallel_size: 2", "tensor_model_parallel_sise: 2")},
     "child.yaml, line 9, policy.megatron_cfg.tensor_model_parallel_sise: NeMo-RL 0.6.0 has no such option"),
    ({"child": CHILD.replace("tensor_model_parallel_size: 2", "context_parallel_size: 3")},
     "8 GPUs that train are no multiple of 3"),
    ({"child": CHILD.replace("train_global_batch_size: 512", "train_global_batch_size: 500")},
     "64 x 16 answers of a step are no multiple of 500"),
    ({"child": CHILD.replace("Qwen3-8B", "Qwen9-8B")}, "`Qwen/Qwen9-8B` is no model of the catalogue"),
    ({"lag": LAG.replace("num_nodes: 1", "num_nodes: 2")}, "lag.yaml, line 10"),
    ({"lag": LAG.replace("enabled: false", "enabled: true")}, "an asynchronous engine on the GPUs that train"),
    ({"lag": LAG + "  dtensor_cfg: {expert_parallel_size: 8}\n"}, "experts over the ranks of Automodel"),
    ({"lag": LAG + "  megatron_cfg: {peft: {enabled: true}}\n"}, "adapters are not planned"),
    ({"lag": LAG.replace("    colocated:", "    backend: sglang\n    colocated:")}, "`sglang` is not planned"),
    ({"lag": "sft: {max_num_steps: 1}\n"}, "no block `grpo`"),
    ({"lag": LAG.replace("child.yaml", "../{folder}/lag.yaml")}, "names this file as its parent, too"),
    ({"lag": LAG.replace("child.yaml", "5")}, "lag.yaml, line 1, defaults: `5` is no file of a parent"),
    ({"lag": LAG.replace("child.yaml", "{child.yaml: 1}")}, "lag.yaml, line 1, defaults: "),
    ({"child": f"{CHILD}".replace("checkpointing: true", "checkpointing: true\n    recompute_granularity: part")},
     "child.yaml, line 11, policy.megatron_cfg.recompute_granularity: `part` is none of selective, full"),
    ({"lag": LAG + "  dtensor_cfg: {enabled: true}\n"}, "both of policy.megatron_cfg.enabled and policy.dtensor_cfg"),
    ({"lag": LAG + "  megatron_cfg: {enabled: false}\n"},
     "lag.yaml, line 11, policy.megatron_cfg.enabled: none of policy.megatron_cfg.enabled and policy.dtensor_cfg.en"),
    ({"base": PARENT.replace("    enabled: true\n    tensor_model", "    tensor_model")},
     "base.yaml, line 9, policy.dtensor_cfg.enabled: none of"),
    ({"base": PARENT.replace("utilization: 0.6", "utilization: 90")},
     "base.yaml, line 19, policy.generation.vllm_cfg.gpu_memory_utilization: must be above 0 and at most 1, is 90"),
    ({"base": PARENT.replace("utilization: 0.6", "utilization: 0")}, "must be above 0 and at most 1, is 0"),
    ({"child": CHILD.replace("size: 2\n", "size: -2\n    pipeline_model_parallel_size: -2\n")},
     "child.yaml, line 10, policy.megatron_cfg.pipeline_model_parallel_size: must be 1 or more, is -2"),
    ({"child": CHILD.replace("model_parallel_size: 2", "model_parallel_size: 3")},
     "child.yaml, line 9, policy.megatron_cfg.tensor_model_parallel_size: 8 GPUs that train are no multiple of 3"),
    ({"child": CHILD.replace("gpus_per_node: 8", "gpus_per_node: -8")},
     "child.yaml, line 13, cluster.gpus_per_node: must be 1 or more, is -8"),
    ({"lag": LAG.replace("    enabled: true", "    enabled: true\n    max_trajectory_age_steps: -1")},
     "lag.yaml, line 5, grpo.async_grpo.max_trajectory_age_steps: must be 1 or more, is -1"),
    ({"lag": LAG.replace("    colocated:", "    vllm_cfg: {expert_parallel_size: 3}\n    colocated:")},
     "policy.generation.vllm_cfg.expert_parallel_size: 3 is no multiple of tensor_parallel_size, 2"),
    ({"lag": LAG.replace("    colocated:", "    vllm_cfg: {expert_parallel_size: 0}\n    colocated:")},
     "expert_parallel_size: must be 1 or more, is 0"),
])  # fmt: skip
def test_wrong_configs_name_file_and_line(tmp_path: Path, changes: dict[str, str], message: str) -> None:
    path = written(tmp_path, **{name: text.replace("{folder}", tmp_path.name) for name, text in changes.items()})
    with pytest.raises(InputError) as caught:
        read(path)
    assert message in caught.value.message
