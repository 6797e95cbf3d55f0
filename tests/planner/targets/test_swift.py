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
PADDED = {"padding_free": True, "attn_impl": "flash_attn"}
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
    ({"deepspeed": "default-zero2-offload"}, "cp2u-dp4-mbs1-z2-rfull-oopt"),
    ({"deepspeed": "zero1", "sequence_parallel_size": 1}, "dp8-mbs1-z1-rfull"),
    ({"deepspeed": None, "fsdp": "fsdp2", "gradient_checkpointing": False}, "cp2u-dp4-mbs1-z3-rfull"),
    ({"model": "Qwen2.5-0.5B", "sequence_parallel_size": 3, "global_world_size": 6, **PADDED,
      "max_length": 12288}, "cp3r-dp2-mbs1-z3-rfull-oopt"),
    ({"deepspeed": None, "fsdp": '{"fsdp": "shard_grad_op auto_wrap"}'}, "cp2u-dp4-mbs1-z2-rfull"),
    ({"deepspeed": None, "fsdp": "full_shard auto_wrap", "fsdp_config": {"reshard_after_forward": False}},
     "cp2u-dp4-mbs1-z2-rfull"),
    ({"deepspeed": None, "fsdp": {"fsdp_config": {"fsdp_version": 2}}}, "cp2u-dp4-mbs1-z3-rfull"),
    ({"deepspeed": None, "fsdp": {"fsdp_config": {"mixed_precision_policy": "fp32"}}}, "gap"),
    ({"deepspeed": None, "fsdp": {"fsdp_config": {"mixed_precision_policy": None, "xla": False}}},
     "cp2u-dp4-mbs1-z3-rfull"),
    ({"deepspeed": None, "fsdp": "mine.json"}, "gap"),
    ({"model": "Qwen2.5-0.5B", "deepspeed": "zero1", "deepspeed_autotp_size": 2, "sequence_parallel_size": 1},
     "tp2-nosp-dp4-mbs1-z1-rfull"),
])  # fmt: skip
def test_sharding_by_name_and_beside_the_block(tmp_path: Path, changes: dict[str, object], layout: str) -> None:
    found = imported(tmp_path, "swift", json.dumps(ARGS | changes), **GPU)
    assert ("gap" if found.gaps else str(found.layout)) == layout


@pytest.mark.parametrize("option", ["deepspeed_autotp_size", "zero_hpz_partition_size", "packing_length"])
def test_a_number_that_is_none(tmp_path: Path, option: str) -> None:
    with pytest.raises(InputError, match=option):
        imported(tmp_path, "swift", json.dumps({**ARGS, option: "x"}), **GPU)


@pytest.mark.parametrize("option", ["deepspeed", "fsdp"])
def test_a_number_is_neither_a_file_nor_a_block(tmp_path: Path, option: str) -> None:
    with pytest.raises(InputError, match=f"{option}.*3 is neither the name of a file nor a block"):
        imported(tmp_path, "swift", json.dumps({**ARGS, "deepspeed": None, option: 3}), **GPU)


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


@pytest.mark.parametrize(("options", "base"), [
    ("quant_bits: 4\n", "bf16"), ("quant_bits: 4\nquant_method: bnb\n", "nf4"),
    ("quant_method: bnb\nquant_bits: 8\n", "int8"),
])  # fmt: skip
def test_frozen_weights_have_few_bits_by_a_method(tmp_path: Path, options: str, base: str) -> None:
    found = imported(tmp_path, "swift", SWIFT.replace("full", "lora") + options)
    lora = found.request.workload.train.lora
    assert lora is not None
    assert (lora.rank, lora.base_dtype) == (8, base)
    told = any(text.startswith("quant_bits is without quant_method") for text in found.assumed)
    assert told is (base == "bf16")


@pytest.mark.parametrize(("options", "precision"), [
    ("torch_dtype: float16", "fp16"), ("torch_dtype: float32", "fp16"), ("torch_dtype: torch.bfloat16", "bf16"),
    ("bf16: true", "bf16"), ("torch_dtype: float32\nfp16: false", "fp32"), ("fp16: false", "bf16"),
])  # fmt: skip
def test_the_precision_follows_the_weights(tmp_path: Path, options: str, precision: str) -> None:
    found = imported(tmp_path, "swift", SWIFT.replace("torch_dtype: bfloat16", options))
    assert not found.gaps
    assert found.layout.as_dict()["precision"] == precision


ZERO1 = json.dumps({"zero_optimization": {"stage": 1}, "train_micro_batch_size_per_gpu": "auto"}, indent=1)
ZERO3 = ZERO1.replace('"stage": 1', '"stage": 3')
BESIDE = SWIFT.replace("zero3", "mine.json")


