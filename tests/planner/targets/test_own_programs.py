"""YAML of programs that hand one block of it to TrainingArguments, and records of trackers."""

from __future__ import annotations

from pathlib import Path

import pytest
from meshwright.planner.importing import import_config

from meshwright.errors import InputError

from .test_readers import NANOTRON

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


PROGRAM = """\
method: sft
backend: trl
model: {name_or_path: Qwen/Qwen3-0.6B, attn_implementation: sdpa}
sft: {max_seq_length: 2048, packing: true}
lora: {r: 8}
slurm: {num_nodes: 2, gpus_per_node: 4, wall_time: "02:00:00"}
training: {per_device_train_batch_size: 2, gradient_accumulation_steps: 4, bf16: true}
"""


def test_options_in_other_blocks(tmp_path: Path) -> None:
    """Names of the trainer count wherever they stand; ranks are those of the job; the rest is named."""
    path = tmp_path / "own.yaml"
    path.write_text(PROGRAM, encoding="utf-8")
    found = import_config("hf-trainer", [path], {"gpu": "h100-sxm-80gb"})
    assert (str(found.layout), found.gaps) == ("dp8-mbs2-z0-rnone", ())
    assert (found.request.model, found.request.workload.seq_len) == ("qwen3-0.6b", 2048)
    assert "method, backend, slurm: of the program's own, taken to change no step" in found.assumed
    path.write_text(PROGRAM.replace("method: sft", "method: grpo") + "parallel: {tp_size: 2}\n", encoding="utf-8")
    gaps = import_config("hf-trainer", [path], {"gpu": "h100-sxm-80gb"}).gaps
    assert [(gap.field, gap.line) for gap in gaps] == [("method", 1), ("parallel", 8)]


def test_a_block_for_llama_factory(tmp_path: Path) -> None:
    path = tmp_path / "own.yaml"
    path.write_text("backend: llamafactory\nslurm: {num_nodes: 1, gpus_per_node: 4}\nllamafactory:\n  stage: sft\n"
                    "  finetuning_type: full\n  model_name_or_path: Qwen/Qwen3-0.6B\n  cutoff_len: 1024\n"
                    "  per_device_train_batch_size: 2\n  bf16: true\n", encoding="utf-8")  # fmt: skip
    found = import_config("llama-factory", [path], {"gpu": "h100-sxm-80gb"})
    assert (str(found.layout), found.gaps) == ("dp4-mbs2-z0-rfull", ())


