"""MaxText's YAML, of which a file states what differs from base.yml.

Source: MaxText e591f30c (2026-08-22), src/maxtext/configs/base.yml (defaults), types.py (QuantizationType,
RematPolicy), utils/max_utils.py: one axis per product may be -1, the rest of the devices. On GPUs a slice is a node.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import prod
from typing import Any

from ....profiles.io.document import Document
from ..argv import Arguments
from ..facts import NODES
from ..import_format import Compared
from ..options import Facts, NoCounterpartError, Settings
from ..reading import Reading
from .reader import Reader, noted, reads, states, value

_PLAIN = ("data", "fsdp", "tensor", "tensor_sequence", "context", "expert", "pipeline")
_OTHER = ("diloco", "fsdp_transpose", "sequence", "context_usp_ulysses", "context_autoregressive", "autoregressive")
_AXES = tuple(f"{place}_{axis}_parallelism" for place in ("ici", "dcn") for axis in (*_PLAIN, *_OTHER))
_AUTO = {"ici_fsdp_parallelism": -1, "dcn_data_parallelism": -1}
_ALGORITHMS = {"all_gather": "allgather", "ring": "ring", "ulysses": "ulysses"}
_OPTIMIZERS = {"adamw": "adamw", "adam_pax": "adamw", "sgd": "sgd", "muon": "muon"}
_DTYPES = {"bfloat16": "bf16", "float32": "fp32", "float16": "fp16"}
# Blocks of decoder layers that are those of Llama, perhaps with experts, latent attention or norms of queries and keys.
_BLOCKS = ("llama2", "mistral", "mixtral", "qwen2", "qwen3", "qwen3_moe", "deepseek")
# base.yml
_DEFAULTS = {
    "base_emb_dim": 2048, "base_num_query_heads": 16, "base_num_kv_heads": 16, "base_mlp_dim": 7168,
    "base_num_decoder_layers": 16, "head_dim": 128, "vocab_size": 32000, "normalization_layer_epsilon": 1e-5,
    "rope_max_timescale": 10_000,
}  # fmt: skip
_LATENT = ("q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
_EXPERTS = ("num_experts", "num_experts_per_tok", "base_moe_mlp_dim", "shared_experts", "first_num_dense_layers",
            "n_routing_groups", "topk_routing_group", "routed_score_func", "routed_bias", "routed_scaling_factor",
            "sparse_matmul")  # fmt: skip
# Options that say nothing with these values: those of base.yml, and kernels that keep no scores.
_NOTHING: Mapping[str, tuple[Any, ...]] = {
    "weight_dtype": ("float32",), "grad_dtype": ("float32",), "mu_dtype": ("", "float32"),
    "attention": ("autoselected", "flash", "cudnn_flash_te", "cudnn_flash_jax"), "dropout_rate": (0.0,),
    "global_parameter_scale": (1,), "num_vocab_tiling": (1,), "vocab_size_per_layer_input": (0,),
    "attn_logits_soft_cap": (0.0,), "final_logits_soft_cap": (0.0,),
}  # fmt: skip
_ATTENTIONS = ("global", "mla")
_MODEL = (*_DEFAULTS, *_LATENT, *_EXPERTS, "model_name", "decoder_block", "attention_type", "logits_via_embedding",
          "use_qk_norm", "attention_bias", "base_config", "mtp_num_layers", "rope_type",
          "override_model_config", "mlp_activations")  # fmt: skip


def _degrees(settings: Settings, facts: Facts) -> Facts:
    """Degrees of the mesh: of a node (ici) times over nodes (dcn)."""
    if any(not isinstance(rule, list) or rule[:1] != ["norm"] for rule in settings.get("logical_axis_rules") or ()):
        raise NoCounterpartError("logical_axis_rules: shards by other rules than those of base.yml")
    size = {name: settings.get(name) or _AUTO.get(name, 1) for name in _AXES}
    axes = {axis: (size[f"ici_{axis}_parallelism"], size[f"dcn_{axis}_parallelism"]) for axis in (*_PLAIN, *_OTHER)}
    for axis in _OTHER:
        if axes[axis] != (1, 1):
            raise NoCounterpartError(f"ici_{axis}_parallelism has no counterpart in a plan")
    open_axes = [axis for axis, sizes in axes.items() if -1 in sizes]
    if strange := [axis for axis in open_axes if axis not in ("data", "fsdp")]:
        raise NoCounterpartError(f"ici_{strange[0]}_parallelism -1 depends on the number of GPUs: give the number")
    tp, cp, ep = (prod(axes[axis]) for axis in ("tensor", "context", "expert"))
    sequence = prod(axes["tensor_sequence"])
    if prod(axes["pipeline"]) > 1:
        raise NoCounterpartError("ici_pipeline_parallelism: its circular pipeline has no counterpart in a plan")
    out: Facts = {"tp": tp * sequence, "cp": cp, "ep": ep, "sequence_parallel": sequence > 1}
    sharded = prod(axes["fsdp"]) * ep > 1 or "fsdp" in open_axes
    out["zero"] = 3 if sharded else 0
    over_nodes = axes["data"][1] == -1 and all(axes[axis][1] in (1, -1) for axis in _PLAIN)
    if sharded:
        out["replicas"] = NODES if over_nodes else abs(prod(axes["data"]))
    if not open_axes:
        out["dp"] = prod(prod(axes[axis]) for axis in ("data", "fsdp", "expert"))
    return out


def _batch(settings: Settings, facts: Facts) -> Facts:
    """per_device_batch_size counts all devices, those that share a sequence too."""
    ranks = facts["tp"] * facts["cp"]
    micro = settings.get("per_device_batch_size", 12.0) * ranks
    if micro < 1 or micro % 1:
        raise NoCounterpartError(f"per_device_batch_size: {micro:g} sequences per data-parallel rank")
    steps = settings.get("gradient_accumulation_steps") or 1
    return {"micro_batch": int(micro), "batch_per_rank": int(micro) * steps}


def _recompute(settings: Settings, facts: Facts) -> Facts:
    policy = settings.get("remat_policy") or "full"
    if policy != "full":
        raise NoCounterpartError(f"remat_policy `{policy}` keeps tensors of its own choice", hint="known: full")
    return {"recompute": {"mode": "full"}}


def _precision(settings: Settings, facts: Facts) -> Facts:
    dtype, quantised = settings.get("dtype") or "bfloat16", str(settings.get("quantization") or "")
    if "fp8" in quantised:
        return {"precision": "fp8"}
    if "nvfp4" in quantised:
        return {"precision": "fp4"}
    if quantised or dtype not in _DTYPES:
        name = "quantization" if quantised else "dtype"
        raise NoCounterpartError(f"{name} `{quantised or dtype}` has no counterpart in a plan")
    return {"precision": _DTYPES[dtype]}


def _optimizer(settings: Settings, facts: Facts) -> Facts:
    name = settings.get("opt_type") or "adamw"
    if name not in _OPTIMIZERS:
        raise NoCounterpartError(f"opt_type `{name}` has no counterpart in a plan", hint=", ".join(_OPTIMIZERS))
    offload = "opt" if settings.get("optimizer_memory_host_offload") else "none"
    return {"workload.optimizer": _OPTIMIZERS[name], "offload": offload}


def _algorithm(settings: Settings, facts: Facts) -> Facts:
    name = settings.get("context_parallel_strategy") or "all_gather"
    if facts["cp"] > 1 and name not in _ALGORITHMS:
        raise NoCounterpartError(f"context_parallel_strategy `{name}` has no counterpart in a plan")
    return {"cp_algorithm": _ALGORITHMS[name]} if facts["cp"] > 1 else {}


def _model(settings: Settings, facts: Facts) -> Facts:
    """The model by its name, or by its sizes."""
    if (base := str(settings.get("base_config") or "base.yml").rpartition("/")[2]) != "base.yml":
        raise NoCounterpartError(f"base_config: the rest is in {base}: give that file instead, and --arg OPTION=VALUE")
    if (kind := settings.get("attention_type") or "global") not in _ATTENTIONS:
        raise NoCounterpartError(f"attention_type `{kind}` has windows or chunks that are not read")
    name = settings.get("model_name") or "default"
    sizes = [size for size in (*_DEFAULTS, *_LATENT, *_EXPERTS) if size in settings]
    if name != "default":
        if settings.get("override_model_config") and sizes:
            raise NoCounterpartError(f"override_model_config: {sizes[0]} is another than that of {name}")
        return {"model_name": name}
    if not sizes:
        return {}
    stated = {f"model.{field}": size for field, size in _by_sizes(settings, facts).items()}
    if (rope := settings.get("rope_type") or "default") != "default":
        stated |= noted(facts, f"rope_type {rope}: its scaling is not read, positions are taken as those of rope_theta")
    return stated


def _by_sizes(settings: Settings, facts: Facts) -> Facts:
    """Fields of the model."""
    if (block := settings.get("decoder_block") or "llama2") not in _BLOCKS:
        raise NoCounterpartError(f"decoder_block `{block}` is not read by its sizes: give model_name",
                                 hint=f"known: {', '.join(_BLOCKS)}")  # fmt: skip
    given = {option: settings.get(option) or default for option, default in _DEFAULTS.items()}
    gated = len(settings.get("mlp_activations") or ("silu", "linear")) > 1
    out: Facts = {
        "hidden": given["base_emb_dim"], "layers": given["base_num_decoder_layers"],
        "heads": given["base_num_query_heads"], "kv_heads": given["base_num_kv_heads"],
        "ffn_hidden": given["base_mlp_dim"], "vocab": given["vocab_size"],
        "norm_epsilon": given["normalization_layer_epsilon"], "rope_theta": given["rope_max_timescale"],
        "tied_embeddings": bool(settings.get("logits_via_embedding")), "gated_mlp": gated,
        "qkv_bias": bool(settings.get("attention_bias")), "max_positions": facts["workload.seq_len"],
    }  # fmt: skip
    if settings.get("attention_type") == "mla":
        latent = {"kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128}
        latent |= {option: settings[option] for option in _LATENT if settings.get(option)}
        out["mla"] = latent
        del out["kv_heads"]
    else:
        out["head_dim"] = given["head_dim"]
        if settings.get("use_qk_norm"):
            out["qk_norm"] = 2 * given["head_dim"]
    if (experts := settings.get("num_experts") or 1) > 1:
        out["moe"] = _experts(settings, experts, out)
    if modules := settings.get("mtp_num_layers"):
        out["mtp_layers"] = modules
    return out


def _experts(settings: Settings, experts: int, sizes: Facts) -> Facts:
    if settings.get("sparse_matmul") is False and (settings.get("capacity_factor") or -1) <= 0:
        raise NoCounterpartError("sparse_matmul is off: every expert computes every token")
    inner = settings.get("base_moe_mlp_dim") or -1
    dense = settings.get("first_num_dense_layers") or 0
    out: Facts = {
        "experts": experts, "topk": settings.get("num_experts_per_tok") or 1,
        "expert_ffn": inner if inner > 0 else sizes["ffn_hidden"], "shared": settings.get("shared_experts") or 0,
        "router_scores": (scores := settings.get("routed_score_func") or "softmax"),
        "router_normalised": settings.get("decoder_block") != "deepseek" or scores == "sigmoid",
        "choice_bias": bool(settings.get("routed_bias")), "router_scale": settings.get("routed_scaling_factor") or 1.0,
    }  # fmt: skip
    if dense:
        out["moe_layers"] = sizes["layers"] - dense
    if (groups := settings.get("n_routing_groups") or -1) > 1:
        out |= {"groups": groups, "top_groups": settings.get("topk_routing_group")}
    return out


def _prepared(document: Document, arguments: Arguments) -> Document:
    """The document without the options that say nothing with the value that they have."""
    data = {name: given for name, given in document.data.items() if given not in _NOTHING.get(name, ())}
    return replace(document, data=data)


_FLOATS = ("normalization_layer_epsilon", "rope_max_timescale", "routed_scaling_factor", "per_device_batch_size",
           "capacity_factor")  # fmt: skip
_FLAGS = ("logits_via_embedding", "use_qk_norm", "attention_bias", "routed_bias", "sparse_matmul",
          "override_model_config", "optimizer_memory_host_offload")  # fmt: skip
_WORDS = ("model_name", "decoder_block", "attention_type", "rope_type", "routed_score_func", "remat_policy", "dtype",
          "quantization", "opt_type", "context_parallel_strategy", "base_config")  # fmt: skip
_LISTS = ("mlp_activations", "logical_axis_rules")
_KINDS = {**dict.fromkeys(_FLOATS, "float"), **dict.fromkeys(_FLAGS, "bool"), **dict.fromkeys(_WORDS, "str"),
          **dict.fromkeys(_LISTS, "list")}  # fmt: skip
_NUMBERS = tuple(name for name in (*_AXES, "max_target_length", "gradient_accumulation_steps", *_MODEL)
                 if name not in _KINDS)  # fmt: skip
READER = Reader(
    name="maxtext",
    framework="MaxText",
    version="2026.08",
    commit="e591f30c",
    kinds={**dict.fromkeys(_NUMBERS, "int"), **_KINDS},
    entries=(
        states(pp=1, vpp=1, schedule="1f1b", etp=1),
        reads(("tp", "cp", "ep", "dp", "zero", "shard", "sequence_parallel"), (*_AXES, "logical_axis_rules"),
              _degrees),
        reads(("cp_algorithm",), ("context_parallel_strategy",), _algorithm),
        value("workload.seq_len", "max_target_length", 2048),
        reads(("micro_batch", "workload.global_batch"), ("per_device_batch_size", "gradient_accumulation_steps"),
              _batch),
        reads(("recompute", "recompute_modules", "recompute_layers"), ("remat_policy",), _recompute),
        reads(("precision",), ("dtype", "quantization"), _precision),
        reads(("workload.optimizer", "offload"), ("opt_type", "optimizer_memory_host_offload"), _optimizer),
        reads(tuple(f"model.{name}" for name in ("hidden", "layers", "heads", "vocab")), _MODEL, _model),
        reads(("workload.expert_capacity_factor",), ("capacity_factor",),
              lambda given, facts: {"workload.expert_capacity_factor": given["capacity_factor"]}
              if (given.get("capacity_factor") or -1) > 0 else {}),
    ),
    reading=Reading(
        changes={
            r"parameter_memory_host_offload": "weights on the host",
            r"use_(indexer|batch_split_schedule|dpo|multimodal|sft_lora)|engram.*|mhc_.*|compress_ratios":
                "a model or a step that is not read",
            r"pipeline_parallel_layers|num_pipeline_(repeats|microbatches)|num_layers_per_pipeline_stage":
                "a pipeline that is not read",
            r"trainable_position_size|use_iota_embed": "learned positions",
            r"interleave_moe_layer_step|inhomogeneous_layer_cycle_interval": "layers that differ",
            r"(vision_encoder|audio)_.*|use_(vision|audio).*|.*_for_(vit|audio)": "a model of images or sound",
            r"weight_sparsity_.*|attention_sink|share_kv_projections|num_kv_shared_layers|moba":
                "another kind of layers",
            r"enable_rampup_batch_size": "a batch that changes",
            r"shard_optimizer_over_data|custom_mesh.*|mesh_axes|data_sharding|override_logical_axis_rules|"
            r"use_2d_fsdp_sharding|use_ring_of_experts": "shards by other rules",
            r"weight_dtype|grad_dtype|mu_dtype|activations_in_float32": "weights, gradients, moments or activations of "
                                                                       "another type",
            r"enable_diloco|enable_streaming_diloco": "replicas that differ between synchronisations",
            r"global_parameter_scale|vocab_size_per_layer_input|use_double_wide_mlp|use_post_(attn|ffw)_norm|"
            r"use_untrainable_positional_embedding|use_mrope|attn_logits_soft_cap|final_logits_soft_cap":
                "a model that is not read",
            r"attention": "another attention kernel",
            r"dropout_rate": "dropout",
            r"num_vocab_tiling": "logits in tiles",
        },
        # Options of base.yml that concern checkpoints, data, tiles of kernels, inference, logs, or a policy of
        # recomputation that is refused; those that another option switches on; norm_topk_prob (layers/moe.py: the
        # softmax is over the chosen experts already).
        harmless=(
            r"^((enable_(checkpoint|continuous|orbax|auto|multi|goodput|pathways|llm|single|prefix|nnx|dropout|tensor|"
            r"wandb|padding|mhc_lite)|hf_|grain_|w[io]_tile_|sa_|kv_quant|quantize_kv|replicate_quant|(act|bwd)_quant|"
            r"quantization_local|inference_|prefill_|compile_|skip_|base_output|dcn_bandwidth|mla_(naive|qk_head)|"
            r"beta_(fast|slow)|scan_|gradient_clip|float32_|logits_dot|cast_logits|fused_(qkv|mlp)|"
            r"use_(qwix|manual_quant|custom_sort|ragged|gather_mosaic|tokamax|gmm|sliced_mla|truncation|sft$|"
            r"sequential_layers|splash|max_logit|chunked_prefill|qk_norm_in_gdn|jax_splash|mhc_pallas)|"
            r"optimize_mesh|train_image|image_placeholder)|(force_unroll|reuse_example_batch|constant_bound_config|"
            r"matmul_precision|te_comm_gemm_overlap|mlp_activations_limit|normalize_embedding_logits|megablox|"
            r"norm_topk_prob|causal_block_size|sliding_window_size|chunk_attn_window_size|decoder_layer_input|context|(moe_)?mlpw[io](_[01])?|"
            r"(query|key|value|kv|qkv|out|query_wa|kv_wa)_proj|mla_(q|kv)|param_scan_axis|hardware|shard_mode|"
            r"sharding_tolerance|num_slices|packing|max_segments_per_seq|steps|local_rope_(max_timescale|proportion)|"
            r"(original_)?max_position_embeddings|rope_(linear_scaling_factor|use_scale|min_timescale|factor|interleave|"
            r"truncate|attention_scaling|pairwise)|mscale|remove_size_one_mesh_axis_from_type|dtype_mm|"
            r"max_num_images_per_example|force_q_layout)$)"
        ),
    ),
    prepared=_prepared,
    compared=lambda facts: Compared("any", {"fix": {"pp": 1, "etp": 1, "offload": facts["offload"]}}),
)  # fmt: skip
