"""MaxText's YAML, by the table of its target. A file states what differs from base.yml.

Source: MaxText e591f30c (2026-08-22), as there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ....profiles.io.document import Document
from ....profiles.io.reader import read_document
from ..argv import Arguments
from ..import_format import Compared
from ..maxtext.model import OF_MODEL, VOCAB, twin_of
from ..maxtext.options import BATCH, TABLE
from ..model_names import known_model
from ..options import Facts
from ..reading import Reading
from .maxtext_commands import from_script
from .reader import Reader

# Options that say nothing with these values: those of base.yml, and kernels that keep no scores.
_NOTHING: Mapping[str, tuple[Any, ...]] = {
    "weight_dtype": ("float32",), "grad_dtype": ("float32",), "mu_dtype": ("", "float32"),
    "attention": ("autoselected", "flash", "cudnn_flash_te", "cudnn_flash_jax"), "dropout_rate": (0.0,),
    "global_parameter_scale": (1,), "num_vocab_tiling": (1,), "vocab_size_per_layer_input": (0,),
    "attn_logits_soft_cap": (0.0,), "final_logits_soft_cap": (0.0,),
}  # fmt: skip

# Options of a pipeline, which do nothing without one.
_OF_PIPELINES = ("num_layers_per_pipeline_stage", "num_pipeline_microbatches", "num_pipeline_repeats",
                 "pipeline_parallel_layers")  # fmt: skip


def _prepared(document: Document, arguments: Arguments) -> Document:
    """The document without the options that say nothing with the value that they have; a model of the catalogue by its
    name, where its blocks are not read by their sizes."""
    data = {name: given for name, given in document.data.items() if given not in _NOTHING.get(name, ())}
    if not any(data.get(f"{where}_pipeline_parallelism", 1) not in (1, None) for where in ("ici", "dcn")):
        data = {name: given for name, given in data.items() if name not in _OF_PIPELINES}
    if (spec := twin_of(data)) is not None:
        rows = data.get(VOCAB, spec.vocab)
        beside = "" if rows == spec.vocab else f", with its vocabulary of {spec.vocab:,} for {rows:,}"
        arguments.notes.append(f"the sizes are those of {spec.name}, which is priced{beside}")
        data = {name: given for name, given in data.items() if name not in OF_MODEL} | {"model_name": spec.name}
    return replace(document, data=data)


_FLOATS = ("normalization_layer_epsilon", "rope_max_timescale", "routed_scaling_factor", BATCH, "capacity_factor")
_FLAGS = ("logits_via_embedding", "normalize_embedding_logits", "use_qk_norm", "attention_bias", "routed_bias",
          "sparse_matmul", "override_model_config", "optimizer_memory_host_offload", "packing", "scan_layers",
          "rope_use_scale", "use_iota_embed")  # fmt: skip
_WORDS = ("model_name", "decoder_block", "attention_type", "rope_type", "routed_score_func", "remat_policy", "dtype",
          "quantization", "opt_type", "context_parallel_strategy", "base_config", "hardware", "attention",
          "weight_dtype")  # fmt: skip
_LISTS = ("mlp_activations", "logical_axis_rules")
_KINDS = {**dict.fromkeys(_FLOATS, "float"), **dict.fromkeys(_FLAGS, "bool"), **dict.fromkeys(_WORDS, "str"),
          **dict.fromkeys(_LISTS, "list")}  # fmt: skip


def _compared(facts: Facts) -> Compared:
    """Layouts of its target, or any without a pipeline where the target plans no such model or training."""
    known = known_model(str(facts.get("model_name", "")))
    dense = not {"model.moe", "model.mla"} & set(facts) and (
        known is None or not (known.is_moe or known.mixers or len(known.kinds) > 1))
    plain = (facts["precision"], facts["workload.optimizer"], facts["offload"]) == ("bf16", "adamw", "none")
    if dense and plain:
        return Compared("maxtext")
    return Compared("any", {"fix": {"pp": 1, "etp": 1, "offload": facts["offload"]}})


READER = Reader(
    name="maxtext",
    framework="MaxText",
    version="2026.08",
    commit="e591f30c",
    kinds={name: _KINDS.get(name, "int") for name in sorted(TABLE.options)},
    entries=TABLE.entries,
    reading=Reading(
        changes={
            r"parameter_memory_host_offload": "weights on the host",
            r"use_(indexer|batch_split_schedule|dpo|multimodal|sft_lora)|engram.*|mhc_.*|compress_ratios":
                "a model or a step that is not read",
            r"pipeline_parallel_layers|num_pipeline_(repeats|microbatches)|num_layers_per_pipeline_stage":
                "a pipeline that is not read",
            r"interleave_moe_layer_step|inhomogeneous_layer_cycle_interval": "layers that differ",
            r"audio_.*|use_(vision|audio).*|.*_for_audio": "a model of images or sound",
            r"weight_sparsity_.*|attention_sink|share_kv_projections|num_kv_shared_layers|moba":
                "another kind of layers",
            r"base_num_heads": "of the base.yml of 2023, whose sizes and activations differ from those of today",
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
        # The encoder of images that use_multimodal switches on (models/models.py).
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
            r"matmul_precision|te_comm_gemm_overlap|mlp_activations_limit|megablox|"
            r"norm_topk_prob|causal_block_size|sliding_window_size|chunk_attn_window_size|decoder_layer_input|context|"
            r"(moe_)?mlpw[io](_[01])?|"
            r"(query|key|value|kv|qkv|out|query_wa|kv_wa)_proj|mla_(q|kv)|param_scan_axis|hardware|shard_mode|"
            r"sharding_tolerance|steps|local_rope_(max_timescale|proportion)|"
            r"(original_)?max_position_embeddings|rope_(linear_scaling_factor|min_timescale|factor|interleave|"
            r"truncate|attention_scaling|pairwise)|mscale|remove_size_one_mesh_axis_from_type|dtype_mm|"
            r"max_num_images_per_example|force_q_layout|vision_encoder_block|\w+_for_vit)$)"
        ),
    ),
    prepared=_prepared,
    document=from_script(lambda path, text, given: read_document(path, text)),
    commands=True,
    base=("base_config",),
    compared=_compared,
)  # fmt: skip
