"""ms-swift: the YAML of `swift sft`, the args.json that it leaves, and DeepSpeed's options inside a recipe."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from meshwright.errors import InputError

from .test_readers import RECIPE, SWIFT, imported

# Options as swift fills them in before it trains.
ARGS = {
    "swift_version": "4.2.0", "model": "/models/google/gemma-4-26B-A4B-it", "tuner_type": "full", "lora_rank": 8,
    "target_modules": ["all-linear"], "max_length": 16384, "packing": False, "per_device_train_batch_size": 1,
    "gradient_accumulation_steps": 16, "gradient_checkpointing": True, "bf16": True, "optim": "adamw_torch_fused",
    "sequence_parallel_size": 2, "global_world_size": 8, "freeze_parameters": ["model.vision_tower"],
    "galore_rank": 128, "deepspeed": {"zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu"}},
                                      "train_micro_batch_size_per_gpu": "auto"},
}  # fmt: skip
GPU = {"gpu": "h100-sxm-80gb"}


def test_the_options_that_a_run_leaves(tmp_path: Path) -> None:
    """Two of 8 ranks share a sequence, so that 4 have 16 each; the sizes are those of the model card."""
    found = imported(tmp_path, "swift", json.dumps(ARGS), **GPU)
    assert not found.gaps
    assert str(found.layout) == "cp2u-dp4-mbs1-z3-rfull-oopt"
    assert (found.request.model, found.request.workload.global_batch) == ("gemma-4-26b-a4b", 64)
    assert "towers are frozen: text is priced, without them" in found.assumed
    assert found.price().best.step_s > 0


@pytest.mark.parametrize(("changes", "layout"), [
    ({"deepspeed": "zero2"}, "cp2u-dp4-mbs1-z2-rfull"),
    ({"deepspeed": "zero1", "sequence_parallel_size": 1}, "dp8-mbs1-z1-rfull"),
    ({"deepspeed": None, "fsdp": "fsdp2", "gradient_checkpointing": False}, "cp2u-dp4-mbs1-z3-rfull"),
    ({"model": "Qwen2.5-0.5B", "sequence_parallel_size": 3, "global_world_size": 6}, "cp3r-dp2-mbs1-z3-rfull-oopt"),
    ({"deepspeed": "zero1", "deepspeed_autotp_size": 2, "sequence_parallel_size": 1}, "tp2-nosp-dp4-mbs1-z1-rfull"),
])  # fmt: skip
def test_sharding_by_name_and_beside_the_block(tmp_path: Path, changes: dict[str, object], layout: str) -> None:
    found = imported(tmp_path, "swift", json.dumps(ARGS | changes), **GPU)
    assert ("gap" if found.gaps else str(found.layout)) == layout


def test_copies_of_shards_in_a_node(tmp_path: Path) -> None:
    found = imported(tmp_path, "swift", json.dumps({**ARGS, "zero_hpz_partition_size": 4}), **GPU)
    assert not found.gaps
    assert found.request.workload.techniques["zero++"]["secondary"] == 4


def test_recipes_in_yaml(tmp_path: Path) -> None:
    found = imported(tmp_path, "swift", SWIFT)
    assert str(found.layout) == "dp16-mbs1-z3-rfull"
    assert (found.request.workload.seq_len, found.request.workload.global_batch) == (4096, 64)
    packs = imported(tmp_path, "swift", f"{SWIFT}packing_length: 8192\n")
    assert packs.request.workload.seq_len == 8192
    lora = imported(tmp_path, "swift", SWIFT.replace("full", "lora") + "quant_bits: 4\n").request.workload.train.lora
    assert lora is not None
    assert (lora.rank, lora.base_dtype) == (8, "nf4")
    (gap,) = imported(tmp_path, "swift", SWIFT.replace("gradient_accumulation_steps: 4\n", "")).gaps
    assert "16 sequences of the ranks" in gap.message
    (gap,) = imported(tmp_path, "swift", SWIFT.replace("zero3", "mine.json")).gaps
    assert gap.message == "the ZeRO stage is in mine.json: give it as a further FILE"


def test_options_of_deepspeed_inside_a_recipe(tmp_path: Path) -> None:
    """TrainingArguments takes a path or the options, in YAML or as JSON in a string."""
    block = {"zero_optimization": {"stage": 2}, "train_micro_batch_size_per_gpu": "auto"}
    for text in (json.dumps(block), f"'{json.dumps(block)}'"):
        assert str(imported(tmp_path, "hf-trainer", f"{RECIPE}deepspeed: {text}\n").layout) == "dp16-mbs2-z2-rfull"
    stage, size = {"zero_optimization": {"stage": "two"}}, {**block, "train_micro_batch_size_per_gpu": 3}
    for wrong, words in ((stage, r"line 9, deepspeed: zero_optimization.stage: .*two"),
                         (size, "train_micro_batch_size_per_gpu 3")):  # fmt: skip
        with pytest.raises(InputError, match=words):
            imported(tmp_path, "hf-trainer", f"{RECIPE}deepspeed: {json.dumps(wrong)}\n")
    on_drives = {"zero_optimization": {"stage": 3, "offload_param": {"device": "nvme"}}}
    (gap,) = imported(tmp_path, "hf-trainer", f"{RECIPE}deepspeed: {json.dumps(on_drives)}\n").gaps
    assert (gap.line, gap.message) == (9, "keeps weights on nvme")
