"""Commands of OpenRLHF as the training step that they start."""

from __future__ import annotations

from pathlib import Path

import pytest
from meshwright.planner.importing import Imported, import_config

from meshwright.errors import InputError

OLDER = """\
set -x
read -r -d '' training_commands <<EOF
openrlhf.cli.train_dpo \\
   --pretrain meta-llama/Meta-Llama-3-8B --train_batch_size 256 --micro_train_batch_size 1 \\
   --bf16 --flash_attn --max_len 8192 --zero_stage 3 --beta 0.1 --packing_samples \\
   --ring_attn_size 2 --ring_head_stride 2 --learning_rate 5e-7 --gradient_checkpointing --adam_offload
EOF
deepspeed --module $training_commands
"""
PPO = """\
ray job submit -- python3 -m openrlhf.cli.train_ppo_ray --actor_num_nodes 2 --actor_num_gpus_per_node 4 \\
   --ref_num_nodes 1 --vllm_num_engines 2 --pretrain Qwen/Qwen2.5-7B-Instruct --micro_train_batch_size 2 \\
   --train_batch_size 128 --prompt_max_len 1024 --generate_max_len 3072 --zero_stage 2 --bf16 --flash_attn \\
   --init_kl_coef 0.01 --packing_samples
"""
TODAY = """\
deepspeed --module openrlhf.cli.train_sft --model.model_name_or_path Qwen/Qwen2.5-7B --data.max_len 4096 \\
   --train.batch_size 64 --train.micro_batch_size 2 --ds.zero_stage 3 --ds.tensor_parallel_size 2 \\
   --model.gradient_checkpointing_enable --ds.packing_samples
"""


def imported(folder: Path, text: str, **given: object) -> Imported:
    path = folder / "train.sh"
    path.write_text(text, encoding="utf-8")
    return import_config("openrlhf", [path], {"gpu": "h100-sxm-80gb", **given})


@pytest.mark.parametrize(("text", "layout", "seq_len", "batch"), [
    (OLDER, "cp2r-dp4-mbs2-z3-rfull-oopt", 8192, 512),
    (PPO, "dp8-mbs2-z2-rnone", 4096, 128),
    (PPO.replace("--bf16 --flash_attn", "--param_dtype bf16").replace("--packing_samples", ""), "dp8-mbs2-z2-rnone",
     4096, 128),
    (TODAY, "tp2-nosp-dp4-mbs2-z3-rfull", 4096, 64),
    (PPO.replace("--bf16", "--bf16 --use_dynamic_batch"), "dp8-mbs2-z2-rnone", 4096, 128),
    (PPO.replace("--bf16", "--bf16 --use_dynamic_batch --train_max_tokens_per_gpu 40000 --push_to_hub a/b"),
     "dp8-mbs8-z2-rnone", 4096, 128),
    (TODAY.replace("zero_stage 3", "lora.rank 16 --ds.load_in_4bit"), "tp2-nosp-dp4-mbs2-z2-rfull", 4096, 64),
])  # fmt: skip
def test_layout_and_batch(tmp_path: Path, text: str, layout: str, seq_len: int, batch: int) -> None:
    found = imported(tmp_path, text, **({} if "actor_num" in text else {"gpus": 8}))
    assert not found.gaps
    assert str(found.layout) == layout
    assert (found.request.workload.seq_len, found.request.workload.global_batch) == (seq_len, batch)
    assert found.request.workload.reference == (text == OLDER)
    assert (found.request.workload.train.lora is not None) == ("lora.rank" in text)


@pytest.mark.parametrize(("text", "option"), [
    (OLDER.replace("--flash_attn ", ""), "flash_attn"),
    (OLDER.replace("--bf16 ", ""), "bf16"),
    (OLDER.replace("train_dpo", "train_kto"), "program"),
    (PPO.replace("--bf16", "--bf16 --pretrain_data own"), "pretrain_data"),
    (TODAY.replace("--data.max_len", "--optim muon --data.max_len"), "optim"),
    (TODAY.replace("--data.max_len", "--ds.grad_accum_dtype bf16 --data.max_len"), "data_types"),
])  # fmt: skip
def test_what_may_change_the_layout_is_named(tmp_path: Path, text: str, option: str) -> None:
    assert [gap.field for gap in imported(tmp_path, text, gpus=8).gaps] == [option]


def test_a_reward_model(tmp_path: Path) -> None:
    """Pairs without a reference, and values in place of logits: 126,000 rows of a head less."""
    text = OLDER.replace("train_dpo", "train_rm").replace("--beta 0.1", "--loss sigmoid --value_head_prefix score")
    found = imported(tmp_path, text, gpus=8)
    work = found.request.workload
    assert (found.gaps, str(found.layout), work.global_batch) == ((), "cp2r-dp4-mbs2-z3-rfull-oopt", 512)
    assert (work.reward_model, work.reference) == (True, False)
    of_pairs = imported(tmp_path, OLDER, gpus=8)
    assert found.price().best.step_s < 0.8 * of_pairs.price().best.step_s
    default = imported(tmp_path, text.replace("--micro_train_batch_size 1", "").replace("--max_len 8192", ""), gpus=8)
    assert (default.layout.micro_batch, default.request.workload.seq_len) == (2, 512)


def test_a_program_of_a_fork(tmp_path: Path) -> None:
    """It has the options of OpenRLHF; a script named alike without them is none."""
    text = OLDER.replace("openrlhf.cli.train_dpo", "train.train_dpo")
    assert str(imported(tmp_path, text, gpus=8).layout) == "cp2r-dp4-mbs2-z3-rfull-oopt"
    with pytest.raises(InputError, match="starts no"):
        imported(tmp_path, "#!/bin/bash\npython train_sft.py --learning_rate 1e-5\n")


def test_options_of_forks(tmp_path: Path) -> None:
    """Those without a word of a layout in their names are named and change nothing; others are gaps."""
    found = imported(tmp_path, TODAY.replace("--data.max_len", "--stop_turns 3 --data.max_len"), gpus=8)
    assert not found.gaps
    assert "stop_turns: of a program other than OpenRLHF's: taken to change no step" in found.assumed
    gaps = imported(tmp_path, TODAY.replace("--data.max_len", "--turns_of_experts 3 --data.max_len"), gpus=8).gaps
    assert [gap.field for gap in gaps] == ["turns_of_experts"]


def test_other_scripts_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"starts no openrlhf\.cli\.train_"):
        imported(tmp_path, "#!/bin/bash\npython train.py --zero_stage 3\n")
    with pytest.raises(InputError, match="different options"):
        imported(tmp_path, TODAY + TODAY.replace("4096", "2048"), gpus=8)
    with pytest.raises(InputError, match="does not divide"):
        imported(tmp_path, TODAY.replace("size 2 --ds.zero", "size 2 --ds.ring_attn_size 3 --ds.zero"), gpus=8)


def test_compiled_layers_are_named_and_layers_that_never_freeze_are_none(tmp_path: Path) -> None:
    found = imported(tmp_path, PPO.replace("--packing_samples", "--packing_samples --torch_compile --deepcompile "
                                           "--freezing_actor_steps -1 --full_determinism"))  # fmt: skip
    assert not found.gaps
    assert "torch_compile, deepcompile: priced as without" in found.assumed
    (gap,) = imported(tmp_path, PPO.replace("--packing_samples", "--packing_samples --freezing_actor_steps 8")).gaps
    assert gap.field == "freezing_actor_steps"
