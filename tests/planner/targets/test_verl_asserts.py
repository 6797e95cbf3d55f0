"""Files of verl hold what verl asserts when it starts, which neither Hydra nor its dataclasses check."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from meshwright.planner.api import plan_rl
from meshwright.planner.document.rl_plan import RlPlan
from meshwright.planner.targets.post_training.emit import emit_rl

from .drawn_placements import drawn, planned
from .test_verl import settings

_FSDP: dict[str, Any] = {"algorithm": "grpo", "model": "llama-3.2-1b", "cluster": "2xh100-sxm-80gb", "output": 300,
                         "prompts": 16, "trainer": "accelerate"}  # fmt: skip
ROLLOUT = "actor_rollout_ref.rollout"
# Models that train -> tokens of a micro-batch, block of FSDP.
TRAINED = {"actor_rollout_ref.actor": ("ppo_max_token_len_per_gpu", "fsdp_config"),
           "critic": ("ppo_infer_max_token_len_per_gpu", "fsdp")}  # fmt: skip


@pytest.fixture(scope="module")
def plans() -> list[RlPlan]:
    return planned()


@pytest.fixture(scope="module")
def grpo(plans: list[RlPlan]) -> RlPlan:
    return plans[0]


def options_of_drawn(plans: list[RlPlan], count: int) -> list[dict[str, str]]:
    """Without the `+` of names."""
    found = [settings(plan, plan.best.choice) for plan in drawn(plans, "verl", count, seed=1)]
    return [{name.lstrip("+"): value for name, value in options.items()} for options in found]


def test_micro_batches_of_actor_and_critic_hold_the_longest_answer(plans: list[RlPlan]) -> None:
    counted = dict.fromkeys(TRAINED, 0)
    for options in options_of_drawn(plans, 60):
        longest = int(options["data.max_prompt_length"]) + int(options["data.max_response_length"])
        core = options["model_engine"] == "megatron"
        for model, (tokens, block) in TRAINED.items():
            engine = "megatron.context_parallel" if core else f"{block}.ulysses_sequence_parallel"
            if f"{model}.{engine}_size" in options:
                counted[model] += 1
                assert int(options[f"{model}.{tokens}"]) * int(options[f"{model}.{engine}_size"]) >= longest
    assert all(counted.values())


def copies(options: dict[str, str], model: str) -> int:
    """Data parallelism of a model that trains (get_data_parallel_size of the engines)."""
    gpus = int(options["trainer.nnodes"]) * int(options["trainer.n_gpus_per_node"])
    degrees = ("megatron.tensor_model_parallel_size", "megatron.pipeline_model_parallel_size",
               "megatron.context_parallel_size", "ulysses_sequence_parallel_size")  # fmt: skip
    for name in degrees:
        gpus //= int(options.get(f"{model}.{name}", "1"))
    return gpus


def divides_updates(options: dict[str, str]) -> bool:
    """engine_workers.py, train_mini_batch."""
    answers = int(options["actor_rollout_ref.actor.ppo_mini_batch_size"]) * int(options[f"{ROLLOUT}.n"])
    return all(answers % copies(options, model) == 0 for model in TRAINED)


def offloads_no_megatron_fsdp(options: dict[str, str]) -> bool:
    """utils/megatron_utils.py, offload_megatron_model_to_cpu."""
    return all("True" not in (options.get(f"{model}.megatron.param_offload"),
                              options.get(f"{model}.megatron.optimizer_offload"))
               for model in TRAINED if f"{model}.megatron.use_megatron_fsdp" in options)  # fmt: skip


def divides_engines(options: dict[str, str]) -> bool:
    """trainer_base.py and llm_server.py: instances have equal parts of the GPUs."""
    names = ("nnodes", "n_gpus_per_node")
    home = ROLLOUT if f"{ROLLOUT}.nnodes" in options else "trainer"
    gpus = int(options[f"{home}.{names[0]}"]) * int(options[f"{home}.{names[1]}"])
    ranks = int(options[f"{ROLLOUT}.tensor_model_parallel_size"]) * int(options[f"{ROLLOUT}.data_parallel_size"])
    return gpus % ranks == 0


def switches_groups_of_attention(options: dict[str, str]) -> bool:
    """async_sglang_server.py: dp_size without it is of whole engines."""
    grouped = options[f"{ROLLOUT}.name"] == "sglang" and options[f"{ROLLOUT}.data_parallel_size"] != "1"
    return (options.get(f"{ROLLOUT}.engine_kwargs.sglang.enable_dp_attention") == "True") == grouped


@pytest.mark.parametrize(
    "holds", [divides_updates, offloads_no_megatron_fsdp, divides_engines, switches_groups_of_attention]
)
def test_drawn_placements_pass_what_verl_asserts(plans: list[RlPlan], holds: Callable[[dict[str, str]], bool]) -> None:
    assert [options for options in options_of_drawn(plans, 60) if not holds(options)] == []


def changed(plan: RlPlan, choice: int, **update: Any) -> RlPlan:
    """The plan with another engine (fields of it) in this placement."""
    placed = plan.candidate(choice)
    calls = tuple(call if call.engine is None else
                  call.model_copy(update={"engine": call.engine.model_copy(update=update)})
                  for call in placed.calls)  # fmt: skip
    other = placed.model_copy(update={"calls": calls})
    return plan.model_copy(
        update={"candidates": tuple(other if it.choice == choice else it for it in plan.candidates)}
    )


def test_sequences_and_memory_are_those_of_the_engine(plans: list[RlPlan]) -> None:
    """vLLM counts the sequences of a group of attention, SGLang those of all, and memory without buffers."""
    grouped = {"tp": 1, "attention_dp": 2, "instances": 1, "cache_sequences": 100}
    found = {}
    for plan in drawn(plans, "verl", 20):
        options = settings(changed(plan, plan.best.choice, **grouped), plan.best.choice)
        shown = options[f"{ROLLOUT}.max_num_seqs"], options[f"{ROLLOUT}.gpu_memory_utilization"]
        found[options[f"{ROLLOUT}.name"]] = shown
    static = 0.9 - 4 * 2**30 / plans[0].resolved["cluster"]["groups"][0]["gpu"]["memory_bytes"]
    assert found == {"vllm": ("50", "0.9"), "sglang": ("100", str(round(static, 3)))}


def test_a_reference_on_fsdp_has_the_layout_of_the_actor() -> None:
    [plan] = drawn([plan_rl(**{**_FSDP, "kl": True})], "verl", 1)
    notes = emit_rl(plan, "verl", plan.best.choice).warnings
    train = next(call for call in plan.best.calls if call.name == "train")
    assert any(note.startswith(f"reference: verl runs it by the layout of train, {train.layout_id}") for note in notes)


def test_stages_have_no_prediction_modules(grpo: RlPlan) -> None:
    models = {**grpo.resolved["models"]}
    models["policy"] = {**models["policy"], "mtp_layers": 1}
    layout = {"pp": 3, "dp": 1, "shard": 1, "zero": 1}
    calls = [call.model_copy(update={"layout": {**call.layout, **layout}}) if call.layout else call
             for call in grpo.best.calls]  # fmt: skip
    best = grpo.best.model_copy(update={"calls": tuple(calls)})
    plan = grpo.model_copy(update={"resolved": {**grpo.resolved, "models": models}, "candidates": (best,)})
    [stages] = [value for name, value in settings(plan).items() if name.endswith("pipeline_model_parallel_layout")]
    assert stages.strip("'") == "Et*5|t*6|t*5L"
    assert any("without the prediction modules" in text for text in emit_rl(plan, "verl").warnings)
