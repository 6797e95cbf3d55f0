"""Options of DeepSpeed's JSON, accelerate's YAML and torchtitan's TOML: a gap, a sentence, or nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from meshwright.planner.importing import Imported, import_config

from meshwright.errors import InputError

from .test_readers import AXOLOTL, FACTORY, RECIPE, imported

GIVEN = {"cluster": "dgx-h100:1", "model": "llama-3.1-8b", "seq_len": 2048}


def of_json(folder: Path, zero: dict[str, Any] | None = None, /, **options: Any) -> Imported:
    path = folder / "ds.json"
    blocks = {"bf16": {"enabled": True}, "train_micro_batch_size_per_gpu": 1, **options}
    path.write_text(json.dumps({**blocks, "zero_optimization": {"stage": 2, **(zero or {})}}), encoding="utf-8")
    return import_config("deepspeed", [path], GIVEN)


@pytest.mark.parametrize("name", ["Lion", "Adagrad", "ZeroOneAdam", "OneBitLamb"])
def test_an_optimizer_with_other_states_is_a_gap(tmp_path: Path, name: str) -> None:
    (gap,) = of_json(tmp_path, optimizer={"type": name}).gaps
    assert gap.field == "optimizer.type"
    assert "states or messages have another size"


@pytest.mark.parametrize(("name", "known"), [("FusedAdam", "adamw"), ("SGD", "sgd"), ("Lamb", "adamw")])
def test_names_of_optimizers(tmp_path: Path, name: str, known: str) -> None:
    assert of_json(tmp_path, optimizer={"type": name}).request.workload.optimizer == known


def test_a_stage_that_another_file_states_is_a_gap(tmp_path: Path) -> None:
    (gap,) = of_json(tmp_path, {"stage": "auto"}).gaps
    assert (gap.field, gap.message) == ("zero_optimization.stage", "is `auto`: the trainer fills it in")


@pytest.mark.parametrize(
    ("zero", "options", "words"),
    [({"reduce_scatter": False}, {}, "every rank gets all gradients"),
     ({"allgather_partitions": False}, {}, "weights are broadcast"),
     ({}, {"activation_checkpointing": {"cpu_checkpointing": True}}, "models that call deepspeed.checkpointing"),
     ({}, {"compile": {"deepcompile": True}}, "another program of the layers"),
     ({}, {"curriculum_learning": {"enabled": True}}, "begins with shorter sequences"),
     ({}, {"eigenvalue": {"enabled": True}}, "runs passes beside"), ({}, {"autotuning": {"enabled": True}}, "tries")],
)  # fmt: skip
def test_switches_without_a_price_are_named(tmp_path: Path, zero: dict[str, Any], options: dict[str, Any],
                                            words: str) -> None:  # fmt: skip
    found = of_json(tmp_path, zero, **options)
    assert not found.gaps
    assert any(words in note for note in found.assumed)


@pytest.mark.parametrize(
    ("zero", "options"),
    [({"mics_hierarchical_params_gather": False}, {}), ({"offload_param": {"device": "none", "fast_init": True}}, {}),
     ({"offload_optimizer": {"device": "cpu", "buffer_size": 1, "max_in_cpu": 1}}, {}),
     ({}, {"amp": {"enabled": "auto", "opt_level": "auto"}}), ({}, {"fp32_allreduce": True}),
     ({}, {"pipeline": {"stages": "auto", "partition": "best", "pipe_partitioned": True}}),
     ({"stage": 3, "reduce_scatter": False}, {}), ({}, {"max_grad_norm": 1.0}),
     ({}, {"activation_checkpointing": {"partition_activations": True}})],
)  # fmt: skip
def test_options_without_effect_leave_nothing_open(tmp_path: Path, zero: dict[str, Any],
                                                   options: dict[str, Any]) -> None:  # fmt: skip
    found = of_json(tmp_path, zero, **options)
    assert not found.gaps
    assert not any("priced as" in note for note in found.assumed)


@pytest.mark.parametrize(
    ("text", "words"),
    [("distributed_type: FSDP\nfsdp_config: {fsdp_version: 2, fsdp_activation_checkpointing_offload: true}",
      "saved activations on the host"),
     ("distributed_type: MULTI_CPU", "trains on CPUs"), ("distributed_type: TPU", "trains on TPUs"),
     ("mixed_precision: fp8\nfp8_config: {backend: MSAMP, optimization_level: O2}", "states in fp8"),
     ("mixed_precision: fp8\nfp8_config: {backend: TE, opt_level: O2}", ""),
     ("distributed_type: 'NO'\nuse_cpu: true", "trains on CPUs"), ("distributed_type: FSDP\nuse_cpu: true", ""),
     ("distributed_type: MULTI_GPU\nmax_restarts: 1\nimage_uri: x", "")],
)  # fmt: skip
def test_options_of_accelerate(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "accelerate.yaml"
    path.write_text(f"num_processes: 8\n{text}\n", encoding="utf-8")
    found = import_config("accelerate", [path], GIVEN)
    assert [words in gap.message for gap in found.gaps] == [True] * bool(words)


TITAN = """\
[model]
name = "llama3"
flavor = "{flavor}"
[training]
local_batch_size = 1
seq_len = 8192
dataloader.num_workers = 4
debug_moe_force_load_balance = true
[parallelism]
pipeline_parallel_degree = {pp}
pipeline_parallel_schedule = "1f1b"
{sections}
"""
AC = "[activation_checkpoint]\n"


@pytest.mark.parametrize(
    ("sections", "pp", "layout"),
    [("", 1, "rfull16"), (AC, 1, "rfull16"), (f'{AC}mode = "selective"', 2, "rfull8"),
     (f'{AC}mode = "selective"\nselective_ac_option = 3', 1, "rfull10"),
     (f'{AC}selective_ac_option = "1"', 1, "rfull"), (f'{AC}selective_ac_option = "op"', 1, "rsel(norm+act)"),
     (f'{AC}mode = "none"\nselective_ac_option = "2"', 1, "rnone")],
)  # fmt: skip
@pytest.mark.parametrize("flavor", ["8B", "mine"])
def test_whole_layers_that_torchtitan_recomputes(tmp_path: Path, sections: str, pp: int, layout: str,
                                                 flavor: str) -> None:  # fmt: skip
    """The TOML of all releases recomputes every second layer unless told otherwise: 16 of 32, 8 of a stage's 16."""
    path = tmp_path / "job.toml"
    path.write_text(TITAN.format(flavor=flavor, pp=pp, sections=sections), encoding="utf-8")
    named = {"model": "llama-3.1-8b"} if flavor == "mine" else {}
    found = import_config("torchtitan", [path], {"cluster": "dgx-h100:1"} | named)
    assert not found.gaps
    assert str(found.layout).endswith(f"-{layout}")
    assert found.layout.pp == pp


