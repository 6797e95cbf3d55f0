"""Shell scripts that start transformers' Trainer and its relatives by options."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from meshwright.planner.importing import Imported, import_config
from meshwright.planner.targets.readers.commands import value_of

from meshwright.errors import InputError

SWIFT = """\
NPROC_PER_NODE=8 \\
swift sft \\
    --model Qwen/Qwen3-8B --train_type full --torch_dtype bfloat16 \\
    --per_device_train_batch_size 1 --gradient_accumulation_steps ${STEPS:-8} --max_length 2048 \\
    --gradient_checkpointing true --deepspeed zero3 --attn_impl flash_attn --packing
"""
FACTORY = """\
deepspeed --num_gpus 8 src/train_bash.py --deepspeed ds.json \\
    --stage sft --do_train --model_name_or_path Qwen/Qwen2.5-7B --finetuning_type lora --lora_target q_proj,v_proj \\
    --per_device_train_batch_size 4 --gradient_accumulation_steps 2 --cutoff_len 2048 --fp16
"""
TRAINER = """\
#!/bin/bash
MODEL=meta-llama/Llama-3.1-8B
torchrun --nproc_per_node=4 --master_port=25000 train.py \\
    --model_name_or_path $MODEL --output_dir out/$NAME --bf16 True --deepspeed ./config/ds.json \\
    --per_device_train_batch_size $SIZE --gradient_accumulation_steps 4 --model_max_length 2048 \\
    --gradient_checkpointing True
"""
WRITES = """\
#!/bin/bash
FILE=/tmp/run/FILE
cat > $FILE <<EOF
TEXT
EOF
LAUNCHER train.py --model_name_or_path Qwen/Qwen3-0.6B --output_dir out OPTION \\
    --per_device_train_batch_size 2 --bf16 True --model_max_length 2048 --gradient_checkpointing True
