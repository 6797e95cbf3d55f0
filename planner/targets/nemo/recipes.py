"""Other people's recipes of NeMo 2: functions that they start from, models by the name of their class, and options that
no plan holds.

Source: NeMo 2.7.3, nemo/collections/llm: recipes/precision/mixed_precision.py, recipes/optim/adam.py, gpt/model/; and
the files in fields.py.
"""

from __future__ import annotations

from collections.abc import Mapping

from ....errors import FieldProblem
from ..argv import Arguments
from ..megatron import not_read as megatron
from ..megatron_bridge.recipes import fields_of
from ..model_names import known_model
from ..options import Settings
from .fields import CLASS, M

_BLOCKS = r"(model\.config|trainer\.strategy|trainer\.strategy\.ddp|optim\.config|trainer\.plugins)\."
PRICES: Mapping[str, str] = {
    **fields_of(megatron.PRICES, _BLOCKS),
    r"trainer\.callbacks\.MegatronCommOverlapCallback\.\w+": "another overlap of messages",
    r"trainer\.strategy\.(pipeline_model_parallel_comm_backend|use_sharp|nccl_communicator_config_path)":
        "other messages",
    r"trainer\.strategy\.ddp\.(bucket_size|average_in_collective|nccl_ub|fsdp_double_buffer|pad_buckets_.*)":
        "other messages of data parallelism",
    r"model\.config\.(\w+_fusion|overlap_p2p_comm|batch_p2p_comm|deallocate_pipeline_outputs|enable_cuda_graph|"
    r"use_transformer_engine_full_layer_spec|attention_backend)": "other kernels or messages",
    r"(model\.config|trainer\.(plugins|strategy)|optim\.config)\.((\w+_)?(dtype|autocast)|bf16|fp16|fp[48]\w*|"
    r"attention_softmax_in_fp32|activation_func_fp8_input_store|quant_recipe|store_param_remainders|"
    r"disable_parameter_transpose_cache)|trainer\.precision": "another precision",
    r"model\.config\.((tensor|pipeline|context|expert|expert_tensor|virtual_pipeline)_(model_)?parallel_(size|layout)|"
    r"sequence_parallel|account_for_\w+|num_layers_in_\w+_stage|microbatch_group_size_per_vp_stage|moe_extended_tp|"
    r"num_microbatches_with_partial_activation_checkpoints|moe_layer_recompute|pipeline_model_parallel_layout)":
        "another layout",
    r"model\.config\.(tp_\w+|scatter_embedding_sequence_parallel|clone_scatter_output_in_embedding|batch_p2p_sync|"
    r"barrier_with_L1_time|overlap_p2p_comm_warmup_flush|variable_seq_lengths|parallel_output|fused_single_qkv_rope|"
    r"memory_efficient_layer_norm|persist_layer_norm|use_kitchen|kitchen_attention_backend|log_max_attention_logit|"
    r"moe_use_legacy_grouped_gemm|use_mamba_mem_eff_path)": "other kernels or messages",
    r"model\.config\.(heterogeneous_block_specs|softmax_scale|(low|high)_freq_factor|old_context_len|dsa_indexer_\w+|"
    r"moe_(router_topk_limited_devices|token_drop\w*))": "another model",
    r"optim\.config\.(overlap_param_gather|pin_cpu_\w+|reuse_grad_buf_for_mxfp8_param_ag|barrier_with_L1_time|muon_\w+|"
    r"use_torch_optimizer_for_cpu_offload)": "other states or messages of the optimizer",
    r"trainer\.strategy\.ddp\.(align_param_gather|grad_reduce_in_fp32|fp8_param_gather|"
    r"num_distributed_optimizer_instances|outer_dp_sharding_strategy|overlap_param_gather|preserve_fp32_weights|"
    r"reduce_scatter_with_fp32_accumulation|reuse_grad_buf_for_mxfp8_param_ag|"
    r"suggested_communication_unit_size|use_\w+)": "another sharding or its messages",
    r"trainer\.(deterministic|detect_anomaly|benchmark|sync_batchnorm)": "another program for the layers",
}  # fmt: skip
CHANGES: Mapping[str, str] = {
    **fields_of(megatron.CHANGES, _BLOCKS),
    r"data\.rampup_batch_size": "a batch that changes",
    r"trainer\.accumulate_grad_batches": "a batch that is summed by Lightning",
    r"trainer\.strategy\.(moe_extended_tp|encoder_\w+_parallel_size)": "other degrees of parallelism",
    r"model\.config\.(cpu_offloading.*|fine_grained_activation_offloading)": "activations on the host",
    r"model\.model_transform": "adapters or other modules in place of the model's",
    r"trainer\.plugins\.(num_layers_at_.*|first_last_layers_bf16|autocast_\w+)": "layers in another precision",
}
HARMLESS = (
    r"^((log|resume|tokenizer|data|optim\.lr_scheduler|trainer\.(?!strategy|plugins|callbacks)|model\.tokenizer)\b|"
    r"trainer\.strategy\.(gradient_as_bucket_view|find_unused_parameters|ckpt_\w+|progress_interval)$|"
    r"trainer\.callbacks\.(Timing|GarbageCollection|Nsys|MemoryProfile|ModelCheckpoint|FLOPs|Preemption|Straggler))"
)
_BF16: Settings = {
    "trainer.plugins": "MegatronMixedPrecision", "trainer.plugins.precision": "bf16-mixed",
    "trainer.plugins.params_dtype": "torch.bfloat16", "trainer.plugins.pipeline_dtype": "torch.bfloat16",
}  # fmt: skip
# Function of the framework -> the options of the block that it returns.
BASES: Mapping[str, Settings] = {
    "bf16_mixed": _BF16,
    "bf16_with_fp8_mixed": {**_BF16, "trainer.plugins.fp8": "hybrid", "trainer.plugins.fp8_recipe": "delayed",
                            "trainer.plugins.fp8_param_gather": True},
    "distributed_fused_adam_with_cosine_annealing": {
        "optim": "MegatronOptimizerModule", "optim.config": "OptimizerConfig", "optim.config.optimizer": "adam",
        "optim.config.use_distributed_optimizer": True,
    },
}  # fmt: skip
# Class of a model's config -> the model in the catalogue.
MODELS: Mapping[str, str] = {
    **{f"Llama2Config{size}": f"llama-2-{size.lower()}" for size in ("7B", "13B", "70B")},
    **{f"Llama3Config{size}": f"llama-3-{size.lower()}" for size in ("8B", "70B")},
    **{f"Llama31Config{size}": f"llama-3.1-{size.lower()}" for size in ("8B", "70B", "405B")},
    **{f"Llama32Config{size}": f"llama-3.2-{size.lower()}" for size in ("1B", "3B")},
    "MistralConfig7B": "mistral-7b", "MixtralConfig8x7B": "mixtral-8x7b", "MixtralConfig8x22B": "mixtral-8x22b",
    "Nemotron4Config340B": "nemotron-4-340b", "GPTConfig175B": "gpt-175b",
    **{f"Qwen2Config{size}": f"qwen2-{size.lower()}" for size in ("7B", "72B")},
    **{f"Qwen3Config{size}": f"qwen3-{size.lower()}" for size in ("4B", "8B", "14B", "32B")},
    "Qwen3Config30B_A3B": "qwen3-30b-a3b", "Qwen3Config235B_A22B": "qwen3-235b-a22b",
}  # fmt: skip
_SIZES = tuple(f"{M}{name}" for name in (
    "num_layers", "hidden_size", "ffn_hidden_size", "num_attention_heads", "num_query_groups", "kv_channels",
    "moe_ffn_hidden_size", "num_moe_experts"))  # fmt: skip


def modernise(arguments: Arguments) -> None:
    """Takes from a model by its class the sizes that stages and experts depend on. Another size is a gap."""
    given = arguments.settings
    if given.get("trainer.accumulate_grad_batches") == 1:
        del given["trainer.accumulate_grad_batches"]
    spec = known_model(MODELS.get(str(given.get(CLASS)), ""))
    if spec is None:
        return
    arguments.gaps += [
        FieldProblem(f"another size than that of {given[CLASS]}", name, arguments.files.get(name, ""),
                     arguments.lines.get(name, 0)) for name in _SIZES if given.get(name) is not None]  # fmt: skip
    given.setdefault(f"{M}num_layers", spec.num_layers)
    routed = next((kind.feed_forward for kind in spec.kinds if kind.is_moe), None)
    if routed is not None:
        given[f"{M}num_moe_experts"] = getattr(routed, "experts", 0)
