"""Facts that files leave open, or state by another file: taken as the framework has them, and said so."""

from __future__ import annotations

from pathlib import Path

import pytest
from meshwright.cost_models.layouts import encode
from meshwright.planner.importing import Imported, import_config
from meshwright.planner.targets.readers.shipped import options_of

from meshwright.errors import InputError

SEES = """\
model_name_or_path: Qwen/Qwen2.5-VL-3B-Instruct
image_max_pixels: 262144
video_max_pixels: 16384
stage: sft
finetuning_type: full
freeze_multi_modal_projector: true
cutoff_len: 4096
per_device_train_batch_size: 1
bf16: true
"""
AXOLOTL = """\
base_model: NousResearch/Meta-Llama-3-8B
sequence_len: 4096
sample_packing: true
micro_batch_size: 2
bf16: true
"""
PLUGIN = "compute_environment: LOCAL_MACHINE\ndistributed_type: DEEPSPEED\nnum_processes: 16\nmixed_precision: bf16\n"
STAGE = "deepspeed_config: {zero_stage: 3, gradient_accumulation_steps: 8}\n"


def imported(folder: Path, kind: str, text: str, **given: object) -> Imported:
    path = folder / ("ds.json" if kind == "deepspeed" else "file.yaml")
    path.write_text(text, encoding="utf-8")
    return import_config(kind, [path], {"cluster": "dgx-h100:2", **given})


@pytest.mark.parametrize(("name", "layout"), [
    ("deepspeed_configs/zero1.json", "dp16-mbs2-z1-rnone"),
    ("/root/axolotl/deepspeed_configs/zero2.json", "dp16-mbs2-z2-rnone-oopt"),
    ("deepspeed_configs/zero3_bf16.json", "dp16-mbs2-z3-rnone"),
])  # fmt: skip
def test_files_that_axolotl_ships(tmp_path: Path, name: str, layout: str) -> None:
    found = imported(tmp_path, "axolotl", AXOLOTL + f"deepspeed: {name}\n")
    assert (str(found.layout), found.gaps) == (layout, ())
    assert f"{name} is taken as Axolotl 067b021c ships it: another one is given as a further FILE" in found.assumed
    own = imported(tmp_path, "axolotl", AXOLOTL + f"deepspeed: {name.replace('zero', 'own')}\n")
    assert [gap.field for gap in own.gaps] == ["deepspeed"]


@pytest.mark.parametrize("path", ["zero3.json", "deepspeed_configs/zero4.json", "my_deepspeed_configs/zero3.json", ""])
def test_files_that_nobody_ships(path: str) -> None:
    assert options_of(path) is None


def test_accumulation_without_a_size_sets_the_batch(tmp_path: Path) -> None:
    found = imported(tmp_path, "accelerate", PLUGIN + STAGE, model="llama-3.1-8b")
    assert (found.layout.micro_batch, found.request.workload.global_batch) == (1, 8 * 16)
    assert "the micro-batch is not in the config: 1 sequence is taken" in found.assumed
    assert not any("--global-batch" in note for note in found.assumed)
    text = '{"zero_optimization": {"stage": 2}, "gradient_accumulation_steps": 4, "bf16": {"enabled": true}}'
    assert imported(tmp_path, "deepspeed", text, model="llama-3.1-8b").request.workload.global_batch == 4 * 16
    with pytest.raises(InputError, match="`0` is not 1 or more"):
        imported(tmp_path, "accelerate", PLUGIN + STAGE.replace("8", "0"), model="llama-3.1-8b")


@pytest.mark.parametrize(("blocks", "precision"), [
    ('"bfloat16": {"enabled": true}, "fp16": {"enabled": "auto"}', "bf16"),
    ('"bfloat16": {"enabled": "auto"}', "bf16"),
    ('"bfloat16": {"enabled": true}, "bf16": {"enabled": false}, "fp16": {"enabled": true}', "fp16"),
])  # fmt: skip
def test_the_older_name_of_bf16(tmp_path: Path, blocks: str, precision: str) -> None:
    found = imported(tmp_path, "deepspeed", f'{{"zero_optimization": {{"stage": 2}}, {blocks}}}', model="llama-3.1-8b")
    assert not found.gaps
    assert found.layout.as_dict()["precision"] == precision