def test_copies_that_exchange_few_gradients_are_a_gap(tmp_path: Path) -> None:
    path = tmp_path / "job.toml"
    text = TITAN.format(flavor="8B", pp=1, sections="[fault_tolerance]\nenable = {}\nsemi_sync_method = 'diloco'")
    path.write_text(text.format("true"), encoding="utf-8")
    (gap,) = import_config("torchtitan", [path], {"cluster": "dgx-h100:1"}).gaps
    assert (gap.field, gap.line) == ("fault_tolerance.semi_sync_method", 14)
    path.write_text(text.format("false"), encoding="utf-8")
    assert not import_config("torchtitan", [path], {"cluster": "dgx-h100:1"}).gaps


def test_names_of_other_releases_of_transformers(tmp_path: Path) -> None:
    """per_gpu_train_batch_size counts first; activation_checkpointing is gradient_checkpointing."""
    found = imported(tmp_path, "hf-trainer", f"{RECIPE}per_gpu_train_batch_size: 3\n")
    assert found.layout.micro_batch == 3
    text = "\n".join(line for line in RECIPE.splitlines() if "gradient_checkpointing" not in line)
    for line, mode in (("", "rnone"), ("activation_checkpointing: true", "rfull")):
        assert mode in str(imported(tmp_path, "hf-trainer", f"{text}\n{line}\n").layout)


def test_jobs_that_differ_in_rates_alone_are_one(tmp_path: Path) -> None:
    path, recipe = tmp_path / "run.sh", tmp_path / "recipe.yaml"
    recipe.write_text(RECIPE + "use_flash_attention_2: true\n", encoding="utf-8")
    text = ("for x in 1e-5 2e-5; do\n  deepspeed --num_gpus 8 train.py recipe.yaml --learning_rate=$x "
            "--output_dir=out/$x --num_train_epochs=3 {}\ndone\n")  # fmt: skip
    path.write_text(text.format(""), encoding="utf-8")
    found = import_config("hf-trainer", [path, recipe], {"gpu": "h100-sxm-80gb"})
    assert not found.gaps
    assert found.layout.dp == 8
    path.write_text(text.format("--max_length=${x%e*}024"), encoding="utf-8")
    with pytest.raises(InputError, match="starts 2 jobs with different options"):
        import_config("hf-trainer", [path, recipe], {"gpu": "h100-sxm-80gb"})


