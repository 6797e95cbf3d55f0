"""`check` finds options that no plan writes and that change model, layout, batch, price or memory: those in the lists
of releases that were missed once, added one by one to emitted files."""

from __future__ import annotations

import re

import pytest
from meshwright.planner.targets.check import check_files

from .emit_plans import config_of
from .test_differences import emitted

# Target -> model, layout, the line behind which options are added ("": at the end), the options.
ADDED: dict[str, tuple[str, str, str, str]] = {
    "axolotl": ("llama-3.1-8b", "dp16-mbs1-z3-rfull", "", """qat: {activation_dtype: int8}
max_packed_sequence_len: 8192;context_parallel_size: 2;sequence_parallel_degree: 2;ray_num_workers: 8;float16: true
fp8: true;embeddings_skip_upcast: true;flex_attention: true;s2_attention: true;eager_attention: true
lora_mlp_kernel: true;use_kernels: true;chunked_cross_entropy: true;plugins: [liger];deepcompile: true
dynamic_checkpoint: {every: 2};torch_empty_cache_steps: 1;ddp_bucket_cap_mb: 5;optim_target_modules: [q_proj]
trainer_cls: mine.Trainer;resize_token_embeddings_to_32x: true;shrink_embeddings: true;scaling_softmax: true"""),
    "llama-factory": ("llama-3.1-8b", "dp16-mbs1-z3-rfull", "", """pure_bf16: true;upcast_layernorm: true;fp8: true
upcast_lmhead_output: true;enable_liger_kernel: true;use_liger_kernel: true;device_map: balanced;resize_vocab: true
deepspeed: ds.json;parallelism_config: {tp_size: 2};use_cpu: true;tf32: true;full_determinism: true
torch_empty_cache_steps: 1;ddp_bucket_cap_mb: 5;optim_target_modules: all-linear;block_diag_attn: true"""),
    "trl": ("llama-3.1-8b", "dp16-mbs1-z3-rfull", "", """use_liger_kernel: true;parallelism_config: {tp_size: 2}
use_cpu: true;tf32: true;full_determinism: true;torch_empty_cache_steps: 1;ddp_bucket_cap_mb: 5
optim_target_modules: all-linear;lora_target_parameters: [experts.w1];optim_args: rank=8"""),
    "nanotron": ("llama-2-7b", "tp2-dp8-mbs1-z0-rnone", "    is_qwen2_config: true\n", """no_rope_layer: 4
moe_config: {num_experts: 8, top_k: 2};log_attn_probs: true;rope_interleaved: true;z_loss_enabled: true"""),
    "maxtext": ("llama-3-8b", "dp16-mbs1-z3-rfull", "", """global_head_dim: 512;chunk_attn_window_size: 512
nope_layer_interval: 4;enable_dropout: false;query_proj: offload;scan_layers_per_stage: true;force_unroll: true
context_sharding: expert;dense_fsdp_use_two_stage_all_gather: true;allow_split_physical_axes: true;megablox: false
use_tokamax_gmm: true;use_custom_sort_vjp: false;global_rampup_samples: 600;per_device_batch_size_start: 2.0
use_tunix_gradient_accumulation: true;trainable_parameters_mask: [q];lora: {rank: 8};use_qwix_quantization: true"""),
    "nemo": ("llama-3.1-8b", "tp2-dp8-mbs1-z1-rnone", "                Llama31Config,\n", """fp8="hybrid"
softmax_scale=0.5;account_for_loss_in_pipeline_split=True;attention_softmax_in_fp32=True
memory_efficient_layer_norm=True;tp_comm_bulk_wgrad=True;variable_seq_lengths=True;use_kitchen=True;old_context_len=8192
persist_layer_norm=True"""),
    "torchtitan": ("llama-3.1-8b", "dp16-mbs1-z3-rfull", "        parallelism=ParallelismConfig(\n",
                   """enable_fsdp_symm_mem=True;spmd_backend="full_dtensor";context_parallel_load_balancer="ptrr\""""),
}  # fmt: skip
# Options beside which a folder is as planned.
ASIDE = {
    "axolotl": "flash_attention: true;lora_alpha: 16;wandb_project: x;val_set_size: 0.1;pad_to_sequence_len: true;"
               "tf32: auto;ray_num_workers: 1;dion_rank_fraction: 1.0;qgalore_rank: 256",
    "llama-factory": "template: qwen;num_train_epochs: 3;overwrite_cache: true;gradient_checkpointing_kwargs: {a: 1}",
    "trl": "dataset_name: mine;learning_rate: 1.0e-5;assistant_only_loss: true;gradient_checkpointing_kwargs: {a: 1}",
    "nanotron": "eos_token_id: 2;initializer_range: 0.02",
    "maxtext": "sa_block_q: 256;dpo: false;enable_dropout: true;matmul_precision: default;attention_out: remat;"
               "nope_layer_interval: -1;expansion_factor_real_data: -1.0;context_parallel_load_balance: true;"
               "local_sa_block_q: None;max_num_checkpoints_to_keep: None",
    "nemo": "init_method_std=0.01;perform_initialization=True", "torchtitan": "",
}  # fmt: skip


def cases(table: dict[str, str]) -> list[tuple[str, str]]:
    return [(target, line) for target, lines in table.items() for line in re.split("[;\n]", lines) if line]


@pytest.fixture(scope="module")
def folders() -> dict[str, dict[str, str]]:
    return {target: emitted(model, layout, target) for target, (model, layout, _, _) in ADDED.items()}


def fields_of(files: dict[str, str], target: str, line: str) -> list[str]:
    """Fields of the problems of a folder to whose main file an option is added."""
    name, behind = config_of(target).main_file, ADDED[target][2]
    text = files[name]
    if behind:
        assert text.count(behind) == 1
        comma = "," if name.endswith(".py") else ""
        indent = behind[: len(behind) - len(behind.lstrip())]
        text = text.replace(behind, f"{behind}{indent}{line}{comma}\n")
    else:
        text = f"{text.rstrip()}\n{line}\n"
    return [str(problem.field) for problem in check_files({**files, name: text}, target).problems]


@pytest.mark.parametrize(("target", "line"), cases({target: lines for target, (_, _, _, lines) in ADDED.items()}))
def test_an_added_option_is_found(folders: dict[str, dict[str, str]], target: str, line: str) -> None:
    option = re.split("[:=]", line)[0]
    fields = fields_of(folders[target], target, line)
    assert len(fields) == 1
    assert option in fields[0]


@pytest.mark.parametrize(("target", "line"), cases(ASIDE))
def test_other_options_are_not(folders: dict[str, dict[str, str]], target: str, line: str) -> None:
    assert not fields_of(folders[target], target, line)
