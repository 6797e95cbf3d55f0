"""Options of a NeMo 2 recipe: the classes that emitted recipes use, by dotted paths."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import os
import runpy
from collections.abc import Iterator
from pathlib import Path

from .lines import kind_of, of_dataclass, values_in
from .megatron_bridge import CONSUMERS

MADE_FROM = "the classes of nemo.collections.llm, nemo.lightning and Megatron-Core that a recipe has"
# The script that imports NeMo without a GPU.
_PARSER = Path(__file__).resolve().parents[2] / "planner" / "targets" / "nemo" / "parser.py"
_CALLBACK = "trainer.callbacks.MegatronCommOverlapCallback"
# Options that hold an object or a function, which a recipe writes as code.
_CODE = ("data.tokenizer", "optim.lr_scheduler", "optim.no_weight_decay_cond", "optim.scale_lr_cond", "trainer.logger",
         "trainer.profiler", "model.tokenizer", "model.model_transform", "model.config.activation_func",
         "model.config.transformer_layer_spec", "log", "resume", f"{_CALLBACK}.tp_comm_overlap_cfg")  # fmt: skip
# Block of NeMo -> that of Bridge in CONSUMERS.
_SECTIONS = {"model.config": "model", "optim.config": "optimizer", "trainer.plugins": "mixed_precision",
             "trainer.strategy.ddp": "ddp"}  # fmt: skip


def record(source: Path | None) -> list[str]:
    """The lines for the NeMo and the core of this Python."""
    os.environ.setdefault("LOCAL_WORLD_SIZE", "8")
    runpy.run_path(str(_PARSER))["load"]()
    from megatron.core.distributed import DistributedDataParallelConfig
    from megatron.core.optimizer import OptimizerConfig
    from nemo import lightning as nl
    from nemo.collections import llm
    from nemo.collections.llm.gpt.model.llama import Llama31Config
    from nemo.lightning.pytorch.callbacks.megatron_comm_overlap import MegatronCommOverlapCallback

    base = importlib.import_module("nemo.collections.llm.gpt.model.base")
    vars(base)["GenerationConfig"] = object  # a hint of GPTConfig, which is imported for type checkers only
    lines = {name: "code" for name in _CODE}
    for name, kinds in {
        "model": (llm.GPTModel,), "model.config": (Llama31Config, llm.GPTConfig), "trainer": (nl.Trainer,),
        "trainer.strategy": (nl.MegatronStrategy,), "trainer.strategy.ddp": (DistributedDataParallelConfig,),
        "trainer.plugins": (nl.MegatronMixedPrecision,), _CALLBACK: (MegatronCommOverlapCallback,),
        "data": (llm.MockDataModule,), "optim": (nl.MegatronOptimizerModule,), "optim.config": (OptimizerConfig,),
    }.items():  # fmt: skip
        for kind in kinds:
            lines = {**dict(_options(kind, name)), **lines}
        words = {word for kind in kinds for word in (kind.__name__, *_exported(llm, kind))}
        lines[name] = f"class {'|'.join(sorted(words))}"
    lines["trainer.callbacks"] = "class Callbacks"
    return [f"{name} {kind}" for name, kind in (lines | dict(_consumed(lines))).items()]


def _exported(collection: object, kind: type) -> Iterator[str]:
    """The subclasses of a class of models or of their configs that the collection names."""
    every = ((name, value) for name, value in vars(collection).items() if isinstance(value, type))
    return (name for name, value in every if kind.__name__.startswith("GPT") and issubclass(value, kind))


def _options(kind: type, prefix: str) -> Iterator[tuple[str, str]]:
    """(option, kind) of each field of a dataclass, or of each parameter of another class."""
    if dataclasses.is_dataclass(kind):
        for line in of_dataclass(kind, f"{prefix}."):
            name, _, rest = line.partition(" ")
            yield name, rest
        return
    for name, parameter in inspect.signature(kind.__init__).parameters.items():  # type: ignore[misc]
        if name != "self" and parameter.kind not in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL):
            yield f"{prefix}.{name}", kind_of(parameter.annotation)


def _consumed(lines: dict[str, str]) -> Iterator[tuple[str, str]]:
    """The options whose words a file of Megatron-Core reads."""
    core = Path(str(importlib.import_module("megatron.core").__file__)).parents[2]
    bridge = {section: block for block, section in _SECTIONS.items()}
    for name, (kind, file, candidates) in CONSUMERS.items():
        section, _, field = name.partition(".")
        option = f"{bridge[section]}.{field}"
        if option in lines:
            values = values_in(core / file, candidates)
            yield option, f"{kind} {values} # {file}" if values else kind
