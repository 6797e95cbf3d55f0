"""Axolotl's YAML.

Source: axolotl 067b021c (2026-07-24), src/axolotl/utils/schemas/config.py, peft.py, training.py and fsdp.py.
"""

from __future__ import annotations

from collections.abc import Mapping

from .. import adapter_choices
from ..argv import Arguments
from ..option_lists import option_list
from ..options import Facts, NoCounterpartError, Settings
from ..reading import Reading, pass_over
from . import accelerator_block, engine_files, preferences
from . import transformers_family as family
from .reader import Reader, reads, value

# Experts in the type of the other frozen weights, as plans have them.
_EXPERTS = "quantize_moe_experts"
_LORA = ("adapter", "lora_r", "lora_target_modules", "lora_target_linear", "load_in_4bit", "load_in_8bit", _EXPERTS)
_DEGREES = ("dp_shard_size", "dp_replicate_size", "tensor_parallel_size", "context_parallel_size",
            "sequence_parallel_degree")  # fmt: skip


def _lora(settings: Settings, facts: Facts) -> Facts:
    """`lora` and `qlora` name the adapters, load_in_*bit the weights beside them."""
    adapter = settings.get("adapter")
    if not adapter:
        return {}
    if adapter not in ("lora", "qlora"):
        raise NoCounterpartError(f"adapter `{adapter}` has no counterpart in a plan", hint="known: lora, qlora")
    if not settings.get("lora_r"):
        raise NoCounterpartError("adapter: lora_r is not given")
    modules = settings.get("lora_target_modules") or []
    listed = modules if isinstance(modules, list) else [modules]
    linear = settings.get("lora_target_linear") is True
    if not linear and not listed:
        raise NoCounterpartError("adapter: neither lora_target_modules nor lora_target_linear picks modules")
    word = {} if isinstance(modules, list) else {"all-linear": adapter_choices.BY_PEFT}  # peft takes no list of it
    option, words = ("lora_target_linear", {"": adapter_choices.BY_NAME}) if linear else ("lora_target_modules", word)
    base = family.base_dtype(settings.get("load_in_4bit"), settings.get("load_in_8bit"))
    if settings.get(_EXPERTS) and base == "bf16":
        raise NoCounterpartError(f"{_EXPERTS}: goes with load_in_4bit or load_in_8bit")
    return family.adapters(settings["lora_r"], option, [*listed, *([""] if linear else [])], base, words,
                           mixed=linear)


def _degrees(settings: Settings, facts: Facts) -> Facts:
    """Degrees of its device mesh. Context parallelism is that of ring-flash-attn; FSDP shards over dp_shard_size."""
    given = {name: settings.get(name) or 1 for name in _DEGREES}
    tp, cp = given["tensor_parallel_size"], max(given["context_parallel_size"], given["sequence_parallel_degree"])
    out: Facts = {"tp": tp, "cp": cp} | ({"cp_algorithm": "ring"} if cp > 1 else {})
    out |= {"replicas": given["dp_replicate_size"]}
    if settings.get("dp_shard_size"):
        out["dp"] = given["dp_shard_size"] * given["dp_replicate_size"]
    return out


_PLACES = "device_map"
# The model that gives the shapes, often base_model once more; fields of its config, of which positions change no step.
_SHAPES, _FIELDS, _ALIAS = "base_model_config", "overrides_of_model_config", "model_config"
_POSITIONS = {"rope_scaling", "rope_theta", "rope_parameters", "max_position_embeddings"}


def _modernise(arguments: Arguments) -> None:
    if arguments.settings.get(_PLACES) == "auto":  # the default of one process; of several each takes its own GPU
        del arguments.settings[_PLACES]
    if arguments.settings.get(_SHAPES) == arguments.settings.get("base_model"):
        arguments.settings.pop(_SHAPES, None)
    if _ALIAS in arguments.settings:
        arguments.replace(_ALIAS, {_FIELDS: arguments.settings[_ALIAS]})
    if isinstance(fields := arguments.settings.get(_FIELDS), Mapping) and _POSITIONS.issuperset(fields):
        del arguments.settings[_FIELDS]
    preferences.of_axolotl(arguments)
    if not arguments.settings.get("plugins"):  # which have options of their own
        pass_over(arguments, "Axolotl", option_list("axolotl")[0].options, READER.reading)
    family.modernise(arguments, block_alone=True)


