"""The configuration that a framework trains with, after its own defaults and validation.

Run by the Python that has the framework:

    python resolved.py TARGET SOURCE < cases.jsonl > values.jsonl

A case is that of the target's parser. Values have the names of Megatron Core, whichever class or argument sets them;
those of torchtitan and MaxText have the names of their classes, those of torchtitan with the layer for the fields of a
layer.
"""

from __future__ import annotations

import contextlib
import json
import os
import runpy
import sys
from collections.abc import Callable
from math import prod
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


# Field of Trainer.Config of torchtitan.
TITAN = (
    "training.seq_len", "training.local_batch_size", "training.global_batch_size", "training.dtype",
    "training.mixed_precision_param", "training.mixed_precision_reduce", "training.enable_cpu_offload",
    "training.disable_cuda_graphs", "parallelism.tensor_parallel_degree", "parallelism.enable_sequence_parallel",
    "parallelism.pipeline_parallel_degree", "parallelism.pipeline_parallel_schedule",
    "parallelism.pipeline_parallel_microbatch_size", "parallelism.context_parallel_degree",
    "parallelism.expert_parallel_degree", "parallelism.data_parallel_replicate_degree",
    "parallelism.data_parallel_shard_degree", "parallelism.fsdp_reshard_after_forward", "compile.enable",
    "model_spec.model.dim", "model_spec.model.vocab_size", "model_spec.model.enable_weight_tying",
)  # fmt: skip
ROPE = ("theta", "scaling", "scaling_factor", "low_freq_factor", "high_freq_factor",
        "original_max_position_embeddings", "rope_factor", "original_seq_len")  # fmt: skip
LATENT = ("q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")


def of(config: Any, path: str) -> Any:
    for name in path.split("."):
        config = getattr(config, name)
    return plain(config)


def titan_layer(layer: Any) -> dict[str, Any]:
    """Fields of a layer of torchtitan that change what is trained."""
    attention, moe = layer.attention, layer.moe
    norms = [layer.attention_norm, layer.ffn_norm,
             *(getattr(attention, name, None) for name in ("q_norm", "kv_norm", "qk_norm"))]  # fmt: skip
    out = {"heads": attention.n_heads, "norm_eps": [norm.eps for norm in norms if norm is not None],
           **{f"rope.{name}": getattr(attention.rope, name) for name in ROPE}}  # fmt: skip
    if hasattr(attention, "kv_lora_rank"):
        out |= {name: getattr(attention, name) for name in LATENT}
    else:
        qkv = attention.qkv_linear
        out |= {"kv_heads": qkv.n_kv_heads, "head_dim": qkv.head_dim, "qkv_bias": qkv.wqkv.bias,
                "qk_norm": attention.qk_norm is not None}  # fmt: skip
    if moe is None:
        return out | {"inner": layer.feed_forward.w1.out_features}
    router, shared = moe.router, moe.shared_experts
    return out | {
        "experts": moe.num_experts, "expert_inner": moe.routed_experts.inner_experts.hidden_dim,
        "top_k": router.top_k, "scores": router.score_func, "normalises": router.route_norm,
        "scale": router.route_scale, "groups": router.num_expert_groups, "top_groups": router.num_limited_groups,
        "bias_rate": moe.load_balance_coeff, "shared_inner": shared.w1.out_features if shared else 0,
        "force_balance": router._debug_force_load_balance,
    }  # fmt: skip


def torchtitan(case: dict[str, Any], parser: dict[str, Any]) -> dict[str, Any]:
    config = parser["parse"](case)
    recompute = type(config.activation_checkpoint).__qualname__ if config.activation_checkpoint else None
    return {**{name: of(config, name) for name in TITAN}, "recompute": recompute,
            "layers": [titan_layer(layer) for layer in config.model_spec.model.layers],
            "norm_eps": config.model_spec.model.norm.eps, "fp8": "Float8" in repr(config),
            "mtp": len(getattr(config.model_spec.model, "mtp_layers", ()))}  # fmt: skip


# Field of MaxTextConfig.
MAXTEXT = (
    "hardware", "attention", "attention_type", "dtype", "weight_dtype", "grad_dtype", "mu_dtype", "opt_type",
    "quantization", "remat_policy", "scan_layers", "packing", "context_parallel_strategy", "shard_optimizer_over_data",
    "optimizer_memory_host_offload", "max_target_length", "micro_batch_size_to_train_on",
    "global_batch_size_to_train_on", "emb_dim", "num_decoder_layers", "num_query_heads", "num_kv_heads", "head_dim",
    "mlp_dim", "mlp_activations", "vocab_size", "normalization_layer_epsilon", "rope_max_timescale", "rope_type",
    "rope_use_scale", "logits_via_embedding", "normalize_embedding_logits", "attention_bias", "use_qk_norm",
    "decoder_block", "num_experts", "mtp_num_layers", "dropout_rate",
)  # fmt: skip


