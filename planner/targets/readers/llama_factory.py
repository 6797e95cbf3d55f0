"""LLaMA-Factory's YAML.

Source: LLaMA-Factory ff6d4d12 (2026-08-18), src/llamafactory/hparams/finetuning_args.py, model_args.py, data_args.py,
training_args.py; model/model_utils/checkpointing.py: layers recompute unless disable_gradient_checkpointing is set.
"""

from __future__ import annotations

import re

from ....profiles.io.document import Document
from .. import adapter_choices
from ..argv import Arguments
from ..options import Facts, NoCounterpartError, Settings
from ..reading import Reading
from . import accelerator_block, commands, engine_files, own_programs, preferences
from . import transformers_family as family
from .reader import Reader, reads, value

_FREEZES, _FREEZES_TEXT = "freeze_vision_tower", "freeze_language_model"
# With the options in a YAML the command has none of its own.
_COMMAND = commands.of_program(r"(^|[\s/])(llamafactory-cli train|\S*train(_bash)?\.py) ", ("stage", "finetuning_type"))
_METHOD = "quantization_method"
_LORA = ("finetuning_type", "lora_rank", "lora_target", "quantization_bit", _METHOD, "freeze_trainable_layers")
_STAGES = ("pt", "sft")
_OF_PREFERENCES = re.compile(r"(pref|dpo|kto|orpo|simpo|ppo)_|ref_model|reward_model")


def _trained(settings: Settings, facts: Facts) -> Facts:
    """`lora` (the default), `freeze` (its last layers) or `full`."""
    kind = settings.get("finetuning_type", "lora")
    bits = settings.get("quantization_bit")
    if bits not in (None, 4, 8):
        raise NoCounterpartError(f"quantization_bit {bits} has no counterpart in a plan", hint="known: 4, 8")
    if bits and (method := str(settings.get(_METHOD, "bnb"))) not in ("bnb", "bitsandbytes"):
        raise NoCounterpartError(f"{_METHOD} `{method}`: weights in another form", hint="known: bnb, bitsandbytes")
    if kind == "full":
        return {}
    if kind == "freeze" and settings.get("freeze_trainable_layers", 2) > 0:
        return {"workload.train_layers": settings.get("freeze_trainable_layers", 2)}
    if kind != "lora":
        raise NoCounterpartError(f"finetuning_type `{kind}` has no counterpart in a plan",
                                 hint="known: full, lora, freeze of the last layers")  # fmt: skip
    base = family.base_dtype(bits == 4, bits == 8)
    # finetuning_args.py freezes towers by default, and find_all_linear_modules leaves out what is frozen.
    frozen = settings.get(_FREEZES, True)
    words = {"all": adapter_choices.OF_LANGUAGE if frozen else adapter_choices.BY_NAME}
    return family.adapters(settings.get("lora_rank", 8), "lora_target", settings.get("lora_target", "all"), base, words)


def _frozen(settings: Settings, facts: Facts) -> Facts:
    """Parts of a model that sees: towers are frozen by default. Adapters take no part in it."""
    if settings.get("finetuning_type", "lora") != "full":
        return {}
    return {"workload.freeze_tower": settings.get(_FREEZES, True),
            "workload.freeze_language": settings.get(_FREEZES_TEXT, False)}  # fmt: skip


_KINDS = {
    _FREEZES: "bool", _FREEZES_TEXT: "bool",
    **family.SHARDING_KINDS, accelerator_block.OPTION: "any", preferences.LEARNS: "any",
    "model_name_or_path": "str", "cutoff_len": "int", "finetuning_type": "str",
    "stage": "str", "lora_rank": "int", "lora_target": "any", "quantization_bit": "int", _METHOD: "str",
    "freeze_trainable_layers": "int", "per_device_train_batch_size": "int", "gradient_accumulation_steps": "int",
    "disable_gradient_checkpointing": "bool", "bf16": "any", "fp16": "any", "fp8": "any", "pure_bf16": "bool",
    "optim": "str", "packing": "bool",
    "neat_packing": "bool", "flash_attn": "any", "pref_loss": "any", "dpo_loss": "any", "ref_model": "any",
    "freeze_trainable_modules": "any",
}  # fmt: skip


def _prepared(document: Document, arguments: Arguments) -> Document:
    found = own_programs.unfolded(commands.prepared(document, arguments), arguments, _KINDS)
    return accelerator_block.expanded(found, arguments)


def _stage(settings: Settings, facts: Facts) -> Facts:
    stage = settings.get("stage", "sft")
    if stage not in _STAGES:
        raise NoCounterpartError(f"stage `{stage}` has passes beside those of a training step",
                                 hint="known: pt, sft, rm, dpo of pairs")  # fmt: skip
    return {}