def test_what_a_tracker_recorded_is_no_config(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text("wandb_version: 1\nper_device_train_batch_size:\n  value: 1\n", encoding="utf-8")
    with pytest.raises(InputError, match="W&B recorded"):
        import_config("hf-trainer", [path], {"gpu": "h100-sxm-80gb", "gpus": 4})


def test_scaled_positions_of_a_fork_of_nanotron(tmp_path: Path) -> None:
    """They are those of a config.json; other kinds are gaps."""
    path = tmp_path / "run.yaml"
    scaled = ("    rope_scaling: {factor: 32.0, high_freq_factor: 4.0, low_freq_factor: 1.0,"
              " original_max_position_embeddings: 8192, rope_type: llama3}\n")  # fmt: skip
    path.write_text(NANOTRON + scaled, encoding="utf-8")
    found = import_config("nanotron", [path], {"gpu": "h100-sxm-80gb"})
    assert not found.gaps
    assert isinstance(found.request.model, dict)
    assert found.request.model["rope_scaling"]["type"] == "llama3"
    assert found.request.target == "any"
    path.write_text(NANOTRON + scaled.replace("llama3", "longrope"), encoding="utf-8")
    gaps = import_config("nanotron", [path], {"gpu": "h100-sxm-80gb"}).gaps
    assert [gap.field for gap in gaps] == ["model.model_config.rope_scaling"]


QLORA = """\
python qlora.py --model_name_or_path huggyllama/llama-7b --bf16 --bits 4 --lora_r 64 --lora_modules all \\
    --double_quant --quant_type nf4 --source_max_len 16 --target_max_len 512 --output_dir out
"""


@pytest.mark.parametrize(("old", "new", "base", "seq_len"), [
    ("", "", "nf4", 528), ("--bits 4", "--bits 8", "int8", 528), ("--bits 4", "--bits 16", "bf16", 528),
    ("--source_max_len 16 ", "", "nf4", 1536), ("--bits 4", "--bits 16 --full_finetune True", None, 528),
])  # fmt: skip
def test_the_program_of_qlora(tmp_path: Path, old: str, new: str, base: str | None, seq_len: int) -> None:
    """Its defaults: 16 steps of one sequence, recomputation, rank 64 on all linear modules, 4 bits."""
    path = tmp_path / "finetune.sh"
    path.write_text(QLORA.replace(old, new), encoding="utf-8")
    found = import_config("hf-trainer", [path], {"cluster": "1xa100-sxm-80gb"})
    lora, work = found.request.workload.train.lora, found.request.workload
    assert (str(found.layout), found.gaps) == ("dp1-mbs1-z0-rfull", ())
    assert (work.seq_len, work.global_batch) == (seq_len, 16)
    assert (lora and (lora.rank, lora.base_dtype, len(lora.targets))) == (base and (64, base, 7))


def test_all_weights_of_four_bits_do_not_train(tmp_path: Path) -> None:
    path = tmp_path / "finetune.sh"
    path.write_text(QLORA.replace("--bits 4", "--bits 4 --full_finetune True"), encoding="utf-8")
    with pytest.raises(InputError, match="line 1, bits: full_finetune of weights of 4 bits"):
        import_config("hf-trainer", [path], {"cluster": "1xa100-sxm-80gb"})


ADAPTERS = """\
torchrun --nproc_per_node 8 PROGRAM --model_name_or_path Qwen/Qwen3-8B --bf16 True --output_dir out \\
    --per_device_train_batch_size 2 --gradient_accumulation_steps 8 --model_max_length 512 {added}
"""
ALL = ("q", "k", "v", "o", "gate", "up", "down")
QV = ("q", "v")


@pytest.mark.parametrize(("program", "added", "rank", "modules"), [
    ("finetune.py", "--use_lora", 64, ALL), ("finetune.py", "--use_lora --lora_r 8", 8, ALL),
    ("src/train_lora.py", "--q_lora True", 8, QV), ("train_lora.py", "", 8, QV),
])  # fmt: skip
def test_adapters_that_a_known_program_decides(
    tmp_path: Path, program: str, added: str, rank: int, modules: tuple[str, ...]
) -> None:
    """Qwen's finetune.py and FastChat's train_lora.py have other defaults than TRL, and a note states them."""
    path = tmp_path / "run.sh"
    path.write_text(ADAPTERS.replace("PROGRAM", program).format(added=added), encoding="utf-8")
    found = import_config("hf-trainer", [path], {"gpu": "h100-sxm-80gb"})
    lora = found.request.workload.train.lora
    assert lora is not None
    assert (lora.rank, found.gaps) == (rank, ())
    assert set(lora.targets) == set(modules)
    assert any(f"the default of {Path(program).name} of " in note for note in found.assumed)


def test_the_rank_of_an_unknown_program_is_a_gap(tmp_path: Path) -> None:
    path = tmp_path / "run.sh"
    path.write_text(ADAPTERS.replace("PROGRAM", "tune.py").format(added="--use_lora"), encoding="utf-8")
    (gap,) = import_config("hf-trainer", [path], {"gpu": "h100-sxm-80gb"}).gaps
    assert (gap.field, gap.line) == ("use_peft", 2)
    found = import_config("hf-trainer", [path], {"gpu": "h100-sxm-80gb"}, None, ["lora_r=32"])
    lora = found.request.workload.train.lora
    assert lora is not None
    assert (lora.rank, found.gaps) == (32, ())