def test_a_value_of_the_run_beside_rewards_leaves_nothing_open(tmp_path: Path) -> None:
    path = tmp_path / "grpo.sh"
    path.write_text("accelerate launch --num_processes 8 src/grpo.py --model_name_or_path Qwen/Qwen3-1.7B --bf16 "
                    "--per_device_train_batch_size 8 --max_prompt_length 512 --max_completion_length 1024 "
                    "--num_generations 8 --vllm_server_host $(hostname) --output_dir out\n", "utf-8")  # fmt: skip
    assert not import_config("hf-trainer", [path], {"gpu": "h100-sxm-80gb"}).gaps


@pytest.mark.parametrize("name", ["mixed_precision", "my_stages"])
def test_keys_that_deepspeed_does_not_ask_for(tmp_path: Path, name: str) -> None:
    found = of_json(tmp_path, None, **{name: 3})
    assert not found.gaps
    assert f"{name}: DeepSpeed has no such option and passes over it" in found.assumed


def test_keys_near_to_those_of_deepspeed_are_gaps(tmp_path: Path) -> None:
    assert [gap.field for gap in of_json(tmp_path, train_micro_batch_size_per_gpus=3).gaps] == [
        "train_micro_batch_size_per_gpus"]  # fmt: skip
    assert [gap.field for gap in of_json(tmp_path, progressive_layer_drop={"enabled": True}).gaps] == [
        "progressive_layer_drop"]  # fmt: skip


def test_keys_that_axolotl_does_not_ask_for(tmp_path: Path) -> None:
    found = imported(tmp_path, "axolotl", f"{AXOLOTL}train_batch_size: 1\n")
    assert not found.gaps
    assert "train_batch_size: Axolotl has no such option and passes over it" in found.assumed
    for line in ("micro_batch_sizes: 2", "plugins: [x.y]\nkd_layers: 2"):
        assert imported(tmp_path, "axolotl", f"{AXOLOTL}{line}\n").gaps
    assert not imported(tmp_path, "axolotl", f"{AXOLOTL}model_config: {{rope_theta: 1e6}}\n").gaps
    assert imported(tmp_path, "axolotl", f"{AXOLOTL}model_config: {{num_hidden_layers: 2}}\n").gaps


MEDICAL = ("torchrun --nproc_per_node {ranks} supervised_finetuning.py --model_name_or_path Qwen/Qwen2.5-0.5B --bf16 "
           "--per_device_train_batch_size 4 --model_max_length 4096 --use_peft True --target_modules all --lora_rank 8 "
           "--device_map auto --flash_attn True --output_dir out\n")  # fmt: skip
QWEN = ("torchrun --nproc_per_node 8 finetune.py --model_name_or_path Qwen/Qwen1.5-7B --bf16 True --output_dir out "
        "--per_device_train_batch_size 2 {length} --use_lora --q_lora --lora_r 64 "
        "--lora_target_modules q_proj v_proj\n")  # fmt: skip


def of_script(folder: Path, text: str) -> Imported:
    path = folder / "run.sh"
    path.write_text(text, encoding="utf-8")
    return import_config("hf-trainer", [path], {"gpu": "h100-sxm-80gb"})


def test_names_of_peoples_own_programs(tmp_path: Path) -> None:
    medical = of_script(tmp_path, MEDICAL.format(ranks=2))
    assert not medical.gaps
    assert medical.request.workload.train.lora is not None
    assert (medical.request.workload.train.lora.rank, len(medical.request.workload.train.lora.targets)) == (8, 7)
    assert [gap.field for gap in of_script(tmp_path, MEDICAL.format(ranks=1)).gaps] == ["device_map"]
    for length in ("--block_size 1024", "--max_source_length 768 --max_target_length 256"):
        qwen = of_script(tmp_path, QWEN.format(length=length))
        assert not qwen.gaps
        lora = qwen.request.workload.train.lora
        assert lora is not None
        assert (lora.rank, lora.base_dtype, qwen.request.workload.seq_len) == (64, "nf4", 1024)


def test_a_rank_without_a_switch_is_a_gap_where_trl_does_not_run(tmp_path: Path) -> None:
    text = QWEN.format(length="--max_length 1024").replace("--use_lora --q_lora ", "")
    assert [gap.field for gap in of_script(tmp_path, text).gaps] == ["lora_r"]
    trl = of_script(tmp_path, text.replace("finetune.py", "sft.py"))
    assert not trl.gaps
    assert "lora_r is without use_peft: TRL trains all weights" in trl.assumed