def maxtext(case: dict[str, Any], parser: dict[str, Any]) -> dict[str, Any]:
    parser["load"](sys.argv[1])
    config = parser["resolved"](case)
    axes = zip(config.mesh_axes, config.ici_parallelism, config.dcn_parallelism, strict=True)
    return {name: plain(getattr(config, name)) for name in MAXTEXT} | {
        "axes": {axis: inside * over for axis, inside, over in axes if inside * over != 1},
        "ranks of a node": prod(config.ici_parallelism)}  # fmt: skip


def deepspeed(case: dict[str, Any], parser: dict[str, Any]) -> dict[str, Any]:
    config = parser["parse"](case)
    zero = config.zero_config
    blocks = {name: getattr(zero, name) for name in ("offload_optimizer", "offload_param")}
    return {name: str(block.device) if block else "none" for name, block in blocks.items()} | {
        "stage": int(config.zero_optimization_stage), "overlap_comm": zero.overlap_comm,
        "train_batch_size": config.train_batch_size, "micro_batch": config.train_micro_batch_size_per_gpu,
        "steps": config.gradient_accumulation_steps, "bf16": config.bfloat16_config.enabled,
        "fp16": config.float16_config.enabled, "tp": max(config.tensor_parallel_config.autotp_size, 1),
        "optimizer": config.optimizer_name,
    }  # fmt: skip


def accelerate(case: dict[str, Any], parser: dict[str, Any]) -> dict[str, Any]:
    """By the launcher: the variables that it sets, and what the ranks make of them."""
    from accelerate.commands.launch import _validate_launch_command, launch_command_parser
    from accelerate.parallelism_config import ParallelismConfig
    from accelerate.utils import FullyShardedDataParallelPlugin
    from accelerate.utils.launch import prepare_multi_gpu_env

    path = parser["folder"] / "resolved.yaml"
    path.write_text(case["yaml"], encoding="utf-8")
    words = ["--config_file", str(path), "--main_process_port", "0", "train.py"]
    launched, _, _ = _validate_launch_command(launch_command_parser().parse_args(words))
    before = dict(os.environ)
    os.environ.update(prepare_multi_gpu_env(launched))
    try:
        out = {"ranks": launched.num_processes, "precision": os.environ["ACCELERATE_MIXED_PRECISION"],
               "fsdp": os.environ.get("ACCELERATE_USE_FSDP") == "true"}  # fmt: skip
        if out["fsdp"]:
            plugin, degrees = FullyShardedDataParallelPlugin(), ParallelismConfig()
            out |= {"version": plugin.fsdp_version, "reshard": plugin.reshard_after_forward,
                    "recompute": plugin.activation_checkpointing,
                    "on_host": type(plugin.cpu_offload).__name__ == "CPUOffloadPolicy",
                    **{name: getattr(degrees, f"{name}_size") for name in ("dp_replicate", "dp_shard", "tp", "cp")}}
    finally:
        os.environ.clear()
        os.environ.update(before)
    arguments = parser["arguments"](case)
    kwargs = arguments.accelerator_config.gradient_accumulation_kwargs or {}
    return out | {"micro_batch": arguments.per_device_train_batch_size, "steps": arguments.gradient_accumulation_steps,
                  "optimizer": plain(arguments.optim), "checkpointing": arguments.gradient_checkpointing,
                  "each": kwargs.get("sync_each_batch", False)}  # fmt: skip


VALUES: dict[str, Callable[..., dict[str, Any]]] = {
    "megatron": megatron, "megatron-bridge": megatron_bridge, "torchtitan": torchtitan,
    "maxtext": maxtext, "deepspeed": deepspeed, "accelerate": accelerate}  # fmt: skip


def main() -> None:
    target, source = sys.argv[1:3]
    sys.argv = ["parser.py", source]
    parser = runpy.run_path(str(TARGETS / target.replace("-", "_") / "parser.py"))
    answers = parser.get("answers", sys.stdout)
    sys.stdout = sys.stderr
    if target == "megatron-bridge":
        parser["load"].update = parser["load"](source).runtime_config_update
    for line in sys.stdin:
        with contextlib.redirect_stdout(sys.stderr):
            found = VALUES[target](json.loads(line), parser)
        print(json.dumps(found), file=answers, flush=True)


if __name__ == "__main__":
    main()
