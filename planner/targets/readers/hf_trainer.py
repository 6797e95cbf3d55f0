"""transformers' TrainingArguments and TRL's configs, as the YAML of a recipe.

Sources: transformers 5.13, training_args.py; TRL 1.0, trainer/sft_config.py (max_length, packing) and
trainer/model_config.py (use_peft, lora_*, load_in_*bit, torch_dtype).
"""

from __future__ import annotations

from ..options import Facts, Settings
from ..reading import Reading
from . import transformers_family as family
from .reader import Reader, reads, value

_LORA = ("use_peft", "lora_r", "lora_target_modules", "load_in_4bit", "load_in_8bit")


def _lora(settings: Settings, facts: Facts) -> Facts:
    """ModelConfig: rank 16, all linear layers of the attention and the feed-forward block unless named."""
    if not settings.get("use_peft"):
        return {}
    base = family.base_dtype(settings.get("load_in_4bit"), settings.get("load_in_8bit"))
    option = "lora_target_modules"
    return family.adapters(settings.get("lora_r", 16), option, settings.get(option) or "all-linear", base)


_KINDS = {
    **family.SHARDING_KINDS, "model_name_or_path": "str", "max_length": "int", "max_seq_length": "int",
    "model_max_length": "int", "gradient_checkpointing": "bool", "per_device_train_batch_size": "int",
    "gradient_accumulation_steps": "int", "bf16": "any", "fp16": "any", "fp8": "any", "bfloat16": "any",
    "float16": "any", "optim": "str", "use_peft": "bool", "lora_r": "int", "lora_target_modules": "any",
    "load_in_4bit": "bool", "load_in_8bit": "bool", "packing": "bool", "padding_free": "bool", "dtype": "str",
    "torch_dtype": "str",
}  # fmt: skip
_CHANGES = {
    r"auto_find_batch_size": "a batch that follows the memory",
    r"beta|loss_type|rpo_alpha|max_prompt_length|max_completion_length|num_generations|temperature|reward_.*|"
    r"use_vllm|vllm_.*|"
    r"ref_model.*|kl_coef|num_ppo_epochs|response_length|simpo_gamma|desirable_weight":
        "preferences or rewards: passes beside those of a training step",
    r"parallelism_config(\..*)?": "degrees in another block: give them in the accelerate file",
    r"torch_compile": "another program for the layers",
    r"use_dora|use_rslora|lora_modules_to_save|lora_task_type": "another kind of adapters",
    r"use_mxfp4|quantization_config(\..*)?": "weights in another form",
    r"activation_offloading": "saved activations on the host",
    r"teacher_.*": "a teacher beside the model that learns",
}
_HARMLESS = (
    family.FSDP_HARMLESS + r"|^(attn_implementation|dataset|pad_to|use_liger|"
    r"gradient_checkpointing_kwargs|per_device_eval|do_(train|eval|predict)|eval|average_tokens|remove_unused|"
    r"overwrite|lora_(alpha|dropout|bias)|bnb_|use_bnb|tf32|full_determinism|include_|label|neftune|benchmarks|"
    r"callbacks|system|assistant_only|completion_only|num_train|max_steps|max_grad|weight|dataloader|ignore_data|"
    r"disable_tqdm|greater|length_column|group_by|skip|accelerator_config|ray|auto_|strategy|config|model_revision|"
    r"code_|wandb|chat|trl|jit|use_cache|deepspeed_|trust|output|low_cpu)"
)
READER = Reader(
    name="hf-trainer",
    framework="transformers",
    version="5.13",
    commit="00349ae8",
    kinds=_KINDS,
    entries=(
        family.PLAIN,
        family.sharding(),
        value("model_name", "model_name_or_path"),
        family.length("max_length", ("packing", "padding_free"), None, ("max_seq_length", "model_max_length")),
        family.batch(),
        family.precision(),
        family.recompute(),
        family.optimizer(),
        reads(("workload.lora",), _LORA, _lora),
        family.weights(lambda settings: settings.get("dtype") or settings.get("torch_dtype")),
    ),
    reading=Reading(changes=_CHANGES, harmless=_HARMLESS, modernise=family.modernise),
    beside=family.beside,
    compared=family.compared,
)
