"""ms-swift on Megatron-Core: `megatron sft` and `megatron pt`. Defaults are those of its megatron_args.py."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml as YAML
from meshwright.planner.importing import import_config

from meshwright.errors import InputError

from .test_training_commands import imported

SCRIPT = """\
NPROC_PER_NODE=8 \\
megatron sft \\
    --model Qwen/Qwen3-8B --max_length 4096 --packing true \\
    --tensor_model_parallel_size 2 --sequence_parallel true
"""
EXPERTS = SCRIPT.replace("Qwen3-8B", "Qwen3-30B-A3B").replace("sft", "pt")
FULL = "--recompute_granularity full --recompute_method uniform --recompute_num_layers 1"
KIND = "megatron-swift"


def test_what_a_command_leaves_to_its_defaults(tmp_path: Path) -> None:
    found = imported(tmp_path, KIND, SCRIPT)
    assert (str(found.layout), found.gaps, found.assumed) == ("tp2-dp4-mbs1-z1-rsel", (), ())
    workload = found.request.workload
    assert (found.request.model, workload.global_batch, workload.seq_len) == ("qwen3-8b", 16, 4096)
    assert (found.settings["cross_entropy"], workload.precision) == ("fused", "bf16")


@pytest.mark.parametrize(("text", "layout"), [
    (SCRIPT.rstrip() + f" {FULL} --micro_batch_size 4\n", "tp2-dp4-mbs4-z1-rfull"),
    (SCRIPT.rstrip() + " --recompute_granularity none --use_distributed_optimizer false\n", "tp2-dp4-mbs1-z0-rnone"),
    (SCRIPT.rstrip() + " --fp8_format hybrid --fp8_recipe blockwise", "tp2-dp4-mbs1-z1-rsel-fp8"),
    (SCRIPT.rstrip() + " --optimizer muon --torch_dtype float16\n", "tp2-dp4-mbs1-z0-rsel-fp16"),
    (SCRIPT.rstrip() + " --pipeline_model_parallel_size 4 --virtual_pipeline_model_parallel_size 3 "
     "--context_parallel_size 1\n", "tp2-pp4-vpp3-dp1-mbs1-z1-rsel"),
    (SCRIPT.rstrip() + " --context_parallel_size 2 --cp_comm_type a2a\n", "tp2-cp2u-dp2-mbs1-z1-rsel"),
    (SCRIPT.rstrip() + " --optimizer_cpu_offload true --recompute_modules core_attn mlp\n",
     "tp2-dp4-mbs1-z1-rsel(attn+mlp)-oopt"),
    (EXPERTS.rstrip() + " --expert_model_parallel_size 4\n", "tp2-dp4-ep4-mbs1-z1-rsel"),
    (EXPERTS.rstrip() + " --expert_model_parallel_size 2 --expert_tensor_parallel_size 2\n",
     "tp2-dp4-ep2-etp2-mbs1-z1-rsel"),
])  # fmt: skip
def test_layouts(tmp_path: Path, text: str, layout: str) -> None:
    found = imported(tmp_path, KIND, text)
    assert (str(found.layout), found.gaps) == (layout, ())


def test_adapters_of_all_linear_modules(tmp_path: Path) -> None:
    found = imported(tmp_path, KIND, SCRIPT.rstrip() + " --tuner_type lora --lora_rank 16\n")
    lora = found.request.workload.train.lora
    assert lora is not None
    assert (lora.rank, set(lora.targets)) == (16, {"q", "k", "v", "o", "gate", "up", "down"})
    (gap,) = imported(tmp_path, KIND, EXPERTS.rstrip() + " --tuner_type lora\n").gaps
    assert (gap.field, "adapters of routed experts" in gap.message) == ("target_modules", True)
    named = imported(tmp_path, KIND, EXPERTS.rstrip() + " --tuner_type lora --target_modules linear_qkv linear_proj\n")
    assert named.request.workload.train.lora is not None


@pytest.mark.parametrize(("added", "field"), [
    ("--rlhf_type kto", "rlhf_type"), ("--freeze_vit false", "freeze_vit"), ("--mtp_num_layers 1", "mtp_num_layers"),
    ("--tuner_type adalora", "tuner_type"), ("--recompute_modules x", "recompute_modules"),
    ("--task_type seq_cls", "task_type"), ("--main_grads_dtype bf16", "main_grads_dtype"),
    ("--sharding_of_my_own 2", "sharding_of_my_own"), ("--micro_batch_size $SIZE", "micro_batch_size"),
])  # fmt: skip
def test_gaps(tmp_path: Path, added: str, field: str) -> None:
    (gap,) = imported(tmp_path, KIND, f"{SCRIPT.rstrip()} {added}\n").gaps
    assert (gap.field, gap.line) == (field, 4)


def test_a_length_that_only_the_data_decides(tmp_path: Path) -> None:
    text = SCRIPT.replace("--max_length 4096 ", "")
    (gap,) = imported(tmp_path, KIND, text).gaps
    assert gap.field == "max_length"
    assert imported(tmp_path, KIND, text, arguments=("max_length=2048",)).request.workload.seq_len == 2048
    assert imported(tmp_path, KIND, text.rstrip() + " --packing_length 1024").request.workload.seq_len == 1024


def test_the_model_of_a_folder_of_weights(tmp_path: Path) -> None:
    found = imported(tmp_path, KIND, SCRIPT.replace("--model Qwen/Qwen3-8B", "--load /ckpt/Qwen3-8B-mcore"))
    assert (found.request.model, str(found.layout)) == ("qwen3-8b", "tp2-dp4-mbs1-z1-rsel")
    assert "the model is taken from load: `--model` names another" in found.assumed


def test_other_formats_name_this_one(tmp_path: Path) -> None:
    for kind in ("megatron-args", "swift"):
        with pytest.raises(InputError) as error:
            imported(tmp_path, kind, SCRIPT)
        assert "`import megatron-swift`" in str(error.value.problems[0].hint)


def test_options_in_yaml_and_in_what_a_run_leaves(tmp_path: Path) -> None:
    yaml = "model: Qwen/Qwen3-8B\nmax_length: 2048\ntuner_type: full\npacking: true\ntensor_model_parallel_size: 2\n"
    for name, text in (("a.yaml", yaml), ("args.json", json.dumps(YAML.safe_load(yaml), indent=2))):
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        found = import_config(KIND, [path], {"gpu": "h100-sxm-80gb", "gpus": 4})
        assert (str(found.layout), found.gaps) == ("tp2-nosp-dp2-mbs1-z1-rsel", ())


@pytest.mark.parametrize(("added", "text"), [
    ("--recompute_granularity all", "recompute_granularity: `all` is none of selective, full, none"),
    ("--pipeline_model_parallel_size 5", "36 layers do not split over pp 5"),
    ("--tensor_model_parallel_size 3", "tp 3 x cp 1 x pp 1 = 3 does not divide the 8 GPUs"),
    ("--fp16 true --bf16 true", "fp16: and bf16 are both on"),
    ("--context_parallel_size 0", "context_parallel_size: `0` is not 1 or more"),
])  # fmt: skip
def test_values_that_are_refused(tmp_path: Path, added: str, text: str) -> None:
    with pytest.raises(InputError) as error:
        imported(tmp_path, KIND, f"{SCRIPT.rstrip()} {added}\n")
    assert text in str(error.value)


RLHF = SCRIPT.replace("megatron sft", "megatron rlhf").rstrip()


@pytest.mark.parametrize("added", ["", " --rlhf_type dpo --loss_type ipo --rpo_alpha 0.1 --mcore_ref_model x-mcore"])
def test_pairs_with_a_reference(tmp_path: Path, added: str) -> None:
    """`megatron rlhf` learns by DPO where no type is given; a batch counts pairs (dpo_trainer.py)."""
    found = imported(tmp_path, KIND, f"{RLHF} --micro_batch_size 2{added}\n")
    assert (str(found.layout), found.gaps) == ("tp2-dp4-mbs4-z1-rsel", ())
    assert (found.request.workload.global_batch, found.request.workload.reference) == (32, True)
    found.price()


def test_a_reward_model(tmp_path: Path) -> None:
    found = imported(tmp_path, KIND, f"{RLHF} --rlhf_type rm\n")
    assert (found.gaps, found.request.workload.reference, str(found.layout)) == ((), False, "tp2-dp4-mbs2-z1-rsel")


def test_answers_that_an_engine_elsewhere_gives(tmp_path: Path) -> None:
    """GRPO counts answers; their prompts and they have a length each (grpo_trainer.py)."""
    added = " --rlhf_type grpo --reward_funcs mine --external_plugins p.py --use_vllm true --num_generations 8"
    found = imported(tmp_path, KIND, f"{RLHF}{added} --vllm_mode server --max_completion_length 1024\n")
    assert (str(found.layout), found.gaps) == ("tp2-dp4-mbs1-z1-rsel", ())
    assert (found.request.workload.seq_len, found.request.workload.global_batch) == (4096 + 1024, 16)
    assert imported(tmp_path, KIND, f"{RLHF}{added} --vllm_mode server\n").request.workload.seq_len == 4096 + 512
    (gap,) = imported(tmp_path, KIND, f"{RLHF}{added} --vllm_mode colocate\n").gaps
    assert gap.field == "vllm_mode"
    (gap,) = imported(tmp_path, KIND, f"{SCRIPT.rstrip()} --external_plugins p.py\n").gaps
    assert gap.field == "external_plugins"
