"""transformers' TrainingArguments and TRL's configs, as the YAML of a recipe.

Sources: transformers 5.13, training_args.py; TRL 1.0, trainer/sft_config.py (max_length, packing) and
trainer/model_config.py (use_peft, lora_*, load_in_*bit, torch_dtype).
"""

from __future__ import annotations

from collections.abc import Mapping

from ....profiles.io.document import Document
from .. import adapter_choices
from ..argv import Arguments
from ..options import Facts, Settings
from ..reading import Reading
from . import accelerator_block, commands, engine_files, own_names, own_programs, preferences, qlora
from . import transformers_family as family
from .reader import Reader, reads, value

# A program of Python, or TRL's own command; --output_dir is an option of all TrainingArguments.
_COMMAND = commands.of_program(
    r"\S+\.py |(^|\s)(python3?|torchrun|deepspeed|accelerate launch)( -\S+)* -m \S+ |(^|\s)trl (sft|dpo|reward|grpo) ",
    ("per_device_train_batch_size", "output_dir", "source_max_len"))
_LORA = ("use_peft", "lora_r", "lora_target_modules", "load_in_4bit", "load_in_8bit")


def _lora(settings: Settings, facts: Facts) -> Facts:
    """ModelConfig: rank 16, the modules that peft has for the family unless named."""
    if not settings.get("use_peft"):
        return {}
    base = family.base_dtype(settings.get("load_in_4bit"), settings.get("load_in_8bit"))
    modules = settings.get("lora_target_modules") or ""
    option = "lora_target_modules" if modules else "use_peft"
    words = {"all-linear": adapter_choices.BY_PEFT, "": adapter_choices.DEFAULT}
    return family.adapters(settings.get("lora_r", 16), option, modules, base, words)


# transformers 5.24: gradient_checkpointing is the older name. 4.36: the number per GPU counts before that per device.
_RECOMPUTES, _OLDER_MICRO = "activation_checkpointing", "per_gpu_train_batch_size"
# Options of the loader of a model that leave its shapes as they are.
_OF_LOADER = ("torch_dtype", "dtype", "attn_implementation", "use_cache", "trust_remote_code", "revision",
              "low_cpu_mem_usage")  # fmt: skip
_KINDS = {
    **family.SHARDING_KINDS, accelerator_block.OPTION: "any", preferences.LEARNS: "any",
    "model_name_or_path": "str", "max_length": "int", "max_seq_length": "int",
    "model_max_length": "int", "gradient_checkpointing": "bool", "per_device_train_batch_size": "int",
    "gradient_accumulation_steps": "int", "bf16": "any", "fp16": "any", "optim": "str",
    "use_peft": "bool", "lora_r": "int", "lora_target_modules": "any",
    "load_in_4bit": "bool", "load_in_8bit": "bool", "packing": "bool", "padding_free": "bool", "dtype": "str",
    "torch_dtype": "str", "attn_implementation": "any", "loss_type": "any", "reward_funcs": "any",
    "num_generations": "any", "num_iterations": "any", "precompute_ref_log_probs": "any",
    "max_prompt_length": "int", "max_completion_length": "int", _RECOMPUTES: "bool", _OLDER_MICRO: "int",
    "model_init_kwargs": "any", "vllm_mode": "any", **qlora.KINDS, **own_names.KINDS,
}  # fmt: skip
_CHANGES = {
    **family.CHANGES,
    r"auto_find_batch_size": "a batch that follows the memory",
    r"beta|loss_type|rpo_alpha|max_prompt_length|max_completion_length|num_generations|temperature|reward_.*|"
    r"use_vllm|vllm_.*|"
    r"(force_use_)?ref_model.*|kl_coef|num_ppo_epochs|response_length|simpo_gamma|desirable_weight":
        "preferences or rewards: passes beside those of a training step",
    r"parallelism_config(\..*)?": "degrees in another block: give them in the accelerate file",
    r"device_map": "layers on GPUs by their memory",
    r"split_batches": "per_device_train_batch_size counts the sequences of all ranks",
    r"use_dora|lora_modules_to_save|lora_target_parameters": "another kind of adapters",
    r"reference_free": "pairs without their reference, whose passes depend on the release",
    r"use_mxfp4|quantization_config(\..*)?": "weights in another form",
    r"model_init_kwargs(\..*)?|config_(name|overrides)": "another model than model_name_or_path",
    r"activation_offloading": "saved activations on the host",
    r"teacher_.*": "a teacher beside the model that learns",
    r"(vision_(tower|tokenizer)|mm_|tune_(mm|vision)|pretrain_(mm|vision)|freeze_(mm|vision)|unfreeze_mm|image_(fold|"
    r"token)_len|max_slice_nums).*": "the program adds a model of images to the one of model_name_or_path",
    r"lora_enable": "adapters of modules that the program picks",
}
_HARMLESS = (
    family.FSDP_HARMLESS + r"|^(dataset\w*|pad_to\w*|gradient_checkpointing_kwargs|per_device_eval_batch_size|"
    r"do_(train|eval|predict)|average_tokens_across_devices|remove_unused_columns|overwrite_output_dir|"
    r"lazy_preprocess|image_(aspect_ratio|grid_pinpoints)|group_by_modality\w*|llm_type|"
    r"lora_(alpha|dropout|bias)|bnb_\w+|use_bnb_nested_quant|tf32|full_determinism|include_\w+|"
    r"label_(names|smoothing\w*)|neftune_noise_alpha|use_rslora|lora_task_type|batch_eval_metrics|optim_args|columns|"
    r"per_gpu_eval_batch_size|half_precision_backend|dispatch_batches|fp16_opt_level|mp_parameters|tpu_num_cores|tools|"
    r"ddp_static_graph|disable_dropout|use_logits_to_keep|trackio_\w+|packing_strategy|padding_value|streaming|use_legacy_prediction_loop|use_ipex|"
    r"activation_checkpointing_kwargs|(use_)?flash_attn(_2)?|use_flash_attention(_2)?|"
    r"gradient_checkpointing_use_reentrant|sanity_check|ignore_bias_buffers|"
    r"benchmarks|callbacks|system_prompt|assistant_only_loss|"
    r"completion_only_loss|num_train_epochs|max_steps|max_grad_norm|dataloader_\w+|ignore_data_skip|disable_tqdm|"
    r"greater_is_better|length_column_name|group_by_length|skip_memory_metrics|ray_scope|"
    r"(model|code)_revision|wandb_\w+|use_cache|low_cpu_mem_usage|config|tracker|tags|experiment_name|workspace)(\.|$)"
)


