"""Configs of verl read back: the emitted ones as their plans, others with the line of what is wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from meshwright.cost_models.offload_modules import mask_of_modules
from meshwright.planner.api import plan_rl
from meshwright.planner.document.rl_plan import RlPlan
from meshwright.planner.drivers.imported_step import import_step
from meshwright.planner.targets.post_training.emit import emit_rl
from meshwright.planner.targets.post_training.stated import StatedStep
from meshwright.planner.targets.verl.read import read_step

from meshwright.errors import InputError

from ...snapshots import run_here

_REQUEST: dict[str, Any] = {"algorithm": "grpo", "model": "llama-3.2-1b", "output": 300, "prompts": 16, "lag": 1,
                            "output_max": 1024}  # fmt: skip
_ASIDE = "trainer.v1.trainer_mode=separate_async actor_rollout_ref.rollout.nnodes=1"
SCRIPT = """\
set -x
TP=${TP:-2}
python3 -m verl.trainer.main_ppo --config-name=ppo_megatron_trainer.yaml \\
    algorithm.adv_estimator=grpo \\
    data.train_batch_size=64 data.max_prompt_length=512 data.max_response_length=1024 \\
    actor_rollout_ref.model.path=meta-llama/Llama-3.2-1B-Instruct \\
    actor_rollout_ref.actor.ppo_mini_batch_size=32 actor_rollout_ref.actor.use_kl_loss=True \\
    actor_rollout_ref.actor.megatron.tensor_model_parallel_size=$TP \\
    actor_rollout_ref.rollout.name=sglang actor_rollout_ref.rollout.tensor_model_parallel_size=4 \\
    actor_rollout_ref.rollout.n=8 \\
    trainer.nnodes=1 trainer.n_gpus_per_node=4 $@
