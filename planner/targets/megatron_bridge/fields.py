"""Arguments of pretrain_gpt.py <-> fields of Megatron-Bridge's ConfigContainer, and where their defaults differ.

Names: Megatron-Bridge 51885cf1, training/{config,comm_overlap}.py, models/gpt_provider.py; the pairs agree with its
scripts/translate_mlm_to_bridge.py.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ..megatron.delta_net import FREQUENCY, VARIANT
from ..megatron.hybrid import PATTERN
from ..megatron.layer_patterns import pattern_text
from ..megatron.muon import LAYER_WISE, NO_LAYOUT
from ..options import Settings, remembered
from . import fusions, hybrid, vision, wan

_DTYPES = {"bf16": "torch.bfloat16", "fp16": "torch.float16", "fp32": "torch.float32"}
MODELS = {False: "GPTModelProvider", True: "MLAModelProvider"}


@dataclass(frozen=True)
class Twin:
    """An argument of pretrain_gpt.py and the fields of Bridge that mean the same."""

    argument: str
    fields: tuple[str, ...]
    # Value of the argument -> value of each field.
    to_field: Callable[[Any], Any] = lambda value: value
    # Value of the first given field -> value of the argument, None if the argument is left out.
    to_argument: Callable[[Any], Any] = lambda value: value


def _same(argument: str, *fields: str) -> Twin:
    return Twin(argument, fields)


def _flag(argument: str, *fields: str) -> Twin:
    return Twin(argument, fields, to_argument=lambda value: True if value else None)


def _negated(argument: str, field: str) -> Twin:
    return Twin(argument, (field,), lambda value: False, lambda value: None if value else True)


def _dtype(argument: str, field: str) -> Twin:
    names = {value: key for key, value in _DTYPES.items()}
    return Twin(argument, (field,), lambda value: _DTYPES[value], lambda value: names.get(value))


def _listed(text: Any) -> Any:
    """`([0]*3+[1]*58)` as a list."""
    runs = re.findall(r"\[([01])\]\*(\d+)", str(text))
    return [int(value) for value, times in runs for _ in range(int(times))] if runs else text


def _pattern(argument: str, field: str) -> Twin:
    return Twin(argument, (field,), _listed, lambda value: pattern_text(value) if isinstance(value, list) else value)


_TWINS = (
    _same("--num-layers", "model.num_layers"),
    _same("--hidden-size", "model.hidden_size"),
    _same("--num-attention-heads", "model.num_attention_heads"),
    _same("--kv-channels", "model.kv_channels"),
    _same("--num-query-groups", "model.num_query_groups"),
    _flag("--qk-layernorm", "model.qk_layernorm"),
    _same("--softmax-type", "model.softmax_type"),
    _flag("--attention-output-gate", "model.attention_output_gate"),
    _flag("--apply-layernorm-1p", "model.layernorm_zero_centered_gamma"),
    _same(VARIANT, "model.experimental_attention_variant"),
    Twin(FREQUENCY, ("model.linear_attention_freq",),
         lambda value: int(value) if str(value).isdigit() else _listed(value),
         lambda value: pattern_text(value) if isinstance(value, list) else str(value)),
    *(_same(f"--{name.replace('_', '-')}", f"model.{name}")
      for name in ("linear_num_key_heads", "linear_num_value_heads", "linear_key_head_dim", "linear_value_head_dim",
                   "linear_conv_kernel_dim")),
    _flag("--multi-latent-attention", "model.multi_latent_attention"),
    *(_same(f"--{name.replace('_', '-')}", f"model.{name}")
      for name in ("kv_lora_rank", "q_lora_rank", "qk_head_dim", "qk_pos_emb_head_dim", "v_head_dim")),
    _same("--ffn-hidden-size", "model.ffn_hidden_size"),
    _flag("--swiglu", "model.gated_linear_unit"),
    Twin("--quick-geglu", ("model.activation_func",), lambda value: "quick_gelu",
         lambda value: True if value == "quick_gelu" else None),
    _same("--activation-func-clamp-value", "model.activation_func_clamp_value"),
    _same("--glu-linear-offset", "model.glu_linear_offset"),
    Twin("--squared-relu", ("model.activation_func",), lambda value: "squared_relu",
         lambda value: True if value in ("squared_relu", "relu2") else None),
    _same("--num-experts", "model.num_moe_experts"),
    _flag("--moe-pad-expert-input-to-capacity", "model.moe_pad_expert_input_to_capacity"),
    _flag("--distribute-saved-activations", "model.distribute_saved_activations"),
    *(_same(f"--{name.replace('_', '-')}", f"model.{name}")
      for name in ("moe_router_topk", "moe_expert_capacity_factor", "moe_ffn_hidden_size",
                   "moe_router_load_balancing_type", "moe_aux_loss_coeff",
                   "moe_shared_expert_intermediate_size", "recompute_granularity",
                   "recompute_method", "recompute_num_layers", "recompute_modules", "tensor_model_parallel_size",
                   "pipeline_model_parallel_size",
                   "context_parallel_size", "hierarchical_context_parallel_sizes", "expert_model_parallel_size",
                   "expert_tensor_parallel_size", "pipeline_model_parallel_layout",
                   "normalization", "mtp_num_layers", "attention_dropout", "hidden_dropout", "vocab_size",
                   "cross_entropy_fusion_impl", "moe_router_num_groups", "moe_router_group_topk",
                   "moe_router_score_function", "moe_router_topk_scaling_factor")),
    _same("--norm-epsilon", "model.layernorm_epsilon"),
    Twin("--position-embedding-type", ("model.position_embedding_type",), to_argument=vision.plain_positions),
    Twin("--moe-token-dispatcher-type", ("model.moe_token_dispatcher_type",), to_argument=vision.dispatcher),
    *(_same(f"--{name.replace('_', '-')}", f"model.{name}") for name in ("rotary_base", "rotary_percent", "rope_type")),
    _flag("--use-rope-scaling", "model.rope_scaling"),
    _same("--rope-scaling-factor", "model.rope_scaling_factor"),
    _same("--rotary-seq-len-interpolation-factor", "model.seq_len_interpolation_factor"),
    # For latent attention, and for any other (`to_fields`).
    *(_same(f"--{name.replace('_', '-')}", f"model.{name}", f"model.yarn_{name}")
      for name in ("rotary_scaling_factor", "mscale", "mscale_all_dim")),
    *(_same(f"--yarn-{name.replace('_', '-')}", f"model.yarn_{name}")
      for name in ("beta_fast", "beta_slow", "original_max_position_embeddings")),
    _flag("--yarn-correction-range-round-to-int", "model.yarn_correction_range_round_to_int"),
    _negated("--no-yarn-correction-range-round-to-int", "model.yarn_correction_range_round_to_int"),
    _pattern("--moe-layer-freq", "model.moe_layer_freq"),
    *(_flag(f"--{name.replace('_', '-')}", f"model.{name}")
      for name in ("moe_shared_expert_gate", "moe_router_enable_expert_bias", "moe_router_pre_softmax",
                   "use_fused_weighted_squared_relu", "moe_grouped_gemm", "moe_permute_fusion", "add_qkv_bias",
                   "sequence_parallel", "account_for_embedding_in_pipeline_split",
                   "account_for_loss_in_pipeline_split", "tp_comm_overlap", "cross_entropy_loss_fusion")),
    Twin("--window-size", ("model.window_size",), lambda value: tuple(map(int, value.split(","))),
         lambda value: ",".join(map(str, value)) if isinstance(value, list) else value),
    _pattern("--window-attn-skip-freq", "model.window_attn_skip_freq"),
    _negated("--disable-bias-linear", "model.add_bias_linear"),
    _negated("--untie-embeddings-and-output-weights", "model.share_embeddings_and_output_weights"),
    _negated("--no-gradient-accumulation-fusion", "model.gradient_accumulation_fusion"),
    _same("--num-virtual-stages-per-pipeline-rank", "model.virtual_pipeline_model_parallel_size"),
    _same("--microbatch-group-size-per-virtual-pipeline-stage", "model.microbatch_group_size_per_vp_stage"),
    *(_same(f"--decoder-{end}-pipeline-num-layers", f"model.num_layers_in_{end}_pipeline_stage")
      for end in ("first", "last")),
    Twin("--cp-comm-type", ("model.cp_comm_type",), lambda value: value[0],
         lambda value: value if isinstance(value, list) else [value]),
    _same(PATTERN, "model.hybrid_layer_pattern"),
    _flag("--is-hybrid-model", "model.is_hybrid_model"),
    *(_same(f"--{name.replace('_', '-')}", f"model.{name}")
      for name in ("mamba_num_heads", "mamba_head_dim", "mamba_num_groups", "mamba_state_dim", "moe_latent_size")),
    _flag("--mtp-use-repeated-layer", "model.mtp_use_repeated_layer"),
    _same("--seq-length", "model.seq_length", "dataset.seq_length"),
    _same("--micro-batch-size", "train.micro_batch_size"),
    _same("--global-batch-size", "train.global_batch_size"),
    _flag("--use-distributed-optimizer", "ddp.use_distributed_optimizer", "optimizer.use_distributed_optimizer"),
    _flag("--use-megatron-fsdp", "ddp.use_megatron_fsdp", "dist.use_megatron_fsdp"),
    _flag("--use-torch-fsdp2", "dist.use_torch_fsdp2"),
    _same("--data-parallel-sharding-strategy", "ddp.data_parallel_sharding_strategy"),
    _same("--num-distributed-optimizer-instances", "ddp.num_distributed_optimizer_instances"),
    _flag("--overlap-grad-reduce", "ddp.overlap_grad_reduce"),
    _flag("--overlap-param-gather", "ddp.overlap_param_gather", "optimizer.overlap_param_gather"),
    _flag("--overlap-moe-expert-parallel-comm", "model.overlap_moe_expert_parallel_comm"),
    _flag("--delay-wgrad-compute", "model.delay_wgrad_compute", "ddp.delay_wgrad_compute"),
    *(_flag(f"--{name.replace('_', '-')}", f"model.{name}")
      for name in ("moe_router_force_load_balancing", "moe_paged_stash", "use_transformer_engine_op_fuser")),
    *(_same(f"--{name.replace('_', '-')}", f"model.{name}")
      for name in ("moe_paged_stash_buffer_size_factor_cuda", "moe_paged_stash_buffer_size_factor_cpu",
                   "moe_expert_rank_capacity_factor", "moe_mlp_glu_interleave_size")),
    *(_same(f"--{name.replace('_', '-')}", f"model.{name}")
      for name in ("moe_flex_dispatcher_backend", "moe_router_dtype", "cuda_graph_impl", "cuda_graph_modules",
                   "cuda_graph_scope", "offload_modules", "fine_grained_offloading_max_inflight_offloads")),
    _flag("--fine-grained-activation-offloading", "model.fine_grained_activation_offloading"),
    _same("--cpu-offloading-num-layers", "model.cpu_offloading_num_layers"),
    _same("--cpu-offloading-retain-pinned-cpu-buffers", "model.cpu_offloading_retain_pinned_cpu_buffers"),
    _flag("--te-rng-tracker", "model.use_te_rng_tracker", "rng.te_rng_tracker"),
    Twin("--no-check-for-nan-in-loss-and-grad",
         ("rerun_state_machine.check_for_nan_in_loss", "ddp.check_for_nan_in_grad"), lambda value: False,
         lambda value: None if value else True),
    _same("--ckpt-format", "checkpoint.ckpt_format"),
    _flag("--bf16", "mixed_precision.bf16"),
    _flag("--fp16", "mixed_precision.fp16"),
    _same("--fp8-format", "mixed_precision.fp8"),
    _same("--fp8-recipe", "mixed_precision.fp8_recipe"),
    *(_flag(f"--{name.replace('_', '-')}", f"mixed_precision.{name}")
      for name in ("fp8_param_gather", "reuse_grad_buf_for_mxfp8_param_ag", "fp4_param_gather")),
    _negated("--grad-reduce-in-bf16", "mixed_precision.grad_reduce_in_fp32"),
    _same("--fp4-format", "mixed_precision.fp4"),
    _same("--fp4-recipe", "mixed_precision.fp4_recipe"),
    _same("--optimizer", "optimizer.optimizer"),
    _dtype("--exp-avg-dtype", "optimizer.exp_avg_dtype"),
    _dtype("--exp-avg-sq-dtype", "optimizer.exp_avg_sq_dtype"),
    *(_flag(f"--{name.replace('_', '-')}", f"optimizer.{name}")
      for name in ("optimizer_cpu_offload", "overlap_cpu_optimizer_d2h_h2d", "use_precision_aware_optimizer")),
    _same("--optimizer-offload-fraction", "optimizer.optimizer_offload_fraction"),
)  # fmt: skip
BY_ARGUMENT = {twin.argument: twin for twin in _TWINS}
# YaRN has its fields in MLATransformerConfig, and others for plain attention in GPTModelProvider.
_LATENT = tuple(f"model.{name}" for name in ("rotary_scaling_factor", "mscale", "mscale_all_dim"))
_YARN = tuple(f"model.yarn_{name}" for name in ("rotary_scaling_factor", "mscale", "mscale_all_dim"))
# Arguments without a field: other fields imply them, or they are Bridge's defaults.
IMPLIED = ("--group-query-attention", "--max-position-embeddings", "--no-bias-gelu-fusion", "--attention-backend",
           NO_LAYOUT, "--spec")  # fmt: skip
# Fields that an argument also sets.
BESIDE = {"--swiglu": "model.activation_func", "--multi-latent-attention": "model",
          PATTERN: "model", "--cpu-offloading-num-layers": "model.cpu_offloading"}  # fmt: skip


def to_fields(arguments: Mapping[str, Any]) -> Settings:
    """Fields of Bridge equivalent to `arguments` of pretrain_gpt.py."""
    out: Settings = {}
    others = _LATENT if arguments.get("--position-embedding-type") == "yarn" else _YARN
    for argument, value in arguments.items():
        if argument in IMPLIED:
            continue
        twin = BY_ARGUMENT[argument]
        out |= {field: twin.to_field(value) for field in twin.fields if field not in others}
    if arguments.get("--swiglu"):
        out["model.activation_func"] = "silu"
    if arguments.get("--quick-geglu"):
        out["model.gated_linear_unit"] = True
    if "--cpu-offloading-num-layers" in arguments:  # pretrain_gpt.py turns it on
        out["model.cpu_offloading"] = True
    if arguments.get("--multi-latent-attention"):
        out |= {"model": MODELS[True], "model.q_lora_rank": arguments.get("--q-lora-rank")}  # its default is 512
    if PATTERN in arguments:
        out["model"] = hybrid.PROVIDER
    if (half := next((name for name in ("bf16", "fp16") if arguments.get(f"--{name}")), "")) != "":
        out |= {f"mixed_precision.{part}_dtype": _DTYPES[half] for part in ("params", "pipeline")}
        out["mixed_precision.grad_reduce_in_fp32"] = half == "bf16"  # as its recipes bf16_mixed and fp16_mixed
    return out


@remembered
def to_arguments(settings: Mapping[str, Any]) -> Settings:
    """Arguments of pretrain_gpt.py equivalent to `settings` of Bridge, including its defaults."""
    settings = wan.without_sizes(settings)
    out = hybrid.defaults(settings) | vision.defaults(settings)
    for twin in _TWINS:
        values = [settings[field] for field in twin.fields if settings.get(field) is not None]
        # A switch in two dataclasses is on if one of them has it on, because `validate` merges them.
        value = next((given for given in values if given not in (False,)), values[0] if values else None)
        if value is not None and (translated := twin.to_argument(value)) is not None:
            out[twin.argument] = translated
    out |= hybrid.with_modules(settings)
    if not settings.get("model.cpu_offloading"):
        out.pop("--cpu-offloading-num-layers", None)
    if out.get("--swiglu") and "--quick-geglu" in out:  # the field applies to any gate
        del out["--swiglu"]
    if "--num-query-groups" in out:
        out["--group-query-attention"] = True
    if out.get("--optimizer") == LAYER_WISE:
        out[NO_LAYOUT] = True
    if "--pipeline-model-parallel-layout" in out:
        out.pop("--num-virtual-stages-per-pipeline-rank", None)  # redundant; `conflicts` compares them
    out |= fusions.defaults(settings)
    if settings.get("model.expert_model_parallel_size", 1) > 1:
        out.setdefault("--expert-tensor-parallel-size", 1)  # Megatron's default is tp
    if "--multi-latent-attention" in out:
        out.setdefault("--kv-lora-rank", 512)
        out.setdefault("--rotary-scaling-factor", 40.0)  # MLATransformerConfig's
    if "--use-rope-scaling" in out:
        out.setdefault("--rope-scaling-factor", 1.0)
    if "model.hidden_size" in settings:
        out.setdefault("--ffn-hidden-size", 4 * settings["model.hidden_size"])  # gated or not
    return out | _precision(settings) | _overlaps(settings)


# Part of a recipe's name (training/mixed_precision.py) -> its kind of scaling; delayed without such a part.
_RECIPES = {"current": "tensorwise", "mxfp8": "mxfp8", "subchannel": "blockwise"}


def _precision(settings: Mapping[str, Any]) -> Settings:
    """A named recipe, such as `bf16_with_mxfp8_mixed`. All recipes except blockwise ones gather quantised weights."""
    name = str(settings.get("mixed_precision")).replace("-", "_")
    if not name.endswith("_mixed"):
        return {f"--{half}": True for half in ("bf16", "fp16") if settings.get(f"optimizer.{half}")}
    out: Settings = {"--fp16" if name.startswith("fp16") else "--bf16": True}
    if "fp4" in name:
        return out | {"--fp4-format": "e2m1", "--fp4-param-gather": True}
    if "fp8" not in name:
        return out
    recipe = next((spelled for part, spelled in _RECIPES.items() if part in name), "delayed")
    gathers: Settings = {"--fp8-param-gather": True} if recipe != "blockwise" else {}
    buffer: Settings = {"--reuse-grad-buf-for-mxfp8-param-ag": True} if recipe == "mxfp8" else {}
    return out | {"--fp8-format": "hybrid", "--fp8-recipe": recipe} | gathers | buffer


def _overlaps(settings: Mapping[str, Any]) -> Settings:
    """Overlap settings: CommOverlapConfig wins if given. The distributed optimizer overlaps by default."""
    if "comm_overlap" not in settings and not any(name.startswith("comm_overlap.") for name in settings):
        return {}
    sharded = settings.get("ddp.use_distributed_optimizer") or settings.get("optimizer.use_distributed_optimizer")
    names = ("overlap_grad_reduce", "overlap_param_gather") if sharded else ()
    out: Settings = {f"--{name.replace('_', '-')}": settings.get(f"comm_overlap.{name}", True) for name in names}
    for name in ("tp_comm_overlap", "overlap_moe_expert_parallel_comm", "delay_wgrad_compute"):
        out[f"--{name.replace('_', '-')}"] = settings.get(f"comm_overlap.{name}", False)
    return out


def renamed(text: str) -> str:
    """Rewrites a sentence about arguments of pretrain_gpt.py to one about fields."""
    in_fields = re.sub(r"--[a-z][\w-]*", lambda word: field_of(word[0]), text)
    return re.sub(r"\bMegatron('s)?(?!-)", "the core\\1", in_fields) if in_fields != text else text


def field_of(argument: str) -> str:
    twin = BY_ARGUMENT.get(argument)
    return twin.fields[0] if twin is not None else argument
