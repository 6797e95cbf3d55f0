"""The configuration that Megatron and Megatron-Bridge train with, after their own defaults and validation.

Run by the Python that has the framework:

    python resolved.py TARGET SOURCE < cases.jsonl > values.jsonl

A case is that of the target's parser. Values have the names of Megatron Core, whichever class or argument sets them.
"""

from __future__ import annotations

import contextlib
import json
import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

TARGETS = Path(__file__).parents[2] / "planner" / "targets"
# Fields of TransformerConfig and ModelParallelConfig.
CORE = (
    "num_layers", "hidden_size", "ffn_hidden_size", "num_attention_heads", "num_query_groups", "kv_channels",
    "normalization", "layernorm_epsilon", "gated_linear_unit", "add_bias_linear", "add_qkv_bias", "attention_dropout",
    "hidden_dropout", "multi_latent_attention", "q_lora_rank", "kv_lora_rank", "qk_head_dim", "qk_pos_emb_head_dim",
    "v_head_dim", "num_moe_experts", "moe_router_topk", "moe_ffn_hidden_size", "moe_shared_expert_intermediate_size",
    "moe_layer_freq", "moe_router_score_function", "moe_router_enable_expert_bias", "moe_router_num_groups",
    "moe_router_group_topk", "moe_router_topk_scaling_factor", "moe_router_load_balancing_type", "moe_aux_loss_coeff",
    "moe_token_dispatcher_type", "moe_flex_dispatcher_backend", "moe_permute_fusion", "moe_grouped_gemm",
    "moe_router_force_load_balancing", "mtp_num_layers", "bf16", "fp16", "params_dtype", "fp8", "fp8_recipe",
    "fp8_param", "fp4", "tensor_model_parallel_size", "pipeline_model_parallel_size",
    "virtual_pipeline_model_parallel_size", "context_parallel_size", "cp_comm_type", "expert_model_parallel_size",
    "expert_tensor_parallel_size", "sequence_parallel", "microbatch_group_size_per_vp_stage", "tp_comm_overlap",
    "recompute_granularity", "recompute_method", "recompute_num_layers", "recompute_modules", "cuda_graph_impl",
    "overlap_moe_expert_parallel_comm", "delay_wgrad_compute", "cpu_offloading", "cpu_offloading_num_layers",
    "fine_grained_activation_offloading", "offload_modules", "gradient_accumulation_fusion",
    "cross_entropy_loss_fusion", "bias_activation_fusion", "bias_dropout_fusion", "apply_rope_fusion",
    "deallocate_pipeline_outputs",
)  # fmt: skip
# Argument of pretrain_gpt.py -> field of ConfigContainer, where a field of the core does not have it.
OTHERS = {
    "seq_length": "model.seq_length", "micro_batch_size": "train.micro_batch_size",
    "global_batch_size": "train.global_batch_size", "position_embedding_type": "model.position_embedding_type",
    "rotary_base": "model.rotary_base", "rotary_percent": "model.rotary_percent",
    "use_distributed_optimizer": "ddp.use_distributed_optimizer", "use_megatron_fsdp": "ddp.use_megatron_fsdp",
    "data_parallel_sharding_strategy": "ddp.data_parallel_sharding_strategy",
    "num_distributed_optimizer_instances": "ddp.num_distributed_optimizer_instances",
    "overlap_grad_reduce": "ddp.overlap_grad_reduce", "overlap_param_gather": "ddp.overlap_param_gather",
    "accumulate_allreduce_grads_in_fp32": "ddp.grad_reduce_in_fp32", "optimizer": "optimizer.optimizer",
    "exp_avg_dtype": "optimizer.exp_avg_dtype", "exp_avg_sq_dtype": "optimizer.exp_avg_sq_dtype",
    "use_precision_aware_optimizer": "optimizer.use_precision_aware_optimizer",
    "optimizer_cpu_offload": "optimizer.optimizer_cpu_offload",
}  # fmt: skip


def plain(value: Any) -> Any:
    """A value as JSON: enums and dtypes by name."""
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return getattr(value, "name", None) or str(value).removeprefix("torch.")


def of_core(config: Any) -> dict[str, Any]:
    names = {name: plain(getattr(config, name, None)) for name in CORE}
    return names | {"activation_func": getattr(config.activation_func, "__name__", str(config.activation_func)),
                    "cuda_graph_modules": sorted(plain(config.cuda_graph_modules or []))}  # fmt: skip


def megatron(case: dict[str, Any], parser: dict[str, Any]) -> dict[str, Any]:
    arguments, config = parser["parse"](case)
    others = {name: plain(getattr(arguments, name)) for name in OTHERS}
    return of_core(config) | others | {"tied": not arguments.untie_embeddings_and_output_weights}


def megatron_bridge(case: dict[str, Any], parser: dict[str, Any]) -> dict[str, Any]:
    config = parser["parse"](case, parser["load"].update)
    others = {}
    for name, field in OTHERS.items():
        section, _, attribute = field.partition(".")
        others[name] = plain(getattr(getattr(config, section), attribute, None))
    return of_core(config.model) | others | {"tied": config.model.share_embeddings_and_output_weights}


def main() -> None:
    target, source = sys.argv[1:3]
    sys.argv = ["parser.py", source]
    parser = runpy.run_path(str(TARGETS / target.replace("-", "_") / "parser.py"))
    answers = parser.get("answers", sys.stdout)
    sys.stdout = sys.stderr
    values: Callable[..., dict[str, Any]] = {"megatron": megatron, "megatron-bridge": megatron_bridge}[target]
    if target == "megatron-bridge":
        parser["load"].update = parser["load"](source).runtime_config_update
    for line in sys.stdin:
        with contextlib.redirect_stdout(sys.stderr):
            found = values(json.loads(line), parser)
        print(json.dumps(found), file=answers, flush=True)


if __name__ == "__main__":
    main()