"""
STAGE_3 = json.dumps({"zero_optimization": {"stage": 3}, "bf16": {"enabled": "auto"}}, indent=1)
GPU = {"gpu": "h100-sxm-80gb"}


def imported(folder: Path, kind: str, text: str, file: str = "", name: str = "run.sh",
             arguments: tuple[str, ...] = ()) -> Imported:  # fmt: skip
    paths = [folder / name, *([folder / "ds.json"] if file else [])]
    for path, content in zip(paths, (text, file), strict=False):
        path.write_text(content, encoding="utf-8")
    return import_config(kind, paths, GPU, None, arguments)


def test_a_command_of_swift(tmp_path: Path) -> None:
    found = imported(tmp_path, "swift", SWIFT)
    assert (str(found.layout), found.gaps) == ("dp8-mbs1-z3-rfull", ())
    assert (found.request.model, found.request.workload.global_batch) == ("qwen3-8b", 64)
    assert imported(tmp_path, "swift", SWIFT, arguments=("STEPS=2",)).request.workload.global_batch == 16
    given = ("STEPS=2", "per_device_train_batch_size=2")
    assert str(imported(tmp_path, "swift", SWIFT, arguments=given).layout) == "dp8-mbs2-z3-rfull"


def test_a_command_of_llama_factory(tmp_path: Path) -> None:
    found = imported(tmp_path, "llama-factory", FACTORY, STAGE_3.replace("3", "2"))
    assert str(found.layout) == "dp8-mbs4-z2-rfull-fp16"
    assert found.request.workload.train.lora is not None
    (gap,) = imported(tmp_path, "llama-factory", FACTORY).gaps
    assert (gap.field, gap.line) == ("deepspeed", 1)


@pytest.mark.parametrize("launcher", [
    "deepspeed --include localhost:0,1,2,5", "deepspeed --include=a:0,1@b:0,1", "CUDA_VISIBLE_DEVICES=0,1,2,3 python",
    "export CUDA_VISIBLE_DEVICES=0,1,2,3\ndeepspeed",
])  # fmt: skip
def test_devices_that_a_command_names(tmp_path: Path, launcher: str) -> None:
    text = TRAINER.replace("torchrun --nproc_per_node=4 --master_port=25000", launcher)
    assert imported(tmp_path, "hf-trainer", text, STAGE_3, arguments=("SIZE=2",)).layout.dp == 4


def test_unlike_nodes_are_a_gap(tmp_path: Path) -> None:
    text = TRAINER.replace("torchrun --nproc_per_node=4 --master_port=25000", "python")
    text = text.replace("#!/bin/bash", "#PBS -l select=1:ngpus=2+2:ngpus=1")
    (gap,) = imported(tmp_path, "hf-trainer", text, STAGE_3, arguments=("SIZE=2",)).gaps
    assert gap.message == "#PBS asks for nodes of unlike numbers of GPUs"


@pytest.mark.parametrize("word", ["[INST] be brief", "{% for x in y %}", "*x", "[x", "#x", "Answer: x", "@", "a: b: c"])
def test_a_word_that_is_no_yaml_is_text(tmp_path: Path, word: str) -> None:
    found = imported(tmp_path, "swift", SWIFT.replace("--packing", f"--system '{word}' --packing"))
    assert (str(found.layout), found.gaps) == ("dp8-mbs1-z3-rfull", ())


@pytest.mark.parametrize(("text", "value"), [
    ("Answer: x", "Answer: x"), ("#x", "#x"), ("{a: 1}", {"a": 1}), ("[1, 2]", [1, 2]), ("1e-5", 1e-5), ("8", 8),
    ("true", True), ("null", None), ("", ""), ("a b", "a b"), ("2026-01-01", "2026-01-01"), ("- x", "- x"), (" ", " "),
])  # fmt: skip
def test_values_of_words(text: str, value: object) -> None:
    assert value_of(text) == value


def test_a_command_of_a_trainer(tmp_path: Path) -> None:
    (gap,) = imported(tmp_path, "hf-trainer", TRAINER, STAGE_3).gaps
    assert (gap.field, gap.line, gap.message) == ("per_device_train_batch_size", 5, "`${SIZE}` is set when it runs")
    found = imported(tmp_path, "hf-trainer", TRAINER, STAGE_3, arguments=("SIZE=2",))
    assert (str(found.layout), found.request.workload.global_batch) == ("dp4-mbs2-z3-rfull", 32)


def test_the_file_of_accelerate_is_named(tmp_path: Path) -> None:
    launcher = "accelerate launch --config_file fsdp.yaml"
    text = TRAINER.replace("torchrun --nproc_per_node=4 --master_port=25000", launcher)
    text = text.replace(" --deepspeed ./config/ds.json", "")
    (gap,) = imported(tmp_path, "hf-trainer", text, arguments=("SIZE=2",)).gaps
    assert gap.message == "the sharding is in fsdp.yaml: give it as a further FILE"


@pytest.mark.parametrize(("kind", "text", "words"), [
    ("swift", "swift export --model x --to_mcore true\n", "starts no swift sft"),
    ("llama-factory", "cd x\nllamafactory-cli train examples/a.yaml\n", "line 2: its options are in examples/a.yaml"),
    ("swift", "CUDA_VISIBLE_DEVICES=0 swift sft a.yaml\n", "line 1: its options are in a.yaml"),
    ("llama-factory", "llamafactory-cli train --lr 1\ncp a.yaml b\n", "starts no llamafactory-cli train"),
    ("swift", SWIFT + SWIFT.replace("zero3", "zero2"), r"starts 2 jobs .* 1 \(line 1\); 2 \(line 6, deepspeed zero2\)"),
    ("hf-trainer", "python train.py --lr 1\n", "starts no training with --per_device_train_batch_size"),
])  # fmt: skip
def test_scripts_without_one_job(tmp_path: Path, kind: str, text: str, words: str) -> None:
    with pytest.raises(InputError, match=words):
        imported(tmp_path, kind, text)


def test_a_misspelt_argument_of_a_yaml(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="`SIZE=2` states no option that is read"):
        imported(tmp_path, "hf-trainer", "model_name_or_path: Qwen/Qwen3-8B\n", name="a.yaml", arguments=("SIZE=2",))


def test_a_block_of_fsdp_without_its_switch(tmp_path: Path) -> None:
    """transformers 5.24, training_args.py, _process_fsdp_args: the block is read only where `fsdp` is on."""
    text = ("model_name_or_path: Qwen/Qwen3-8B\nper_device_train_batch_size: 1\ngradient_checkpointing: true\n"
            "bf16: true\nmax_length: 1024\nfsdp_config:\n  reshard_after_forward: true\n")  # fmt: skip
    path = tmp_path / "recipe.yaml"
    for added, layout in (("", "dp8-mbs1-z0-rfull"), ("fsdp: full_shard\n", "dp8-mbs1-z3-rfull")):
        path.write_text(text + added, encoding="utf-8")
        found = import_config("hf-trainer", [path], {"cluster": "dgx-h100:1"})
        note = "fsdp_config (line 7) is without fsdp: transformers does not read it"
        assert (str(found.layout), note in found.assumed) == (layout, not added)


@pytest.mark.parametrize(("name", "text", "launcher", "option", "layout"), [
    ("ds.json", STAGE_3, "torchrun --nproc_per_node=4", "--deepspeed $FILE", "dp4-mbs2-z3-rfull"),
    ("fsdp.yaml", "distributed_type: FSDP\nnum_processes: $COUNT\nfsdp_config: {fsdp_sharding_strategy: SHARD_GRAD_OP}",
     "accelerate launch --config_file $FILE --num_processes 4", "", "dp4-mbs2-z2-rfull"),
])  # fmt: skip
def test_a_file_that_the_script_writes(
    tmp_path: Path, name: str, text: str, launcher: str, option: str, layout: str
) -> None:
    script = WRITES.replace("LAUNCHER", launcher).replace("OPTION", option).replace("TEXT", text)
    found = imported(tmp_path, "hf-trainer", script.replace("run/FILE", f"run/{name}"))
    assert (found.gaps, str(found.layout)) == ((), layout)


@pytest.mark.parametrize(("name", "text", "option"), [
    ("ds.json", '{"zero_optimization": {\n"stage": $STAGE\n}}', "--deepspeed $FILE"),
    ("fsdp.yaml", "distributed_type: FSDP\nfsdp_config:\n  fsdp_sharding_strategy: $KIND\n", ""),
])  # fmt: skip
def test_a_written_file_that_a_run_decides_on_is_a_gap(tmp_path: Path, name: str, text: str, option: str) -> None:
    launcher = f"accelerate launch {'' if option else '--config_file $FILE '}--num_processes 4"
    script = WRITES.replace("LAUNCHER", launcher).replace("OPTION", option).replace("TEXT", text)
    found = imported(tmp_path, "hf-trainer", script.replace("run/FILE", f"run/{name}"))
    assert any("give it as a further FILE" in gap.message for gap in found.gaps)
