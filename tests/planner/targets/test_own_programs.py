"""YAML of programs that hand one block of it to TrainingArguments, and records of trackers."""

from __future__ import annotations

from pathlib import Path

import pytest
from meshwright.planner.importing import import_config

from meshwright.errors import InputError

BLOCK = """\
tags: {model: small}
mlflow: {tracking_uri: x}
training:
  per_device_train_batch_size: 2
  gradient_accumulation_steps: 4
  max_length: 1024
  bf16: true
  gradient_checkpointing: true
  optim: OPTIM
"""


def test_a_block_of_training_arguments(tmp_path: Path) -> None:
    path = tmp_path / "own.yaml"
    path.write_text(BLOCK.replace("OPTIM", "adamw_torch"), encoding="utf-8")
    found = import_config("hf-trainer", [path], {"gpu": "h100-sxm-80gb", "gpus": 4, "model": "qwen3-0.6b"})
    assert (str(found.layout), found.gaps) == ("dp4-mbs2-z0-rfull", ())
    assert found.request.workload.global_batch == 32
    assert any("block `training`" in note for note in found.assumed)
    path.write_text(BLOCK.replace("OPTIM", "lomo"), encoding="utf-8")
    found = import_config("hf-trainer", [path], {"gpu": "h100-sxm-80gb", "gpus": 4, "model": "qwen3-0.6b"})
    assert [gap.line for gap in found.gaps] == [9]


def test_what_a_tracker_recorded_is_no_config(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text("wandb_version: 1\nper_device_train_batch_size:\n  value: 1\n", encoding="utf-8")
    with pytest.raises(InputError, match="W&B recorded"):
        import_config("hf-trainer", [path], {"gpu": "h100-sxm-80gb", "gpus": 4})
