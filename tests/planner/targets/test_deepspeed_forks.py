"""Options and programs of forks of Megatron-DeepSpeed and of Megatron-LM."""

from __future__ import annotations

from pathlib import Path

import pytest
from meshwright.planner.importing import Imported, import_config

SIZES = ("--num-layers 4 --hidden-size 512 --num-attention-heads 8 --seq-length 1024 --max-position-embeddings 1024 "
         "--micro-batch-size 1 --global-batch-size 16 --bf16")  # fmt: skip
DEEPSPEED = f"deepspeed --num_nodes 1 --num_gpus 8 PROGRAM {SIZES} --deepspeed --zero-stage 1 --no-pipeline-parallel "
EXPERTS = "--num-experts 8 --moe-expert-parallel-size 4 --topk 2 --expert-interval 1"


def imported(folder: Path, text: str, program: str = "pretrain_gpt.py") -> Imported:
    path = folder / "run.sh"
    path.write_text(text.replace("PROGRAM", program), encoding="utf-8")
    return import_config("megatron-args", [path], {"gpu": "h100-sxm-80gb"})


def test_experts_over_ranks_of_tp_without_sequence_parallelism(tmp_path: Path) -> None:
    """DeepSpeed runs them; Megatron-LM refuses them, and so does an import of its scripts."""
    text = f"{DEEPSPEED} {EXPERTS} --tensor-model-parallel-size 2 "
    (gap,) = imported(tmp_path, text).gaps
    assert (gap.field, gap.message[:34]) == ("--num-experts", "with tp and no sequence parallelis")
    assert imported(tmp_path, f"{text} --sequence-parallel").gaps == ()
    assert imported(tmp_path, f"{DEEPSPEED} {EXPERTS}").gaps == ()


@pytest.mark.parametrize(("replicas", "fields"), [(4, ()), (8, ("--data-parallel-size-arg",))])
def test_replicas_that_a_fork_states(tmp_path: Path, replicas: int, fields: tuple[str, ...]) -> None:
    text = f"{DEEPSPEED} --tensor-model-parallel-size 2 --data-parallel-size-arg {replicas}"
    assert tuple(gap.field for gap in imported(tmp_path, text).gaps) == fields


def test_replicas_state_the_ranks(tmp_path: Path) -> None:
    text = f"python PROGRAM {SIZES} --tensor-model-parallel-size 2 --data-parallel-size-arg 4"
    assert str(imported(tmp_path, text).layout) == "tp2-nosp-dp4-mbs1-z0-rnone"


@pytest.mark.parametrize(("program", "open_"), [
    ("dpo_training.py", True), ("train_prm.py", True), ("run_rlhf.py", True), ("finetune_dpo_llama.py", True),
    ("pretrain_form.py", False), ("train_reworded.py", False),
])  # fmt: skip
def test_programs_that_train_preferences(tmp_path: Path, program: str, open_: bool) -> None:
    gaps = imported(tmp_path, DEEPSPEED, program).gaps
    assert [gap.message.endswith("passes beside those of a training step") for gap in gaps] == [True] * open_


@pytest.mark.parametrize(("added", "note"), [
    ("--use-pft --use-uneven-all-to-all", "--use-pft, --use-uneven-all-to-all: priced as without"),
    ("--moe-use-legacy-grouped-gemm", "--moe-use-legacy-grouped-gemm: priced as without"),
    ("--moe-router-load-balancing-type global_batch_loss",
     "--moe-router-load-balancing-type global_batch_loss: a fork's loss, priced without"),
    ("--cross-entropy-label-smoothing 0.0 --moe-aux-loss-score-function softmax --output-layer-init-method-normal "
     "--output-layer-init-method-normal-std 0.01", ""),
])  # fmt: skip
def test_options_that_leave_the_layout(tmp_path: Path, added: str, note: str) -> None:
    found = imported(tmp_path, f"{DEEPSPEED} {EXPERTS} {added}")
    assert (found.gaps, not note or note in found.assumed) == ((), True)
