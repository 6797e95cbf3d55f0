"""Megatron-Bridge: a Python module with a recipe. Running the module trains it."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from ....cost_models.arrays import Mask
from ....cost_models.problem import Problem
from ....cost_models.specs.model import ModelSpec
from ....cost_models.specs.workload import Workload
from ...space.rules import Columns, Rule
from ..argv import Arguments
from ..base import Target, Trainer
from ..config_modules import read_config_module, read_modules
from ..documents import read_config
from ..framework_parser import FrameworkParser, machine
from ..launch_config import LaunchConfig
from ..launchers.base import Job, torchrun
from ..megatron import layer_inputs, offload
from ..megatron.cannot_build import cannot_build
from ..megatron.environment import environment
from ..megatron.layer_patterns import pattern_text
from ..megatron.target import CHECKOUT as MEGATRON_CHECKOUT
from ..megatron.target import checkout as megatron_checkout
from ..megatron.target import rules
from ..option_lists import OptionList
from ..options import Settings
from ..reading import Reading
from ..setup import Setup
from . import hybrid, peft, vision, wan
from .data_kinds import TEXT, DataKind
from .fields import MODELS, renamed
from .options import BLOCK_SPEC, TABLE, conflicts
from .recipes import BASES, CHANGES, HARMLESS, PRICES, modernise
from .vision_classes import CLASSES, VARIANT_SPEC

_N = "megatron-bridge"
MAIN_FILE = "bridge_plan.py"
# The variable that names a checkout of Megatron-Bridge.
CHECKOUT = "MEGATRON_BRIDGE_PATH"
_MODULE = """\
\"\"\"{header}

Not from the plan, edit or give as `section.field=value` after launch.sh: data (mock data by default), tokenizer,
learning rate, iterations, checkpoints, and initialisation of the model.
\"\"\"

import sys
{standard}
{imports}{data}from {provider_module} import {provider}
{step}from megatron.bridge.training.config import (
    CheckpointConfig,
    ConfigContainer,
    DistributedDataParallelConfig,
{text}    LoggerConfig,
    OptimizerConfig,
{sections}    SchedulerConfig,
    TokenizerConfig,
    TrainingConfig,
)
{text_step}{precision}from megatron.bridge.training.pretrain import pretrain
from megatron.bridge.training.utils.omegaconf_utils import process_config_with_overrides
{specs}{sizes}

def plan() -> ConfigContainer:
    return ConfigContainer(
{blocks}    )


if __name__ == "__main__":
    pretrain(config=process_config_with_overrides(plan(), cli_overrides=sys.argv[1:]), forward_step_func={forward})
