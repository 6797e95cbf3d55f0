"""Options of Megatron-Bridge: the fields of the dataclasses in its ConfigContainer."""

from __future__ import annotations

import dataclasses
import importlib
import os
import runpy
import typing
from collections.abc import Sequence
from itertools import chain
from pathlib import Path

from . import megatron
from .lines import of_dataclass, values_in

MADE_FROM = "the dataclasses of megatron/bridge/training/config.py"
# The script that imports Bridge without the packages that a config does not need.
_PARSER = Path(__file__).resolve().parents[2] / "planner" / "targets" / "megatron_bridge" / "parser.py"
_CONFIG = "megatron/core/transformer/transformer_config.py"
# Fields that take free strings -> kind, the file of Megatron Core that reads them, and the values that it may accept.
CONSUMERS = {
    "model.cp_comm_type": ("str+", _CONFIG, "p2p all_gather a2a a2a+p2p"),
    "model.recompute_modules": ("str+", _CONFIG, megatron.CONSUMERS["--recompute-modules"][1]),
    "model.offload_modules": ("str+", _CONFIG, megatron.CONSUMERS["--offload-modules"][1]),
    "model.normalization": ("str", _CONFIG, "LayerNorm RMSNorm"),
    "model.position_embedding_type": (
        "str", "megatron/core/models/gpt/gpt_model.py", "learned_absolute rope mrope yarn none"),
    "model.fp8_recipe": ("str", _CONFIG, "tensorwise delayed mxfp8 blockwise custom"),
    "mixed_precision.fp8_recipe": ("str", _CONFIG, "tensorwise delayed mxfp8 blockwise custom"),
    "mixed_precision.fp8": ("str", "megatron/core/fp8_utils.py", "e4m3 hybrid"),
    "optimizer.optimizer": ("str", "megatron/core/optimizer/__init__.py", "adam sgd lion muon dist_muon"),
    "ddp.data_parallel_sharding_strategy": (
        "str", "megatron/core/distributed/distributed_data_parallel_config.py",
        "no_shard optim optim_grads optim_grads_params",
    ),
}  # fmt: skip

# Block -> modules of Bridge and classes in them, of which any may be the block. Other blocks have the class that the
# hint of ConfigContainer names first. MLAModelProvider has the fields of GPTModelProvider and more.
BLOCKS = {
    "model": (
        ("models.mla_provider", "MLAModelProvider"), ("models.hybrid.hybrid_provider", "HybridModelProvider"),
        ("models.qwen_vl.qwen3_vl_provider", "Qwen3VLModelProvider"),
        ("models.qwen_vl.qwen3_vl_provider", "Qwen3VLMoEModelProvider"),
        ("diffusion.models.wan.wan_provider", "WanModelProvider"),
    ),
    "dataset": (
        ("training.config", "GPTDatasetConfig"), ("data.builders.mock_vlm_sft", "MockVLMSFTDatasetConfig"),
        ("diffusion.data.wan.wan_energon_datamodule", "WanDatasetConfig"),
    ),
}  # fmt: skip

# Fields that take an object of a class from elsewhere -> the file that names it.
OBJECTS = {"model.vision_config": "megatron/bridge/models/qwen_vl/qwen3_vl_provider.py"}


def record(source: Path | None) -> list[str]:
    """The lines for a checkout of Megatron-Bridge with its submodule, Megatron-LM."""
    if source is None:
        raise SystemExit("megatron-bridge: give a checkout by --source, because its recipes are in no wheel")
    core = source / "3rdparty" / "Megatron-LM"
    config = runpy.run_path(str(_PARSER))["load"](f"{source / 'src'}{os.pathsep}{core}")
    activations = importlib.import_module("megatron.bridge.utils.activation_map").ACTIVATION_FUNC_MAP
    lines = [f"model.activation_func str {'|'.join(activations)} # megatron/bridge/utils/activation_map.py"]
    for name, hint in typing.get_type_hints(config.ConfigContainer).items():
        lines += _section(name, hint)
    for name, (kind, file, candidates) in CONSUMERS.items():
        values = values_in(core / file, candidates)
        lines.append(f"{name} {kind} {values} # {file}" if values else f"{name} {kind}")
    lines += [f"{name} code # {file}" for name, file in OBJECTS.items()]
    # A line with the values of an option replaces the line of its bare field.
    with_source = {line.split()[0]: line for line in lines if " # " in line}
    return list(dict.fromkeys(with_source.get(line.split()[0], line) for line in lines))


def _section(name: str, hint: object) -> list[str]:
    """A field of ConfigContainer: its classes and their fields, if it is a block."""
    kinds = [kind for kind in (typing.get_args(hint) or (hint,)) if dataclasses.is_dataclass(kind)]
    if name == "peft" or not kinds:  # classes for `peft` may be anywhere
        return [] if name.startswith("_") else [f"{name} any"]
    recipes = importlib.import_module("megatron.bridge.training.mixed_precision").MIXED_PRECISION_RECIPES
    words = [*sorted({below.__name__ for kind in kinds for below in _with_subclasses(kind)}),  # type: ignore[arg-type]
             *(recipes if name == "mixed_precision" else ())]  # fmt: skip
    modules = BLOCKS.get(name, ())
    blocks = [getattr(importlib.import_module(f"megatron.bridge.{module}"), block) for module, block in modules]
    return [f"{name} class {'|'.join(words)}", *_joined(blocks or kinds[:1], f"{name}.")]  # type: ignore[arg-type]


def _joined(blocks: Sequence[type], prefix: str) -> list[str]:
    """The fields that any of the classes has: with the kind that the first of them gives it, and its values together
    with those of others. A class that names none does not free them, since the core still checks them."""
    fields: dict[str, str] = {}
    for line in chain.from_iterable(of_dataclass(block, prefix) for block in blocks):
        name, kind, *values = line.split(" ")
        _, kind, *known = fields.get(name, line).split(" ")
        every = dict.fromkeys("|".join(known + values).split("|")) if known else ()
        fields[name] = " ".join([name, kind, *(["|".join(every)] if every else [])])
    return list(fields.values())


def _with_subclasses(kind: type) -> list[type]:
    return [kind, *chain.from_iterable(map(_with_subclasses, kind.__subclasses__()))]