def test_images_of_the_data(tmp_path: Path) -> None:
    assert not imported(tmp_path, "llama-factory", SEES).request.workload.freeze_tower
    seen = imported(tmp_path, "llama-factory", SEES, images="2@448x448").request.workload
    assert seen.images is not None
    assert (seen.images.per_sequence, seen.freeze_tower, seen.freeze_language) == (2, True, False)
    trained = imported(tmp_path, "llama-factory", SEES + "freeze_vision_tower: false\n", images="1@448x448").request
    assert not trained.workload.freeze_tower
    with pytest.raises(InputError, match="the request has no images"):
        imported(tmp_path, "llama-factory", SEES + "freeze_language_model: true\n")


def test_the_hint_of_a_value_names_the_one_that_is_meant() -> None:
    with pytest.raises(InputError) as refused:
        encode("offload", "optimizer")
    assert refused.value.hint == "write `offload=opt`"


def test_processes_that_machines_do_not_divide(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"16 counts .* is no multiple of num_machines 6"):
        imported(tmp_path, "accelerate", PLUGIN + STAGE + "num_machines: 6\n", model="llama-3.1-8b")


def test_models_of_images_that_a_program_adds_are_named(tmp_path: Path) -> None:
    (tmp_path / "train.sh").write_text(
        "torchrun train.py --model_name_or_path lmsys/vicuna-7b-v1.5 --vision_tower openai/clip --lazy_preprocess True "
        "--mm_projector_type mlp2x_gelu --image_aspect_ratio pad --per_device_train_batch_size 2 --bf16 True "
        "--model_max_length 2048\n", encoding="utf-8")  # fmt: skip
    found = import_config("hf-trainer", [tmp_path / "train.sh"], {"cluster": "dgx-h100:1"})
    assert [gap.field for gap in found.gaps] == ["vision_tower", "mm_projector_type"]
    assert all("adds a model of images" in gap.message for gap in found.gaps)


def test_one_type_is_automatic_where_the_other_is_off(tmp_path: Path) -> None:
    text = '{"zero_optimization": {"stage": 2}, "bf16": {"enabled": "auto"}, "fp16": {"enabled": false}}'
    found = imported(tmp_path, "deepspeed", text, model="llama-3.1-8b")
    assert found.layout.as_dict()["precision"] == "bf16"
    assert any("the precision is `auto`" in note for note in found.assumed)
    both = imported(tmp_path, "deepspeed", text.replace('"auto"', "false"), model="llama-3.1-8b")
    assert both.layout.as_dict()["precision"] == "fp32"


def test_keys_that_accelerate_gives_to_no_one(tmp_path: Path) -> None:
    text = PLUGIN + STAGE.replace("zero_stage", "overlap_comm: true, contiguous_gradients: true, zero_stage")
    assert not imported(tmp_path, "accelerate", text, model="llama-3.1-8b").gaps


@pytest.mark.parametrize("count", [
    "$(echo $CUDA_VISIBLE_DEVICES | tr ',' '\\n' | wc -l)", "$(echo $CUDA_VISIBLE_DEVICES | awk -F',' '{print NF}')",
])  # fmt: skip
def test_blocks_of_forks_and_counted_devices(tmp_path: Path, count: str) -> None:
    (tmp_path / "train.sh").write_text(f"""\
export CUDA_VISIBLE_DEVICES=0,1,2,3
export N={count}
python3 -m search.main_ppo data.max_prompt_length=1024 data.max_response_length=1024 \\
    actor_rollout_ref.model.path=Qwen/Qwen2.5-3B actor_rollout_ref.actor.ppo_mini_batch_size=64 \\
    actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=2 trainer.n_gpus_per_node=$N max_turns=3 retriever.topk=3
""", encoding="utf-8")
    found = import_config("verl", [tmp_path / "train.sh"], {"gpu": "h100-sxm-80gb"})
    assert (str(found.layout), found.gaps) == ("dp4-mbs2-z3-rfull", ())
    assert any(note.startswith("max_turns, retriever: of a program other than verl's") for note in found.assumed)