def _modernise(arguments: Arguments) -> None:
    given = arguments.settings
    if given.get("stage", "sft") in _STAGES:  # hparams/parser.py reads no option of another stage
        for name in [name for name in (*given, *arguments.unknown) if _OF_PREFERENCES.match(name)]:
            given.pop(name, None)
            arguments.unknown.pop(name, None)
    if given.get("freeze_trainable_modules") == "all":  # the default
        del given["freeze_trainable_modules"]
    preferences.of_factory(arguments)
    family.modernise(arguments)


READER = Reader(
    name="llama-factory",
    framework="LLaMA-Factory",
    version="0.9.5",
    commit="ff6d4d12",
    kinds=_KINDS,
    entries=(
        family.PLAIN,
        family.sharding(),
        accelerator_block.synchronisation(),
        reads((), ("stage",), _stage),
        value("model_name", "model_name_or_path"),
        family.length("cutoff_len", ("packing", "neat_packing"), 2048),
        family.batch(),
        family.precision("fp8", pure="pure_bf16"),
        family.recompute(unless="disable_gradient_checkpointing"),
        family.optimizer(),
        family.kernels("flash_attn"),
        reads(("workload.lora", "workload.train_layers"), (*_LORA, _FREEZES), _trained),
        reads(("workload.freeze_tower", "workload.freeze_language"), (_FREEZES, _FREEZES_TEXT), _frozen),
        preferences.entry(),
        family.weights(lambda settings: settings.get("pure_bf16")),
    ),
    reading=Reading(
        changes={
            **family.CHANGES,
            r"mixture_of_depths": "layers that skip tokens",
            r"use_kt|kt_.*": "experts on the host",
            r"use_(mca|megatron_bridge|hyper_parallel)|megatron_bridge_args.*|hyper_parallel_.*":
                "another engine: its degrees are in its own block",
            r"use_(galore|apollo|badam|adam_mini|muon)": "an optimizer whose states have another size",
            r"use_(llama_pro|dora)|additional_target|freeze_extra_modules|freeze_trainable_modules":
                "another part of the model that learns",
            r"use_asft_loss": "a frozen reference beside the training of answers",
            r"use_unsloth_gc": "saved activations on the host",
            r"(?!freeze_vision_tower$).*vision_tower.*": "a model of images",
            r"shift_attn": "attention in groups",
            r"auto_find_batch_size": "a batch that follows the memory",
            r"pref_.*|ref_model.*|reward_model.*|ppo_.*|simpo.*": "preferences or rewards",
            r"use_unsloth": "another program for the layers",
        },
        harmless=(
            family.FSDP_HARMLESS
            + r"|^(template|dataset\w*|max_samples|preprocessing_\w+|overwrite_\w+|val_size|plot_loss|"
            r"do_\w+|num_train_epochs|max_steps|per_device_eval_batch_size|enable_thinking|model_revision|"
            r"use_(v1_kernels|reentrant_gc|swanlab|rslora|fast_tokenizer|kv_cache)|loraplus_lr_\w+|"
            r"lora_(alpha|dropout)|streaming|buffer_size|mix_strategy|interleave_probs|tool_format|default_system|"
            r"train_on_prompt|rope_scaling|pissa_\w+|(galore|apollo|badam|oft)_\w+|module_dropout|reserved_label_len|"
            r"use_audio_in_video|model_max_length|resources_per_worker|block_diag_attn|preserve_thinking|"
            r"placement_strategy|visual_inputs|train_from_scratch|do_sample|top_[pk]|num_beams|"
            r"max_length|max_new_tokens|(repetition|length)_penalty|crop_to_patches|(ld|asft|eaft)_alpha|quantization_(type|device_map)|double_quantization|upcast_(layernorm|lmhead_output)|"
            r"fp8_enable_fsdp_float8_all_gather|infer_dtype|export_\w+|max_grad_norm|fp8_backend|dataloader_\w+|include_\w+|predict_with_generate|"
            r"compute_(accuracy|dtype)|early_stopping_steps|low_cpu_mem_usage|offload_folder|swanlab_\w+|ray_\w+|"
            r"create_new_adapter|tf32|(vllm|sglang)_\w+|image_do_pan_and_scan|moe_aux_loss_coef|label_\w+|"
            r"(image|video|audio)_\w+|freeze_multi_modal_projector|"
            r"remove_unused_columns|group_by_length|disable_shuffling|gradient_checkpointing(_kwargs)?)(\.|$)"
        ),
        modernise=_modernise,
        forked="LLaMA-Factory",
    ),
    prepared=_prepared,
    beside=engine_files.beside,
    document=commands.from_command("llamafactory-cli train", _COMMAND),
    commands=True,
    compared=lambda facts: family.compared(facts, "llama-factory"),
)  # fmt: skip