def _modernise(arguments: Arguments) -> None:
    qlora.renamed(arguments)
    own_names.renamed(arguments)
    given = arguments.settings
    if _RECOMPUTES in given:
        arguments.replace(_RECOMPUTES, {"gradient_checkpointing": given[_RECOMPUTES]})
    _blocks(arguments)
    if not given.get("use_peft") and (named := next((name for name in _LORA[1:3] if name in given), "")):
        arguments.notes.append(f"{named} is without use_peft: TRL trains all weights")
    preferences.of_trl(arguments)
    if (tokens := preferences.length_of_answers(arguments.settings)) is not None:
        for name in ("max_prompt_length", "max_completion_length"):
            del arguments.settings[name]
        arguments.settings["max_length"] = tokens
    family.modernise(arguments)


def _blocks(arguments: Arguments) -> None:
    """Drops the block of the loader where it leaves the model as it is, and names layers that recompute otherwise."""
    loader = arguments.settings.get("model_init_kwargs")
    if isinstance(loader, Mapping) and set(loader) <= {*_OF_LOADER} and loader.get("attn_implementation") != "eager":
        del arguments.settings["model_init_kwargs"]
    for name in ("activation_checkpointing_kwargs", "gradient_checkpointing_kwargs"):
        block = arguments.settings.get(name)
        given = block if isinstance(block, Mapping) else {}
        if given.get("offload") or given.get("every_n_layers", 1) != 1:
            arguments.gap(name, "recomputes a part of the layers, or keeps what it saves on the host")


def _prepared(document: Document, arguments: Arguments) -> Document:
    found = own_programs.unfolded(commands.prepared(document, arguments), arguments, _KINDS)
    return accelerator_block.expanded(found, arguments)


READER = Reader(
    name="hf-trainer",
    framework="transformers",
    version="5.13",
    commit="00349ae8",
    kinds=_KINDS,
    entries=(
        family.PLAIN,
        family.sharding(),
        accelerator_block.synchronisation(),
        value("model_name", "model_name_or_path"),
        family.length("max_length", ("packing", "padding_free"), None, ("max_seq_length", "model_max_length")),
        family.batch(also=(_OLDER_MICRO,)),
        family.precision(),
        family.recompute(),
        family.optimizer(),
        family.kernels("attn_implementation"),
        reads(("workload.lora",), _LORA, _lora),
        reads(("workload.lora", "workload.seq_len"), (*qlora.KINDS, *own_names.KINDS), lambda settings, facts: {}),
        preferences.entry(),
        family.weights(lambda settings: settings.get("dtype") or settings.get("torch_dtype")),
    ),
    reading=Reading(changes=_CHANGES, harmless=_HARMLESS, exclusive=family.EXCLUSIVE, modernise=_modernise,
                    forked="TRL"),
    prepared=_prepared,
    beside=engine_files.beside,
    document=commands.from_command("training with --per_device_train_batch_size", _COMMAND, family.loaded),
    commands=True,
    compared=family.compared,
)