def test_options_that_swift_puts_into_the_file_of_deepspeed(tmp_path: Path) -> None:
    tp = imported(tmp_path, "swift", BESIDE + "deepspeed_autotp_size: 2\n", ZERO1)
    assert str(tp.layout) == "tp2-nosp-dp8-mbs1-z1-rfull"
    copies = imported(tmp_path, "swift", BESIDE + "zero_hpz_partition_size: 8\n", ZERO3)
    assert copies.request.workload.techniques["zero++"]["secondary"] == 8
    for option in ("deepspeed_autotp_size", "zero_hpz_partition_size"):
        plain = imported(tmp_path, "swift", SWIFT.replace("deepspeed: zero3\n", f"{option}: 2\n"))
        assert str(plain.layout) == "dp16-mbs1-z0-rfull"
        assert f"{option}: swift takes it into the options of deepspeed, which are not given" in plain.assumed


def test_an_option_of_swift_that_deepspeed_refuses(tmp_path: Path) -> None:
    """It is named with its own line, not that of DeepSpeed's file."""
    text = BESIDE + "zero_hpz_partition_size: -8\n"
    place = rf"line {len(text.splitlines())}, zero_hpz_partition_size"
    with pytest.raises(InputError, match=f"{place}: `-8` is not 0 or more"):
        imported(tmp_path, "swift", text, ZERO3)


def test_a_file_with_the_options_of_fsdp(tmp_path: Path) -> None:
    text = SWIFT.replace("deepspeed: zero3", "fsdp: mine.json")
    (gap,) = imported(tmp_path, "swift", text).gaps
    assert (gap.field, gap.line, gap.message) == ("fsdp", 3, "its options are in mine.json: give it as a further FILE")
    block = {"fsdp": "full_shard auto_wrap", "fsdp_config": {"reshard_after_forward": False, "fsdp_version": 2}}
    assert str(imported(tmp_path, "swift", text, json.dumps(block)).layout) == "dp16-mbs1-z2-rfull"


@pytest.mark.parametrize(("changes", "words"), [
    ({"fsdp": "fsdp2"}, "fsdp: fsdp and deepspeed .line 1. are both on"),
    ({"model": "Qwen2.5-0.5B", "sequence_parallel_size": 4}, "sequence_parallel_size: 4 of 2 key heads: a ring of 2"),
    ({"torch_dtype": "fp32"}, "torch_dtype: `fp32` is none of bfloat16, float16, float32"),
    ({"torch_dtype": "float32"}, "fp16 and bf16 are both on"),
    ({"deepspeed": None, "fsdp": {"fsdp_config": 3}}, "fsdp: fsdp_config `3` is no block of options"),
    ({"deepspeed": None, "fsdp": True}, "fsdp: is neither a name, its options nor a file of them"),
    ({"packing": True}, "packing: goes with an attn_impl of flash attention alone"),
    ({"quant_method": "bnb", "quant_bits": 4}, "weights of few bits do not learn"),
])  # fmt: skip
def test_runs_that_swift_refuses(tmp_path: Path, changes: dict[str, object], words: str) -> None:
    with pytest.raises(InputError, match=words):
        imported(tmp_path, "swift", json.dumps(ARGS | changes), **GPU)


@pytest.mark.parametrize("option", ["fp8", "bfloat16", "float16"])
def test_options_of_other_frameworks(tmp_path: Path, option: str) -> None:
    (gap,) = imported(tmp_path, "swift", f"{SWIFT}{option}: true\n").gaps
    assert (gap.field, gap.message) == (option, "unknown: it may change the layout")


@pytest.mark.parametrize("key", ["train_type", "swift_version"])
def test_a_recipe_with_a_block_is_no_file_of_deepspeed(tmp_path: Path, key: str) -> None:
    """One key of a recipe is enough."""
    names = {"model": "Qwen2.5-0.5B", "train_type": "full", "swift_version": "4.2.0"}
    given = {name: value for name, value in names.items() if name in ("model", key)}
    text = json.dumps({**given, "deepspeed": {"zero_optimization": {"stage": 2}}, "gradient_accumulation_steps": 1})
    found = imported(tmp_path, "swift", text, **GPU, gpus=8)
    assert str(found.layout) == "dp8-mbs1-z2-rfull"


def test_a_number_in_place_of_a_block(tmp_path: Path) -> None:
    given = {**ARGS, "deepspeed": {"zero_optimization": 3}, "zero_hpz_partition_size": 4}
    found = imported(tmp_path, "swift", json.dumps(given), **GPU)
    assert [gap.message for gap in found.gaps] == ["`3` is no block of options"]
    assert "zero" not in found.stated


def test_a_number_of_an_inline_block_has_the_line_of_the_block(tmp_path: Path) -> None:
    block = {"zero_optimization": {"stage": 2}, "gradient_accumulation_steps": 2}
    with pytest.raises(InputError, match=r"4 here, and gradient_accumulation_steps 2 in .*, line 9"):
        imported(tmp_path, "hf-trainer", f"{RECIPE}deepspeed: {json.dumps(block)}\n")