READER = Reader(
    name="axolotl",
    framework="Axolotl",
    version="0.13",
    commit="067b021c",
    kinds={
        **family.SHARDING_KINDS, accelerator_block.OPTION: "any", preferences.LEARNS: "any",
        "base_model": "str", "sequence_len": "int", "micro_batch_size": "int",
        "gradient_accumulation_steps": "int", "gradient_checkpointing": "any", "bf16": "any", "fp16": "any",
        "fp8": "any", "bfloat16": "any", "float16": "any", "optimizer": "str", "adapter": "str", "lora_r": "int",
        "lora_target_modules": "any", "lora_target_linear": "bool", "load_in_4bit": "bool", "load_in_8bit": "bool",
        "sample_packing": "bool", "batch_flattening": "any",
        "attn_implementation": "any", "eager_attention": "any", "rl": "any", "rl_adapter_ref_model": "any",
        "reward_model": "any", _PLACES: "any", _SHAPES: "str", _FIELDS: "any", _ALIAS: "any",
        _EXPERTS: "bool", **dict.fromkeys(_DEGREES, "int"),
    },
    entries=(
        family.PLAIN,
        family.sharding(),
        accelerator_block.synchronisation(),
        reads(("tp", "cp", "cp_algorithm", "dp"), _DEGREES, _degrees),
        value("model_name", "base_model"),
        family.length("sequence_len", ("sample_packing", "batch_flattening"), 512),
        family.batch("micro_batch_size", 1),
        family.precision("fp8", "bfloat16", "float16", default="bf16"),
        family.recompute(),
        family.optimizer("optimizer"),
        family.kernels("attn_implementation", "eager_attention"),
        reads(("workload.lora",), _LORA, _lora),
        preferences.entry(),
        family.weights(lambda settings: settings.get("bf16", "auto") is not False and "bf16"),
    ),
    reading=Reading(
        changes={
            **family.CHANGES,
            r"rl|dpo_.*|trl(\..*)?|vllm(\..*)?|nemo_gym_.*|reward_model|process_reward_model|ebft(\..*)?": 
                "preferences or rewards: passes beside those of a training step",
            r"qat(\..*)?": "weights that are quantised while they learn",
            r"batch_size": "another way to give the batch: give micro_batch_size and gradient_accumulation_steps",
            r"auto_find_batch_size": "a batch that follows the memory",
            r"selective_checkpointing(\..*)?": "recomputation by operator",
            r"activation_offloading|layer_offloading": "activations or weights on the host",
            r"unfrozen_parameters|peft_layers.*|peft_layer_replication|lora_modules_to_save|lora_target_parameters|"
            r"peft_trainable_token_indices|lora_(rank|alpha)_pattern|relora.*|peft_use_dora|lisa_.*":
                "parts of the model that learn",
            r"llama4_linearized_experts|dsv4_.*|model_quantization_config.*|gptq":
                "weights in another form",
            r"tiled_mlp.*": "blocks in tiles",
            rf"{_PLACES}|gpu_memory_limit|max_memory": "layers put on devices by their memory",
            r"use_onebitllms|unsloth_.*": "another program for the layers",
            r"num_labels": "another head than that of the vocabulary",
            r"use_vllm": "a server that generates",
            r"base_model_config|overrides_of_model_config(\..*)?|overrides_of_model_kwargs(\..*)?":
                "another model than base_model",
            r"expert_parallel_size|.*pipeline_parallel.*": "a degree that is not read",
            r"(image_size|image_resize_algorithm|processor_type)": "a model of images",
        },
        harmless=(
            family.FSDP_HARMLESS
            + r"|^(lora_(alpha|dropout|fan_in_fan_out|model_dir|on_cpu|\w+_kernel)|peft_(use_rslora|"
            r"autocast_adapter_dtype|ensure_weight_tying|init_lora_weights)|qlora_sharded_model_loading|bnb_config_kwargs|"
            r"orpo_alpha|simpo_gamma|rl_beta|fp8_enable_fsdp_float8_all_gather|plugins|cut_cross_entropy|"
            r"sample_packing_\w+|pad_to\w*|group_by_length|strict|datasets|test_datasets|"
            r"val_set_size|num_dataset_shards_to_save|max_steps|gc_steps|flash_(attention|optimum)|"
            r"flash_attn_(cross_entropy|d512|fuse_mlp|rms_norm)|(sdp|xformers|flex|sage)_attention|"
            r"flex_attn_compile_kwargs|fused_attn_kernel|tf32|is_\w+_derived_model|"
            r"is_preprocess|model_type|default_system_message|remove_unused_columns|resize_token_embeddings_to_32x|"
            r"(mean_resizing|reinit)_(embeddings|weights)|streaming\w*|pretraining_sample_concatenation|"
            r"dataloader_(drop_last|prefetch_factor)|local_rank|world_size|device|early_stopping_patience|"
            r"use_(pose|kernels|ray|mlflow|comet|trackio|eaft|wandb|tensorboard)|neftune_noise_alpha|noisy_embedding_alpha|"
            r"experimental_skip_move_to_device|min_sample_len|revision_of_model|"
            r"gradient_checkpointing_kwargs|max_grad_norm|multipack_real_batches|curriculum_sampling|mlflow_tracking_uri|"
            r"comet_\w+|trackio_space_id|swanlab_\w+|low_cpu_mem_usage|greater_is_better|heads_k_stride|ring_attn_func|"
            r"experts_implementation|excess_length_strategy|fp32_norm(s|_classes)|optim_args|adam\w*|generate_max_len|"
            r"include_tkps|(cut|chunked)_cross_entropy\w*|ddp|dataset_shard_\w+|float32|embedding_lr\w*|"
            r"embeddings_skip_upcast|gc_collect_steps|generation_\w+|gradio_\w+|lm_eval_\w+|loftq_\w+|peft|"
            r"loraplus_lr_\w+|(dion|qgalore|eaft)_\w+|pose_\w+|preprocess_iterable|pretrain_multipack_\w+|rope_scaling|"
            r"processor_kwargs|resources_per_worker|sdpa_varlen|scaling_softmax\w*|type_of_model|cls_model_config|train_on_(inputs|eot|last_step_only)|quantization|freeze_mm_modules)(\.|$)"
        ),
        exclusive=(*family.EXCLUSIVE, ("lora_target_linear", _EXPERTS)),
        modernise=_modernise,
    ),
    beside=engine_files.beside,
    document=family.loaded,
    compared=lambda facts: family.compared(facts, "axolotl", splits=True),
)  # fmt: skip