def test_recomputation_is_not_in_the_json(tmp_path: Path) -> None:
    note = "recomputation is not in DeepSpeed's JSON: none is taken"
    assert note in of_json(tmp_path).assumed
    assert note not in of_json(tmp_path, pipeline={"activation_checkpoint_interval": 1}).assumed


def test_zero_as_a_switch_is_stage_1(tmp_path: Path) -> None:
    path = tmp_path / "ds.json"
    path.write_text('{"train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": true}, "zero_optimization": true}',
                    encoding="utf-8")  # fmt: skip
    assert import_config("deepspeed", [path], GIVEN).layout.zero == 1


def test_a_batch_alone_is_divided_by_the_ranks(tmp_path: Path) -> None:
    """DeepSpeedConfig takes one accumulation step; the trainer fills in a micro-batch that is `auto`."""
    path = tmp_path / "ds.json"
    for more, micro in (("", 50), (', "train_micro_batch_size_per_gpu": "auto"', 1)):
        path.write_text(f'{{"train_batch_size": 400{more}, "optimizer": {{"type": "Adam"}}}}', encoding="utf-8")
        found = import_config("deepspeed", [path], GIVEN)
        assert (found.layout.micro_batch, found.request.workload.global_batch) == (micro, 400)


@pytest.mark.parametrize(("stages", "dp", "kind", "zero"), [(2, 4, "bf16", 1), (2, 1, "bf16", 0), (1, 8, "bf16", 0),
                                                            (2, 4, "fp16", 0)])  # fmt: skip
def test_states_of_a_pipeline_in_bf16(tmp_path: Path, stages: int, dp: int, kind: str, zero: int) -> None:
    first, second = tmp_path / "ds_config.json", tmp_path / "ds_plan.py"
    first.write_text(json.dumps({kind: {"enabled": True}, "train_micro_batch_size_per_gpu": 1,
                                 "gradient_accumulation_steps": 8, "zero_optimization": {"stage": 0}}), "utf-8")
    second.write_text(f"PIPELINE_STAGES = {stages}\nTENSOR_PARALLEL = 1\nDATA_PARALLEL = {dp}\nRECOMPUTE = False\n",
                      encoding="utf-8")  # fmt: skip
    gpus = {"gpu": "h100-sxm-80gb", "gpus": stages * dp, "model": "llama-3.1-8b", "seq_len": 2048}
    assert import_config("deepspeed", [first, second], gpus).layout.zero == zero


def test_keys_of_deepspeeds_json_in_the_yaml_of_accelerate(tmp_path: Path) -> None:
    path = tmp_path / "accelerate.yaml"
    path.write_text("distributed_type: DEEPSPEED\nnum_processes: 8\ndeepspeed_config:\n  zero_optimization:\n"
                    "    stage: 3\n  bf16:\n    enabled: true\n", encoding="utf-8")  # fmt: skip
    found = import_config("accelerate", [path], GIVEN)
    assert not found.gaps
    assert found.layout.zero == 2  # accelerate's default
    assert any("accelerate passes over them" in note for note in found.assumed)


def test_tensor_parallelism_of_earlier_releases_of_accelerate(tmp_path: Path) -> None:
    path = tmp_path / "accelerate.yaml"
    path.write_text("distributed_type: TP\nnum_processes: 8\nmixed_precision: bf16\n"
                    "tp_config:\n  tp_size: 4\n", encoding="utf-8")  # fmt: skip
    found = import_config("accelerate", [path], GIVEN)
    assert not found.gaps
    assert (found.layout.tp, found.layout.dp, found.layout.zero) == (4, 2, 0)


def test_lengths_of_generation_and_folders_of_windows(tmp_path: Path) -> None:
    text = FACTORY.replace(next(line for line in FACTORY.splitlines() if line.startswith("model_name")),
                           "model_name_or_path: D:\\Models\\Qwen3-4B") + "max_length: 512\ntop_p: 0.7\n"
    found = imported(tmp_path, "llama-factory", text)
    assert not found.gaps
    assert found.request.model == "qwen3-4b"


def test_files_that_hold_no_config_are_refused(tmp_path: Path) -> None:
    toml, script = tmp_path / "data.toml", tmp_path / "run.sh"
    toml.write_text('text_field = "text"\nseed = 42\n[[sources]]\nname = "prose"\n', encoding="utf-8")
    with pytest.raises(InputError, match="no option of torchtitan"):
        import_config("torchtitan", [toml], GIVEN)
    script.write_text("export MICRO=2\nbash train/step.sh\n", encoding="utf-8")
    for kind in ("verl", "hf-trainer"):
        with pytest.raises(InputError, match=r"line 2: starts train/step\.sh and no "):
            import_config(kind, [script], GIVEN)
