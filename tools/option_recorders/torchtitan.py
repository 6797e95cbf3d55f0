"""Options of torchtitan: the fields of its config dataclasses, and the models that it registers."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

from .lines import of_dataclass

MADE_FROM = "the dataclasses of torchtitan/config and torchtitan/trainer.py"
_FAMILIES = ("llama3", "qwen3", "deepseek_v3", "flux")
# Block -> modules of torchtitan, and classes in them whose Config it may be; newer releases have data of other classes.
_OF_DATA = {
    "dataloader": (("hf_datasets.text_datasets", "HuggingFaceTextDataLoader"),
                   ("models.flux.flux_datasets", "FluxDataLoader")),
    "tokenizer": (("components.tokenizer", "HuggingFaceTokenizer"),
                  ("models.flux.tokenizer", "FluxTokenizerContainer")),
}  # fmt: skip


def record(source: Path | None) -> list[str]:
    """The lines for a checkout of torchtitan, None for the installed package."""
    if source is not None:
        sys.path.insert(0, str(source))
    import torch
    from torchtitan.config import CompileConfig, ParallelismConfig, TrainingConfig
    from torchtitan.trainer import Trainer

    flux = importlib.import_module("torchtitan.models.flux.trainer").FluxTrainer
    fields = (*dataclasses.fields(Trainer.Config), *dataclasses.fields(flux.Config))
    lines = list(dict.fromkeys(f"{field.name} any" for field in fields))
    for prefix, kind in (("training", TrainingConfig), ("parallelism", ParallelismConfig), ("compile", CompileConfig)):
        lines += of_dataclass(kind, f"{prefix}.")
    schedules = f"{'|'.join(_schedules())} # torch {torch.__version__.partition('+')[0]}, pipelining/schedules.py"
    lines = [f"{line} {schedules}" if line == "parallelism.pipeline_parallel_schedule str" else line for line in lines]
    lines += _of_data()
    for family in _FAMILIES:
        module = importlib.import_module(f"torchtitan.models.{family}")
        if family == "llama3" and "converters" in inspect.signature(module.model_registry).parameters:
            lines.append("converters any # torchtitan/models/llama3/__init__.py model_registry")
        lines += _models(family, module)
    return lines


def _models(family: str, module: ModuleType) -> Iterator[str]:
    """`model name layers hidden parameters` for each flavor that is not for debugging."""
    import torch

    (flavors,) = (getattr(module, name) for name in dir(module) if name.endswith("_configs"))
    for flavor in flavors:
        if "debug" in flavor:
            continue
        config = module.model_registry(flavor).model
        with torch.device("meta"):
            parameters = sum(parameter.numel() for parameter in config.build().parameters())
        layers = config.layers if hasattr(config, "layers") else (*config.double_blocks, *config.single_blocks)
        width = config.dim if hasattr(config, "dim") else config.hidden_size
        yield f"model {family}/{flavor} {len(layers)} {width} {parameters}"


def _of_data() -> list[str]:
    """The fields of data loaders and tokenizers, where the release has these classes."""
    lines: dict[str, None] = {}
    for block, places in _OF_DATA.items():
        modules = [(importlib.import_module(f"torchtitan.{module}"), name) for module, name in places]
        if all(hasattr(module, name) for module, name in modules):
            for module, name in modules:
                lines |= dict.fromkeys(of_dataclass(getattr(module, name).Config, f"{block}."))
    return list(lines)


def _schedules() -> list[str]:
    """The schedules that torch builds by name."""
    from torch.distributed.pipelining.schedules import get_schedule_class

    names = ("GPipe", "1F1B", "Interleaved1F1B", "LoopedBFS", "InterleavedZeroBubble", "ZBVZeroBubble", "DualPipeV")
    return [name for name in names if get_schedule_class(name)]