"""
# Class -> its module.
_PROVIDERS = {
    **{name: f"megatron.bridge.models.{module}" for name, module in {
        MODELS[False]: "gpt_provider", MODELS[True]: "mla_provider", hybrid.PROVIDER: "hybrid.hybrid_provider",
        **vision.MODULES}.items()},
    wan.PROVIDER: wan.MODULE,
}  # fmt: skip
# Layer spec -> its import.
_SPECS = {
    BLOCK_SPEC: "from megatron.core.models.gpt.gpt_layer_specs import get_gpt_decoder_block_spec\n",
    VARIANT_SPEC: "from megatron.core.models.gpt.experimental_attention_variant_module_specs import (\n"
                  f"    {VARIANT_SPEC},\n)\n",
}  # fmt: skip
_PRECISION = "from megatron.bridge.training.mixed_precision import MixedPrecisionConfig\n"
_CLASSES = {
    "train": "TrainingConfig", "optimizer": "OptimizerConfig", "scheduler": "SchedulerConfig",
    "ddp": "DistributedDataParallelConfig", "dataset": "GPTDatasetConfig", "tokenizer": "TokenizerConfig",
    "rerun_state_machine": "RerunStateMachineConfig", "rng": "RNGConfig", "checkpoint": "CheckpointConfig",
    "logger": "LoggerConfig", "mixed_precision": "MixedPrecisionConfig",
}  # fmt: skip

# Values that are written as code begin with them.
_CODE = ("torch.", *(f"{name}(" for each in CLASSES for name, _ in each.sizes.values()))

# Sections that are left out if they are empty.
_ON_DEMAND = ("rerun_state_machine", "rng")


def _is_needed(section: str, settings: Settings, setup: Setup) -> bool:
    if section in _ON_DEMAND:
        return any(name.startswith(f"{section}.") for name in settings)
    return section != "mixed_precision" or setup.precision != "fp32"


def _data_kind(setup: Setup) -> DataKind:
    return wan.DATA if wan.denoises(setup) else vision.data_kind(setup) if vision.sees(setup) else TEXT


def _others(setup: Setup) -> Settings:
    """Fields that every recipe needs and no plan holds: a run on mock data until the user names other data."""
    return {
        "train.train_iters": 1000, "optimizer.lr": 3e-4, "optimizer.min_lr": 3e-5, "optimizer.weight_decay": 0.1,
        "scheduler.lr_decay_style": "cosine", "scheduler.lr_warmup_iters": 100, **_data_kind(setup).fields,
        "tokenizer.tokenizer_type": "NullTokenizer",
        "tokenizer.vocab_size": setup.model.vocab, "tokenizer.use_tokenizer_vocab_size": True,
        "logger.log_interval": 10,
    }  # fmt: skip


def _text(value: Any) -> str:
    """A value as Python: dtypes by name, long patterns of 0 and 1 as runs."""
    if isinstance(value, str):
        return value if value.startswith(_CODE) or value in _SPECS else f'"{value}"'
    if isinstance(value, list) and len(value) > 8 and set(value) <= {0, 1}:
        return pattern_text(value).strip("()").replace("*", " * ").replace("+", " + ")
    if isinstance(value, list) and value and isinstance(value[0], str):
        return "[" + ", ".join(f'"{word}"' for word in value) + "]"
    return repr(value)


def _block(name: str, kind: str, settings: Settings) -> str:
    fields = {key.partition(".")[2]: value for key, value in settings.items() if key.startswith(f"{name}.")}
    lines = "".join(f"            {key}={_text(value)},\n" for key, value in fields.items())
    return f"        {name}={kind}(\n{lines}        ),\n" if fields else f"        {name}={kind}(),\n"


def _module(setup: Setup, header: tuple[str, ...]) -> str:
    settings = {**TABLE.write(setup), **_others(setup)}
    provider, data = str(settings.pop("model", MODELS[False])), str(settings.pop("dataset", _CLASSES["dataset"]))
    blocks = _block("model", provider, settings)
    for name, section in {**_CLASSES, "dataset": data}.items():
        if _is_needed(name, settings, setup):
            blocks += _block(name, section, settings)
    kind = _data_kind(setup)
    return _MODULE.format(
        header="\n".join(header), provider=provider, blocks=blocks,
        provider_module=_PROVIDERS[provider],
        standard="from functools import partial\n" if BLOCK_SPEC in blocks else "",
        imports="import torch\n" if "=torch." in blocks else "",
        data=kind.data, sizes=kind.sizes, step=kind.step, text_step=kind.training_step, text=kind.config,
        forward=kind.forward,
        specs="".join(text for spec, text in _SPECS.items() if spec in blocks),
        sections="".join(f"    {_CLASSES[name]},\n" for name in _ON_DEMAND if f"        {name}=" in blocks),
        precision=_PRECISION if "MixedPrecisionConfig" in blocks else "",
    )  # fmt: skip


def job(setup: Setup, header: tuple[str, ...], options: OptionList | None) -> Job:
    """Writes bridge_plan.py with a function `plan`, and the command that trains it."""
    kind = _data_kind(setup)
    return Job(
        name=f"{setup.model.name}-megatron-bridge", title=str(setup.layout), header=header, num_nodes=setup.num_nodes,
        gpus_per_node=setup.gpus_per_node, files={MAIN_FILE: _module(setup, header)},
        command=f'{torchrun(setup.num_nodes, setup.gpus_per_node)}  "$here/{MAIN_FILE}"',
        environment=environment(setup, _N),
        notes=(*setup.model.assumptions, *kind.notes), example=kind.example,
    )  # fmt: skip


def cannot(model: ModelSpec, workload: Workload, options: OptionList | None) -> list[str]:
    """One sentence per part of the model and its training without a field."""
    if model.diffusion is not None:
        return wan.cannot(model, workload)
    reasons = cannot_build(hybrid.with_usual_chunks(model), workload, options)
    out = [text.replace("pretrain_gpt.py", "its pretrain").replace("pretrain_hybrid.py", hybrid.PROVIDER)
           for text in (*reasons, *vision.cannot_see(model))]  # fmt: skip
    if model.learned_positions not in (0, workload.seq_len):
        rows = f"{model.learned_positions}, not seq_len {workload.seq_len}"
        out.append(f"model.learned_positions: GPTModelProvider learns as many as seq_length ({rows})")
    return out


def _read(path: str, text: str, options: OptionList) -> Arguments:
    if path.endswith(".py"):
        return read_config_module(path, text, options, "ConfigContainer")
    return read_config(path, text, options)


def _read_together(files: Mapping[str, str], options: OptionList, given: Sequence[str],
                   wanted: frozenset[str]) -> Arguments:  # fmt: skip
    return read_modules(files, options, given, "ConfigContainer", _read, BASES)


def checkout(environment: Mapping[str, str]) -> str | None:
    """The search path of the checkout that MEGATRON_BRIDGE_PATH names, and of the Megatron-LM in its submodule."""
    bridge = Path(environment.get(CHECKOUT, ""))
    core = megatron_checkout({MEGATRON_CHECKOUT: str(bridge / "3rdparty" / "Megatron-LM")})
    is_bridge = (bridge / "src" / "megatron" / "bridge" / "training").is_dir()
    return f"{bridge / 'src'}{os.pathsep}{core}" if is_bridge and core else None


# Ranks of HybridEP on racks, whose GPUs NVLink joins (Megatron-Bridge 067f987d, scripts/performance/utils/utils.py,
# apply_target_topology_environment).
_HYBRIDEP_RANKS = 72


def _ranks_of_experts(columns: Columns, problem: Problem) -> Mask:
    on_racks = problem.domain > problem.gpus_per_node and problem.stack.ep_dispatch == "deduplicated"
    return np.asarray((columns["ep"] <= _HYBRIDEP_RANKS) | (not on_racks))


def _packed(columns: Columns, problem: Problem) -> Mask:
    packs = bool(problem.workload.lengths) and problem.workload.packed
    return np.asarray((columns["micro_batch"] == 1) | (not packs))


_RULES = (
    Rule(f"{_N}: ranks of HybridEP", ("ep",), _ranks_of_experts,
         f"HybridEP sends tokens to {_HYBRIDEP_RANKS} ranks at most on racks, not to ep {{ep}}"),
    # Megatron-Bridge 067f987d, training/config.py:1605.
    Rule(f"{_N}: packed documents", ("micro_batch",), _packed,
         "sequences of packed documents are taken one at a time, not in micro-batches of {micro_batch}"),
)  # fmt: skip
CONFIG = LaunchConfig(
    main_file=MAIN_FILE,
    read=_read,
    read_together=_read_together,
    reading=Reading(older=peft.OPTIONS, changes=CHANGES, harmless=HARMLESS, modernise=modernise),
    table=lambda options: TABLE,
    conflicts=conflicts,
    prices={r"tokenizer\.vocab_size": "the vocabulary", **PRICES},
    import_format=_N,
    parser=FrameworkParser(
        script=Path(__file__).with_name("parser.py"),
        case=lambda files, setup: {"module": files[MAIN_FILE], **machine(files, setup)},
        modules=("torch", "transformers"),
        source=checkout,
    ),
)
TARGET = Target(
    _N,
    "Megatron-Bridge (recipe module)",
    "megatron-core",
    "Megatron-Bridge 51885cf1 (v0.6.0, 2026-08-19), src/megatron/bridge/training/config.py and models/gpt_provider.py",
    stages="layers",
    rules=(*(replace(rule, message=renamed(rule.message)) for rule in rules(_N)), hybrid.RULE, *vision.RULES,
           *wan.RULES, *_RULES),
    axes=offload.axes,
    trainer=Trainer(framework="Megatron-Bridge", config=CONFIG, job=job, cannot_build=cannot, sees_images=True,
                    denoises=True, techniques=layer_inputs.CAN),
)  # fmt: skip