"""


@pytest.fixture(scope="module")
def plan() -> RlPlan:
    return plan_rl(cluster="4xh100-sxm-80gb", target="verl", **_REQUEST)


def test_a_script_states_batch_placement_and_degrees() -> None:
    step = read_step({"run.sh": SCRIPT})
    assert step.fields["workload"] == "grpo"
    expected = {"prompts": 64, "samples": 8, "updates": 2, "input": 512, "output_max": 1024, "kl": True, "lag": 0}
    assert {name: step.fields[name] for name in expected} == expected
    assert (step.fields["trainer"], step.fields["engine"]) == ("megatron", "sglang")
    assert (step.train["tp"], step.generate["tp"], step.trainer_gpus, step.gpus) == (2, 4, 4, 4)
    assert read_step({"run.sh": SCRIPT}, ["TP=4"]).train["tp"] == 4


def test_a_script_on_one_line_is_one() -> None:
    one = SCRIPT.replace(" \\\n", " ")
    assert "\\\n" not in one
    assert read_step({"run.sh": one}) == read_step({"run.sh": SCRIPT})


def test_a_critic_of_other_shards_is_named() -> None:
    text = SCRIPT.replace("algorithm.adv_estimator=grpo", "algorithm.adv_estimator=gae critic.fsdp.fsdp_size=2")
    text = text.replace("--config-name=ppo_megatron_trainer.yaml", "")
    text = text.replace("actor_rollout_ref.actor.megatron.tensor_model_parallel_size=$TP", "trainer.logger=console")
    assert any("critic.fsdp.fsdp_size 2: the critic is priced" in it for it in read_step({"run.sh": text}).assumed)


def test_the_room_of_a_micro_batch_is_read() -> None:
    """ppo_max_token_len_per_gpu is that of a GPU, and all ranks of a sequence have one micro-batch."""
    def of(*words: str) -> StatedStep:
        return read_step({"run.sh": SCRIPT}, [f"actor_rollout_ref.actor.{word}" for word in words])

    on = "use_dynamic_bsz=True"
    assert of(on).packed_tokens == 16384
    assert of(on, "ppo_max_token_len_per_gpu=3000").packed_tokens == 3000
    assert of(on, "ppo_max_token_len_per_gpu=3000", "megatron.context_parallel_size=2").packed_tokens == 6000
    assert any("over 1500 tokens" in it for it in of(on, "ppo_max_token_len_per_gpu=1500").assumed)
    by_number = of("ppo_micro_batch_size_per_gpu=4")
    assert by_number.packed_tokens is None
    assert any("use_dynamic_bsz is off: micro-batches" in line for line in by_number.assumed)


def test_a_step_is_priced_with_its_room_for_micro_batches(tmp_path: Path) -> None:
    """256 answers of an update, 300 tokens in the mean, with prompts of 200, are 128,000 tokens: 16 sequences of 8,000
    on two copies, or 4 of 32,000."""
    (tmp_path / "run.sh").write_text(SCRIPT)

    def trained(tokens: int) -> tuple[int | None, int]:
        words = [f"actor_rollout_ref.actor.{it}" for it in ("use_dynamic_bsz=True",
                                                            f"ppo_max_token_len_per_gpu={tokens}")]  # fmt: skip
        given = {"cluster": "4xh100-sxm-80gb", "output": 300, "input": 200}
        theirs = import_step([tmp_path / "run.sh"], given, words).theirs
        assert theirs is not None
        train = next(call for call in theirs.calls if call.kind == "train")
        return train.sequences, (train.layout or {})["micro_batch"]

    assert trained(8200) == (16, 1)
    assert trained(32200) == (4, 1)


def test_states_on_the_host_are_read() -> None:
    block = "actor_rollout_ref.actor.optim.override_optimizer_config."
    layers = "actor_rollout_ref.actor.megatron.override_transformer_config."

    def of(*words: str) -> StatedStep:
        return read_step({"run.sh": SCRIPT}, words)

    both = [f"{block}optimizer_cpu_offload=True", f"{block}optimizer_offload_fraction=1.0"]
    assert [of(*words).train["offload"] for words in ([], both, both[:1], both[1:])] == [0, 1, 0, 0]
    assert any("fraction 0.5: priced with all" in it for it in of(both[0], both[1].replace("1.0", "0.5")).assumed)
    sends = f"{layers}fine_grained_activation_offloading=True"
    assert of(sends, f"{layers}offload_modules=[core_attn]").train["offload_modules"] == mask_of_modules("core_attn")
    with pytest.raises(InputError, match=r"offload_modules: `core_attn` is not a list"):
        of(sends, f"{layers}offload_modules=core_attn")
    with pytest.raises(InputError, match=r"optimizer_cpu_offload: `perhaps` is not true or false"):
        of(f"{block}optimizer_cpu_offload=perhaps")


def test_experts_alone_are_divided_over_ep(tmp_path: Path) -> None:
    """Of the 30.5 G parameters of Qwen3-30B-A3B 29.0 G are in experts: 1.5 G and a quarter of these are 17.6 GB."""
    file = tmp_path / "run.sh"
    text = SCRIPT.replace("meta-llama/Llama-3.2-1B-Instruct", "Qwen/Qwen3-30B-A3B").replace(
        "rollout.tensor_model_parallel_size=4", "rollout.tensor_model_parallel_size=1 "
        "actor_rollout_ref.rollout.data_parallel_size=4 actor_rollout_ref.rollout.expert_parallel_size=4")
    share = "actor_rollout_ref.rollout.gpu_memory_utilization=0.2"
    file.write_text(text.replace("trainer.nnodes=1", f"{share} trainer.nnodes=1"))
    with pytest.raises(InputError, match=r"16\.\d GiB of weights leave no KV cache"):
        import_step([file], {"cluster": "4xh100-sxm-80gb", "output": 300})


def test_emitted_files_are_read_as_their_plan_at_its_price(tmp_path: Path, plan: RlPlan) -> None:
    for wanted in (plan.best, next(it for it in plan.candidates if not it.lag)):
        file = tmp_path / "verl.overrides"
        file.write_text(emit_rl(plan, "verl", wanted.choice).files["verl.overrides"])
        imported = import_step([file], {"cluster": "4xh100-sxm-80gb", "output": 300})
        assert imported.theirs is not None
        assert imported.theirs.placement_id == wanted.placement_id
        assert imported.theirs.step_s == pytest.approx(wanted.step_s, rel=0.02)


def test_a_slower_config_is_named_as_such(tmp_path: Path) -> None:
    (tmp_path / "run.sh").write_text(SCRIPT)
    result = run_here("import", "verl", "run.sh", "--cluster", "4xh100-sxm-80gb", "--output", "300", "-o", "rl.json",
                      cwd=tmp_path)  # fmt: skip
    assert result.code == 0, result.err
    for part in ("Yours: colocated", "Planned: ", "times as fast", "meshwright emit rl.json --to verl"):
        assert part in result.out
    gain = float(result.out.split("Planned is ")[1].split()[0])
    assert gain > 1.0
    assert run_here("check", "rl.json", cwd=tmp_path).code == 0


@pytest.mark.parametrize(
    ("right", "wrong", "said"),
    [
        ("ppo_mini_batch_size=32", "ppo_mini_batch_size=24", "64 prompts of data.train_batch_size are no multiple of"),
        ("tensor_model_parallel_size=$TP", "tensor_model_parallel_size=3", "4 GPUs that train are no multiple of 3"),
        ("rollout.tensor_model_parallel_size=4", "rollout.tensor_model_parallel_size=8", "4 GPUs that generate"),
        ("rollout.name=sglang", "rollout.name=hf", "`hf` is not planned"),
        ("rollout.n=8", "rollout.n=many", "line 10, actor_rollout_ref.rollout.n: `many` is not a whole number"),
        ("trainer.nnodes=1", "trainer.nnodes=1 critic.megatron.grad_offload=1", "its place is critic.megatron.param_"),
        ("trainer.nnodes=1", "trainer.nnodes=1 rollout.nnodes=1", "its place is actor_rollout_ref.rollout.nnodes"),
        ("trainer.nnodes=1", "trainer.nnodes=1 async_training.staleness_threshold=1", "sampler.max_off_policy_thresh"),
        ("trainer.nnodes=1", "trainer.nnodes=1 trainer.v1.trainer_mode=separate_async", "GPUs of its own for the"),
        ("trainer.nnodes=1", "trainer.nnodes=0", "0 GPUs train"),
        ("trainer.nnodes=1", "trainer.nnodes=1 trainer.name='[x'", "trainer.name: `[x` cannot be read as a value"),
        ("trainer.nnodes=1", "trainer.nnodes=1 actor_rollout_ref.rollout.gpu_memory_utilization=90",
         "gpu_memory_utilization: must be above 0 and at most 1, is 90"),
        ("rollout.n=8", "rollout.n=8 actor_rollout_ref.actor.ppo_epochs=2", "2 passes over the answers of"),
        ("rollout.n=8", "rollout.n=8 critic.ppo_epochs=3", "line 10, critic.ppo_epochs: 3 passes over the answers"),
        ("trainer.nnodes=1", f"trainer.nnodes=1 {_ASIDE}", "4 x 32 prompts of actor_rollout_ref.actor."),
        ("Llama-3.2-1B-Instruct", "Llama-9-1B", "no model of the catalogue"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named_with_its_line(tmp_path: Path, right: str, wrong: str, said: str) -> None:
    assert right in SCRIPT
    (tmp_path / "run.sh").write_text(SCRIPT.replace(right, wrong))
    result = run_here("import", "verl", "run.sh", "--cluster", "4xh100-sxm-80gb", "--output", "300", cwd=tmp_path)
    assert (result.code, said in " ".join(result.err.split())) == (2, True), result.err


def test_options_of_another_release_are_named_each_with_its_place(tmp_path: Path) -> None:
    more = "trainer.nnodes=1 critic.megatron.grad_offload=1 async_training.staleness_threshold=1"
    (tmp_path / "run.sh").write_text(SCRIPT.replace("trainer.nnodes=1", more))
    result = run_here("import", "verl", "run.sh", "--cluster", "4xh100-sxm-80gb", "--output", "300", cwd=tmp_path)
    said = " ".join(result.err.split())
    assert (result.code, said.count("its place is"), "hint:" in said) == (2, 2, False)


FSDP = (SCRIPT.replace(" --config-name=ppo_megatron_trainer.yaml", "")
        .replace("actor.megatron.tensor_model_parallel_size=$TP", "actor.fsdp_config.fsdp_size=$TP"))  # fmt: skip


def test_engine_scores_are_taken_in_bypass_mode_only() -> None:
    bypass = SCRIPT.replace("rollout.n=8", "rollout.n=8 algorithm.rollout_correction.bypass_mode=True")
    assert read_step({"run.sh": SCRIPT}).old_logprobs
    assert not read_step({"run.sh": bypass}).old_logprobs


def test_a_config_without_bypass_mode_scores_first(tmp_path: Path) -> None:
    calls = []
    for name, change in (("first", ""), ("bypass", "algorithm.rollout_correction.bypass_mode=True")):
        file = tmp_path / f"{name}.sh"
        file.write_text(SCRIPT.replace("trainer.nnodes=1", f"trainer.nnodes=1 {change}"))
        theirs = import_step([file], {"cluster": "4xh100-sxm-80gb", "output": 300}).theirs
        assert theirs is not None
        calls.append({call.name for call in theirs.calls})
    assert calls[0] - calls[1] == {"logprobs"}


@pytest.mark.parametrize(("size", "shards"), [("-1", {"zero": 3, "shard": 4}), ("4", {"zero": 3, "shard": 4}),
                                              ("2", {"zero": 3, "shard": 2}), ("1", {"zero": 0})])  # fmt: skip
def test_shards_are_over_so_many_ranks(size: str, shards: dict[str, int]) -> None:
    train = read_step({"run.sh": FSDP}, [f"TP={size}"]).train
    assert {name: train[name] for name in ("zero", "shard") if name in train} == shards


@pytest.mark.parametrize(("size", "said"), [("3", "3 does not divide the 4 GPUs that train"),
                                            ("2", "2 is no multiple of the 4 ranks that share")])  # fmt: skip
def test_shards_that_do_not_divide_are_named(size: str, said: str) -> None:
    name = "actor_rollout_ref.actor.fsdp_config.ulysses_sequence_parallel_size"
    with pytest.raises(InputError, match=said):
        read_step({"run.sh": FSDP}, [f"TP={size}", f"{name}={4 if size == '2' else 1}"])


@pytest.mark.parametrize(("option", "etp"), [("", 2), ("expert_tensor_parallel_size=1", 1)])
def test_experts_are_split_as_the_rest_unless_stated(option: str, etp: int) -> None:
    script = SCRIPT.replace("meta-llama/Llama-3.2-1B-Instruct", "Qwen/Qwen3-30B-A3B")
    given = [f"actor_rollout_ref.actor.megatron.{option}"] * bool(option)
    assert read_step({"run.sh": script}, given).train["etp"] == etp
    assert "etp" not in read_step({"run.sh": SCRIPT}, given).train


@pytest.mark.parametrize(("words", "said"), [
    (("verl.overrides",), "no config states the length of answers hint: `--output N`"),
    (("launch.sh",), "no config states the length of answers hint: `--output N`"),
    (("launch.sh", "--output", "300"), "launch.sh: its options are in verl.overrides hint: name that file beside it"),
])  # fmt: skip
def test_emitted_files_without_what_they_need(tmp_path: Path, plan: RlPlan, words: tuple[str, ...], said: str) -> None:
    for name, text in emit_rl(plan, "verl").files.items():
        (tmp_path / name).write_text(text)
    result = run_here("import", "verl", *words, "--cluster", "4xh100-sxm-80gb", cwd=tmp_path)
    assert (result.code, said in " ".join(result.err.split())) == (2, True), result.err


def test_a_mean_of_prompts_that_is_given_is_not_asked_for(tmp_path: Path) -> None:
    file = tmp_path / "run.sh"
    file.write_text(SCRIPT)
    given: dict[str, Any] = {"cluster": "4xh100-sxm-80gb", "output": 300}
    asked = [any("--input" in it for it in import_step([file], {**given, **more}).step.assumed)
             for more in ({}, {"input": 256})]  # fmt: skip
    assert asked == [True, False]


def test_all_problems_are_named_at_once() -> None:
    text = SCRIPT.replace("ppo_mini_batch_size=32", "ppo_mini_batch_size=24").replace("name=sglang", "name=hf")
    with pytest.raises(InputError) as caught:
        read_step({"run.sh": text})
    assert {"actor_rollout_ref.actor.ppo_mini_batch_size", "actor_rollout_ref.rollout.name"} <= {
        problem.field for problem in caught.value.problems}  # fmt: skip


@pytest.mark.parametrize(
    ("change", "given", "said"),
    [
        ("actor_rollout_ref.rollout.gpu_memory_utilization=0.005", {"cluster": "4xh100-sxm-80gb"}, "leave no KV cache"),
        ("", {"cluster": "8xh100-sxm-80gb"}, "the config starts 4 ranks, the cluster has 8 GPUs"),
        ("", {}, "the config does not name its GPUs"),
    ],
)
def test_what_does_not_go_with_the_cluster(tmp_path: Path, change: str, given: dict[str, Any], said: str) -> None:
    file = tmp_path / "run.sh"
    file.write_text(SCRIPT.replace("trainer.nnodes=1", f"trainer.nnodes=1 {change}"))
    with pytest.raises(InputError, match=said):
        import_step([file], {**given, "output": 300})
