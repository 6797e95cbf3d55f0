"""Preferences and rewards in recipes of transformers' Trainer: the step of the model that learns, in sequences."""

from __future__ import annotations

from pathlib import Path

import pytest
from meshwright.planner.importing import import_config

from .test_readers import AXOLOTL, FACTORY, RECIPE, SWIFT, imported

LORA = "adapter: lora\nlora_r: 8\nlora_target_linear: true\n"
# Format, recipe -> (micro-batch and batch of a rank in sequences, words of its note).
PAIRS = [
    ("axolotl", AXOLOTL + "rl: orpo\norpo_alpha: 0.1\n", (4, 16), "twice those of the file"),
    ("axolotl", AXOLOTL + LORA + "rl: dpo\ndpo_beta: 0.1\n", (4, 16), "the pass of the frozen reference is in"),
    ("axolotl", AXOLOTL + "rl: ipo\nrl_beta: 0.1\n", (4, 16), "the weights of the frozen reference are in"),
    ("llama-factory", FACTORY.replace("sft", "dpo") + "pref_beta: 0.1\npref_loss: simpo\n", (2, 16), "of the file"),
    ("llama-factory", FACTORY.replace("sft", "dpo") + "pref_beta: 0.1\n", (2, 16), "pass and the weights"),
    ("llama-factory", FACTORY.replace("sft", "orpo") + "orpo_beta: 0.1\n", (2, 16), "of the file"),
    ("llama-factory", FACTORY.replace("sft", "dpo") + "dpo_loss: hinge\n", (2, 16), "pass and the weights"),
    ("llama-factory", FACTORY.replace("sft", "rm"), (2, 16), "one value per token"),
    ("hf-trainer", RECIPE + "beta: 0.1\nloss_type: apo_zero\n", (4, 16), "pass and the weights"),
    ("hf-trainer", RECIPE + "beta: 0.1\nloss_type: [sigmoid, hinge]\n", (4, 16), "pass and the weights"),
    ("hf-trainer", RECIPE + "beta: 0.1\nloss_type: ipo\nprecompute_ref_log_probs: true\n", (4, 16), "of the file"),
    ("hf-trainer", RECIPE + "center_rewards_coefficient: 0.01\n", (4, 16), "one value per token"),
    ("axolotl", AXOLOTL + "reward_model: true\n", (4, 16), "one value per token"),
    ("swift", SWIFT + "rlhf_type: rm\n", (2, 8), "one value per token"),
    ("swift", SWIFT + "rlhf_type: dpo\nbeta: 0.1\nrpo_alpha: 0.1\n", (2, 8), "the frozen reference"),
    ("swift", SWIFT + "rlhf_type: simpo\nsimpo_gamma: 0.5\n", (2, 8), "of the file"),
]


@pytest.mark.parametrize(("kind", "recipe", "sizes", "words"), PAIRS)
def test_pairs_are_two_sequences(tmp_path: Path, kind: str, recipe: str, sizes: tuple[int, int], words: str) -> None:
    """Sixteen data-parallel ranks; the micro-batch of the comparison stays, since a pair cannot be parted."""
    found = imported(tmp_path, kind, recipe)
    assert not found.gaps
    assert (found.layout.micro_batch, found.request.workload.global_batch) == (sizes[0], 16 * sizes[1])
    assert any(words in note for note in found.assumed)
    assert found.request.target == "any"
    assert found.request.fix["micro_batch"] == sizes[0]
    assert found.request.workload.reference is ("reference" in words or "weights" in words)
    assert found.request.workload.reward_model is ("one value" in words)


def test_the_reference_is_in_the_price(tmp_path: Path) -> None:
    """The same sequences without it take about three quarters of the time, and less memory."""
    with_it, without = (imported(tmp_path, "hf-trainer", RECIPE + f"beta: 0.1\nloss_type: sigmoid\n{before}")
                        for before in ("", "precompute_ref_log_probs: true\n"))  # fmt: skip
    one, other = (read.price().candidates[0] for read in (with_it, without))
    assert 1.2 < one.step_s / other.step_s < 1.35
    assert one.memory[0].device_bytes > other.memory[0].device_bytes


REWARDS = RECIPE.replace("max_length: 4096\n", "") + """\
reward_funcs: [accuracy]
num_generations: 8
beta: 0.01
max_prompt_length: 512
max_completion_length: 1536
"""


@pytest.mark.parametrize(
    "text",
    [REWARDS, REWARDS.replace("reward_funcs: [accuracy]\n", ""), REWARDS.replace("num_generations: 8\n", ""),
     REWARDS + "num_iterations: 2\nvllm_mode: colocate\ngeneration_batch_size: 64\n"
     "vllm_model_impl: transformers\ndisable_dropout: true\nentropy_coef: 0.1\nref_model_sync_steps: 8\n"],
)  # fmt: skip
def test_answers_with_rewards(tmp_path: Path, text: str) -> None:
    found = imported(tmp_path, "hf-trainer", text)
    assert not found.gaps
    assert (found.layout.micro_batch, found.request.workload.seq_len) == (2, 2048)
    assert any("generation, rewards and reference" in note for note in found.assumed)


@pytest.mark.parametrize(
    ("kind", "recipe", "field"),
    [("axolotl", AXOLOTL + "rl: grpo\n", "rl"), ("axolotl", AXOLOTL + "rl: dpo\nrl_adapter_ref_model: true\n", "rl"),
     ("llama-factory", FACTORY.replace("sft", "kto"), "stage"),
     ("llama-factory", FACTORY.replace("sft", "ppo"), "stage"),
     ("llama-factory", FACTORY.replace("sft", "dpo") + "dpo_loss: kto_pair\n", "stage"),
     ("llama-factory", FACTORY.replace("sft", "dpo") + "ref_model: mine/other\n", "ref_model"),
     ("llama-factory", FACTORY.replace("sft", "dpo") + "pref_loss: kto_pair\n", "pref_loss"),
     ("hf-trainer", RECIPE + "beta: 0.1\n", "beta"), ("swift", SWIFT + "rlhf_type: kto\n", "rlhf_type"),
     ("swift", SWIFT + "rlhf_type: dpo\nref_model: mine/other\n", "ref_model"),
     ("hf-trainer", RECIPE + "loss_type: kto\n", "loss_type"),
     ("hf-trainer", RECIPE + "loss_type: [sigmoid, sft]\n", "loss_type"),
     ("hf-trainer", RECIPE + "loss_type: sigmoid\nreference_free: true\n", "reference_free")],
)  # fmt: skip
def test_other_ways_are_gaps(tmp_path: Path, kind: str, recipe: str, field: str) -> None:
    assert field in [gap.field for gap in imported(tmp_path, kind, recipe).gaps]


@pytest.mark.parametrize(("program", "learns"), [
    ("trl dpo", (True, False)), ("python scripts/run_dpo.py", (True, False)), ("trl reward", (False, True)),
    ("python examples/reward_modeling.py", (False, True)), ("trl sft", (False, False)),
])  # fmt: skip
def test_programs_name_their_trainer(tmp_path: Path, program: str, learns: tuple[bool, bool]) -> None:
    options = "--model_name_or_path Qwen/Qwen2.5-7B --per_device_train_batch_size 2 --max_length 2048 --bf16"
    path = tmp_path / "train.sh"
    path.write_text(f"#!/bin/bash\n{program} {options}\n", encoding="utf-8")
    found = import_config("hf-trainer", [path], {"cluster": "dgx-h100:1"})
    work = found.request.workload
    assert (found.gaps, work.reference, work.reward_model) == ((), *learns)
    assert found.layout.micro_batch == (4 if any(learns) else 2)
