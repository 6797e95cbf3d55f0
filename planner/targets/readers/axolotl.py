"""Axolotl's YAML.

Source: axolotl 067b021c (2026-07-24), src/axolotl/utils/schemas/config.py, peft.py, training.py and fsdp.py.
"""

from __future__ import annotations

from ..options import Facts, NoCounterpartError, Settings
from ..reading import Reading
from . import transformers_family as family
from .reader import Reader, reads, value

_LORA = ("adapter", "lora_r", "lora_target_modules", "lora_target_linear", "load_in_4bit", "load_in_8bit")
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
    linear = "all" if settings.get("lora_target_linear") else None
    targets = linear or settings.get("lora_target_modules") or "all"
    base = family.base_dtype(settings.get("load_in_4bit"), settings.get("load_in_8bit"))
    return family.adapters(settings["lora_r"], "lora_target_modules", targets, base)


def _degrees(settings: Settings, facts: Facts) -> Facts:
    """Degrees of its device mesh. Context parallelism is that of ring-flash-attn; FSDP shards over dp_shard_size."""
    given = {name: settings.get(name) or 1 for name in _DEGREES}
    tp, cp = given["tensor_parallel_size"], max(given["context_parallel_size"], given["sequence_parallel_degree"])
    out: Facts = {"tp": tp, "cp": cp} | ({"cp_algorithm": "ring"} if cp > 1 else {})
    out |= {"replicas": given["dp_replicate_size"]}
    if settings.get("dp_shard_size"):
        out["dp"] = given["dp_shard_size"] * given["dp_replicate_size"]
    return out


READER = Reader(
    name="axolotl",
    framework="Axolotl",
    version="0.13",
    commit="067b021c",
    kinds={
        **family.SHARDING_KINDS, "base_model": "str", "sequence_len": "int", "micro_batch_size": "int",
        "gradient_accumulation_steps": "int", "gradient_checkpointing": "any", "bf16": "any", "fp16": "any",
        "fp8": "any", "bfloat16": "any", "float16": "any", "optimizer": "str", "adapter": "str", "lora_r": "int",
        "lora_target_modules": "any", "lora_target_linear": "bool", "load_in_4bit": "bool", "load_in_8bit": "bool",
        "sample_packing": "bool", "batch_flattening": "any", **dict.fromkeys(_DEGREES, "int"),
    },
    entries=(
        family.PLAIN,
        family.sharding(),
        reads(("tp", "cp", "cp_algorithm", "dp"), _DEGREES, _degrees),
        value("model_name", "base_model"),
        family.length("sequence_len", ("sample_packing", "batch_flattening"), 512),
        family.batch("micro_batch_size", 1),
        family.precision(default="bf16"),
        family.recompute(),
        family.optimizer("optimizer"),
        reads(("workload.lora",), _LORA, _lora),
        family.weights(lambda settings: settings.get("bf16", "auto") is not False and "bf16"),
    ),
    reading=Reading(
        changes={
            r"rl|trl(\..*)?|vllm(\..*)?|nemo_gym_.*|reward_model|process_reward_model|ebft(\..*)?": 
                "preferences or rewards: passes beside those of a training step",
            r"qat(\..*)?": "weights that are quantised while they learn",
            r"batch_size": "another way to give the batch: give micro_batch_size and gradient_accumulation_steps",
            r"auto_find_batch_size": "a batch that follows the memory",
            r"selective_checkpointing(\..*)?": "recomputation by operator",
            r"activation_offloading|layer_offloading": "activations or weights on the host",
            r"unfrozen_parameters|peft_layers.*|peft_layer_replication|lora_modules_to_save|lora_target_parameters|"
            r"relora.*|peft_use_dora|lisa_.*": "parts of the model that learn",
            r"quantize_moe_experts|llama4_linearized_experts|dsv4_.*|model_quantization_config.*|gptq":
                "weights in another form",
            r"tiled_mlp.*": "blocks in tiles",
            r"base_model_config|overrides_of_model_config(\..*)?|overrides_of_model_kwargs(\..*)?|rope_scaling.*":
                "another model than base_model",
            r"expert_parallel_size|.*pipeline_parallel.*": "a degree that is not read",
            r"(image_size|image_resize_algorithm|processor_type)": "a model of images",
        },
        harmless=(
            family.FSDP_HARMLESS + r"|^(lora_(?!r$|target|modules)|peft_|qlora|bnb_|plugins|cut_cross|sample_packing_|"
            r"eval_|pad_to|group_by|train_on|strict|datasets|test_datasets|val_|num_|max_steps|evals_|saves_|logging|"
            r"warmup|cosine|weight|learning|lr_|gc_steps|flash_|sdp_|xformers|flex|eager|attn_|sage|torch_compile|"
            r"tf32|is_|model_type|tokenizer|chat_template|special_tokens|tokens|added|default_system|remove_unused|"
            r"resize|mean_resizing|reinit|shuffle|streaming|pretraining|skip_|dataloader|ddp_|local_rank|world|device|"
            r"early|load_best|use_|unsloth|neftune|experimental_skip|eta_min|min_sample|accelerator_config|"
            r"revision_of|fused_attn|orpo|simpo|trust|hf_|gradient_checkpointing_kwargs|loss_|max_grad|"
            r"multipack|curriculum|mlflow|comet|trackio|swanlab|low_cpu|auto_resume|resume|save_|do_|greater|"
            r"heads_k_stride|ring_attn|experts_implementation|fix_|eot|excess|noisy|axolotl|fp32_norm|fp8_|"
            r"optim_|adam|rl_beta|generate|include_|dynamic|torchao|merge|ptq|quantization|freeze_mm)"
        ),
        modernise=family.modernise,
    ),
    beside=family.beside,
    compared=family.compared,
)  # fmt: skip
