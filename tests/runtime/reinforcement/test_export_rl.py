"""`launch export` of the policy of PPO: transformers loads it, and its logits are those of the run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, LlamaConfig

from ...snapshots import run_here
from . import plain
from .test_resume_rl import job_of, lives

CONFIG = LlamaConfig(
    vocab_size=61, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
    num_key_value_heads=2, max_position_embeddings=16, rms_norm_eps=1e-5, tie_word_embeddings=False,
    architectures=["LlamaForCausalLM"],
)  # fmt: skip


def test_the_policy_of_ppo_is_exported_without_its_critic(tmp_path: Path) -> None:
    job = job_of("ppo", dtype="fp32")
    _, states = lives(job, tmp_path / "ckpt", 1, resume=False)
    CONFIG.save_pretrained(tmp_path / "hf")
    result = run_here("launch", "export", "ckpt", "--to-hf", "out", "--config", "hf", cwd=tmp_path)
    assert result.code == 0, result.err
    loaded: Any = AutoModelForCausalLM.from_pretrained(tmp_path / "out", output_loading_info=True)
    model, found = loaded
    assert not found["unexpected_keys"]
    assert not found["missing_keys"]
    policy = {name.removeprefix("weights."): value.double() for name, value in states.items()
              if name.startswith("weights.")}  # fmt: skip
    tokens = torch.arange(32).view(2, 16)
    expected = plain.forward(policy, job.model, tokens)
    assert torch.allclose(model.double()(tokens).logits, expected, rtol=1e-6, atol=1e-6)


def test_an_export_of_drawn_weights_asks_for_a_config(tmp_path: Path) -> None:
    lives(job_of("dpo"), tmp_path / "ckpt", 1, resume=False)
    result = run_here("launch", "export", "ckpt", "--to-hf", "out", cwd=tmp_path)
    assert result.code == 2
    assert "no folder has their config.json" in " ".join(result.err.split())
