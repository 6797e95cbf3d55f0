"""Writes the option list of a framework into planner/targets/upstream/: run it with the Python that has the framework.

    python tools/record_upstream.py megatron --source Megatron-LM --version 0.19.0 --commit 5be96267

Lists come from the framework's built parser or dataclasses, never from a search of its text: many options are made.
Values of free-string options come from the file that consumes them, named in the list.
"""

from __future__ import annotations

import argparse
import collections.abc
import dataclasses
import enum
import importlib
import inspect
import os
import re
import runpy
import sys
import typing
from collections.abc import Iterator
from pathlib import Path

FOLDER = Path(__file__).resolve().parent.parent / "planner" / "targets" / "upstream"

# Free strings for the parser; what reads them accepts these. Values that the file does not name are left out.
MEGATRON_CONSUMERS = {
    "--cp-comm-type": ("megatron/core/transformer/transformer_config.py", "p2p all_gather a2a a2a+p2p"),
    "--recompute-modules": (
        "megatron/core/transformer/transformer_config.py",
        "core_attn moe_act layernorm mla_up_proj mlp moe shared_experts gdn_norm_out gdp_in_proj gdp_qkv mhc",
    ),
    "--offload-modules": (
        "megatron/core/transformer/transformer_config.py",
        "attn_norm qkv_linear core_attn attn_proj mlp_norm expert_fc1 moe_act fused_group_mlp gdp_qkv",
    ),
    "--moe-router-load-balancing-type": (
        "megatron/core/transformer/transformer_config.py",
        "aux_loss seq_aux_loss global_aux_loss sinkhorn none",
    ),
}
_KINDS = {"int": "int", "float": "float", "str": "str", "bool": "bool", "None": "str"}


def write(target: str, version: str, commit: str, made_from: str, lines: list[str]) -> Path:
    """Writes one list; a line is `option kind [value|value] [# file]`."""
    path = FOLDER / f"{target}-{version}.txt"
    head = f"# {target} {version}\n# commit {commit}\n# made by tools/record_upstream.py from {made_from}\n"
    path.write_text(head + "".join(f"{line}\n" for line in sorted(lines)), encoding="utf-8")
    return path


def of_parser(parser: argparse.ArgumentParser) -> Iterator[tuple[str, str, list[str]]]:
    """(option, kind, values) of every long option."""
    for action in parser._actions:
        name = getattr(action.type, "__name__", str(action.type))
        kind = "flag" if action.nargs == 0 else _KINDS.get(name, "str")
        if action.nargs in ("*", "+") or (isinstance(action.nargs, int) and action.nargs > 1):
            kind += "+"
        values = [value.name if isinstance(value, enum.Enum) else str(value) for value in action.choices or ()]
        for option in action.option_strings:
            if option.startswith("--") and option != "--help":
                yield option, kind, values


def megatron(source: Path, version: str, commit: str) -> Path:
    import torch
    import typing_extensions

    if sys.version_info < (3, 12):
        typing.override = typing_extensions.override  # type: ignore[attr-defined]  # all of 3.12 that it needs
    torch.cuda.get_device_capability = lambda *args, **kwargs: (9, 0)  # asked for while options are built
    sys.path.insert(0, str(source))
    from megatron.training import arguments

    lines = []
    parser = arguments.add_megatron_arguments(argparse.ArgumentParser(allow_abbrev=False))
    for option, kind, values in of_parser(parser):
        line = f"{option} {kind}"
        if option in MEGATRON_CONSUMERS:
            file, known = MEGATRON_CONSUMERS[option]
            text = (source / file).read_text(encoding="utf-8")
            found = [value for value in known.split() if re.search(f"[\"'`]{re.escape(value)}[\"'`]", text)]
            line += f" {'|'.join(found)} # {file}"
        elif values:
            line += f" {'|'.join(values)}"
        lines.append(line)
    return write("megatron", version, commit, "the parser of megatron/training/arguments.py", lines)


def of_dataclass(kind: type, prefix: str) -> Iterator[str]:
    """Lines for the fields of a config dataclass; a field that is one itself is a block of options."""
    hints = typing.get_type_hints(kind)
    for each in dataclasses.fields(kind):
        if each.name.startswith("_"):
            continue
        yield f"{prefix}{each.name} {_kind(hints[each.name])}"


def _kind(hint: object) -> str:
    arguments = typing.get_args(hint)
    if typing.get_origin(hint) is typing.Literal:
        return f"str {'|'.join(map(str, arguments))}"
    if any(typing.get_origin(each) is collections.abc.Callable for each in arguments):
        return "code"
    if arguments and type(None) in arguments:  # optional
        rest = [each for each in arguments if each is not type(None)]
        return _kind(rest[0]) if len(rest) == 1 else "any"
    if typing.get_origin(hint) in (list, tuple):
        return "any"
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return f"{'int' if issubclass(hint, int) else 'str'} {'|'.join(str(each.value) for each in hint)}"
    names = {int: "int", float: "float", str: "str", bool: "bool"}
    return names.get(hint, "any") if isinstance(hint, type) else "any"


def _schedules() -> list[str]:
    """The schedules that torch builds by name."""
    from torch.distributed.pipelining.schedules import get_schedule_class

    names = ("GPipe", "1F1B", "Interleaved1F1B", "LoopedBFS", "InterleavedZeroBubble", "ZBVZeroBubble", "DualPipeV")
    return [name for name in names if get_schedule_class(name)]


def torchtitan(source: Path | None, version: str, commit: str) -> Path:
    if source is not None:
        sys.path.insert(0, str(source))
    import torch
    from torchtitan.config import CompileConfig, ParallelismConfig, TrainingConfig
    from torchtitan.trainer import Trainer

    lines = [f"{each.name} any" for each in dataclasses.fields(Trainer.Config)]
    for prefix, kind in (("training", TrainingConfig), ("parallelism", ParallelismConfig), ("compile", CompileConfig)):
        lines += of_dataclass(kind, f"{prefix}.")
    schedules = f"{'|'.join(_schedules())} # torch {torch.__version__.partition('+')[0]}, pipelining/schedules.py"
    lines = [f"{line} {schedules}" if line == "parallelism.pipeline_parallel_schedule str" else line for line in lines]
    for family in ("llama3", "qwen3", "deepseek_v3"):
        module = importlib.import_module(f"torchtitan.models.{family}")
        if family == "llama3" and "converters" in inspect.signature(module.model_registry).parameters:
            lines.append("converters any # torchtitan/models/llama3/__init__.py model_registry")
        (flavors,) = (getattr(module, name) for name in dir(module) if name.endswith("_configs"))
        for flavor in flavors:
            if flavor.startswith("debug"):
                continue
            config = module.model_registry(flavor).model
            with torch.device("meta"):
                parameters = sum(each.numel() for each in config.build().parameters())
            lines.append(f"model {family}/{flavor} {len(config.layers)} {config.dim} {parameters}")
    return write("torchtitan", version, commit, "the dataclasses of torchtitan/config and torchtitan/trainer.py", lines)


# Free strings of Bridge's fields, and the file of Megatron Core (or of Bridge) whose text names the values.
_CONFIG = "megatron/core/transformer/transformer_config.py"
BRIDGE_CONSUMERS = {
    "model.cp_comm_type": ("str+", _CONFIG, "p2p all_gather a2a a2a+p2p"),
    "model.recompute_modules": ("str+", _CONFIG, MEGATRON_CONSUMERS["--recompute-modules"][1]),
    "model.offload_modules": ("str+", _CONFIG, MEGATRON_CONSUMERS["--offload-modules"][1]),
    "model.normalization": ("str", _CONFIG, "LayerNorm RMSNorm"),
    "model.fp8_recipe": ("str", _CONFIG, "tensorwise delayed mxfp8 blockwise custom"),
    "mixed_precision.fp8_recipe": ("str", _CONFIG, "tensorwise delayed mxfp8 blockwise custom"),
    "mixed_precision.fp8": ("str", "megatron/core/fp8_utils.py", "e4m3 hybrid"),
    "optimizer.optimizer": ("str", "megatron/core/optimizer/__init__.py", "adam sgd lion muon dist_muon"),
    "ddp.data_parallel_sharding_strategy": (
        "str", "megatron/core/distributed/distributed_data_parallel_config.py",
        "no_shard optim optim_grads optim_grads_params",
    ),
}  # fmt: skip


def megatron_bridge(source: Path, version: str, commit: str) -> Path:
    """`source`: its checkout, with Megatron-LM in 3rdparty as its submodule has it."""
    core = source / "3rdparty" / "Megatron-LM"
    parser = FOLDER.parent / "megatron_bridge" / "parser.py"
    config = runpy.run_path(str(parser))["load"](f"{source / 'src'}{os.pathsep}{core}")
    activations = importlib.import_module("megatron.bridge.utils.activation_map").ACTIVATION_FUNC_MAP
    precisions = importlib.import_module("megatron.bridge.training.mixed_precision").MIXED_PRECISION_RECIPES
    latent = importlib.import_module("megatron.bridge.models.mla_provider").MLAModelProvider
    lines = [f"model.activation_func str {'|'.join(activations)} # megatron/bridge/utils/activation_map.py"]
    for name, hint in typing.get_type_hints(config.ConfigContainer).items():
        kinds = [each for each in (typing.get_args(hint) or (hint,)) if dataclasses.is_dataclass(each)]
        if name == "peft" or not kinds:  # its kinds are wherever a user finds them
            lines += [] if name.startswith("_") else [f"{name} any"]
            continue
        accepted = sorted({kind.__name__ for each in kinds for kind in _with_subclasses(each)})  # type: ignore[arg-type]
        words = [*accepted, *(precisions if name == "mixed_precision" else ())]
        lines.append(f"{name} class {'|'.join(words)}")
        lines += of_dataclass(latent if name == "model" else kinds[0], f"{name}.")  # type: ignore[arg-type]
    for name, (kind, file, known) in BRIDGE_CONSUMERS.items():
        text = (core / file).read_text(encoding="utf-8")
        found = [value for value in known.split() if re.search(f"[\"'`]{re.escape(value)}[\"'`]", text)]
        lines.append(f"{name} {kind} {'|'.join(found)} # {file}" if found else f"{name} {kind}")
    known_better = {line.split()[0]: line for line in lines if " # " in line}
    lines = list(dict.fromkeys(known_better.get(line.split()[0], line) for line in lines))
    return write("megatron-bridge", version, commit, "the dataclasses of megatron/bridge/training/config.py", lines)


def _with_subclasses(kind: type) -> list[type]:
    return [kind, *(each for below in kind.__subclasses__() for each in _with_subclasses(below))]


def deepspeed(source: Path | None, version: str, commit: str) -> Path:
    os.environ["DS_ACCELERATOR"] = "cpu"
    import torch
    from torch.testing._internal.distributed.fake_pg import FakeStore

    torch.distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=8)
    import deepspeed as package
    from deepspeed.module_inject.auto_ep_presets.base import AutoEPConfig
    from deepspeed.runtime import constants
    from deepspeed.runtime.config import DeepSpeedConfig, get_pipeline_config
    from deepspeed.runtime.precision_config import DeepSpeedBF16Config, DeepSpeedFP16Config
    from deepspeed.runtime.tensor_parallel.config import TPTrainingConfig
    from deepspeed.runtime.zero.config import DeepSpeedZeroConfig
    from deepspeed.runtime.zero.offload_config import (
        DeepSpeedZeroOffloadOptimizerConfig,
        DeepSpeedZeroOffloadParamConfig,
    )

    package.comm.init_distributed(dist_backend="fake", auto_mpi_discovery=False, rank=0, world_size=8)
    asked: set[str] = set()

    class Asked(dict):  # type: ignore[type-arg]
        """A config that remembers which keys DeepSpeed asks for: no list of them exists."""

        def get(self, key: str, default: object = None) -> object:
            asked.add(key)
            return super().get(key, default)

        def __getitem__(self, key: str) -> object:
            asked.add(key)
            return super().__getitem__(key)

        def __contains__(self, key: object) -> bool:
            asked.add(str(key))
            return super().__contains__(key)

        def keys(self) -> Asked:  # type: ignore[override]
            return self

        def __copy__(self) -> Asked:
            return self

    DeepSpeedConfig(Asked(train_batch_size=8, bf16={"enabled": True}, zero_optimization={"stage": 1}))
    asked |= {"data_parallel_size", "activation_checkpointing"}  # read in deepspeed/__init__.py and checkpointing.py
    blocks = {
        "zero_optimization": DeepSpeedZeroConfig, "bf16": DeepSpeedBF16Config, "fp16": DeepSpeedFP16Config,
        "zero_optimization.offload_optimizer": DeepSpeedZeroOffloadOptimizerConfig,
        "zero_optimization.offload_param": DeepSpeedZeroOffloadParamConfig, "tensor_parallel": TPTrainingConfig,
    }  # fmt: skip
    lines = [f"{key} {_TOP_LEVEL.get(key, 'any')}" for key in asked if re.fullmatch("[a-z_0-9]+", key)]
    for prefix, kind in blocks.items():
        for name, each in kind.model_fields.items():
            lines.append(f"{prefix}.{each.alias or name} {_kind(each.annotation)}")
    lines += of_dataclass(AutoEPConfig, "expert_parallel.")
    lines += [f"pipeline.{name} any" for name in get_pipeline_config({})]
    lines += [f"optimizer.{name} any" for name in (constants.TYPE, constants.OPTIMIZER_PARAMS, constants.LEGACY_FUSION)]
    lines += [f"scheduler.{name} any" for name in (constants.TYPE, constants.SCHEDULER_PARAMS)]
    return write("deepspeed", version, commit, "the keys that DeepSpeedConfig asks for, and its pydantic blocks", lines)


# Types that DeepSpeed leaves to chance: it multiplies them.
_TOP_LEVEL = dict.fromkeys(("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps",
                            "sequence_parallel_size", "data_parallel_size"), "int")  # fmt: skip


def accelerate(source: Path | None, version: str, commit: str) -> Path:
    from accelerate.commands.config.config_args import ClusterConfig
    from accelerate.commands.launch import launch_command_parser
    from transformers import TrainingArguments

    lines = list(of_dataclass(ClusterConfig, ""))
    for action in launch_command_parser()._actions:
        for prefix in ("fsdp", "parallelism_config"):
            if action.dest.startswith(f"{prefix}_"):
                kind = {int: "int", float: "float"}.get(action.type, "any")  # type: ignore[call-overload]
                values = f" {'|'.join(map(str, action.choices))}" if action.choices else ""
                if action.dest == "parallelism_config_cp_comm_strategy":
                    values = " allgather|alltoall # accelerate/utils/dataclasses.py TorchContextParallelConfig"
                block = "fsdp_config" if prefix == "fsdp" else prefix
                lines.append(f"{block}.{action.dest} {kind}{values}")
    lines += of_dataclass(TrainingArguments, "training_arguments.")
    return write("accelerate", version, commit, "ClusterConfig, the launch parser and TrainingArguments", lines)


RECORDERS = {"accelerate": accelerate, "deepspeed": deepspeed, "megatron": megatron,
             "megatron-bridge": megatron_bridge, "torchtitan": torchtitan}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("target", choices=sorted(RECORDERS))
    parser.add_argument("--source", type=Path, help="checkout of the framework")
    parser.add_argument("--version", required=True)
    parser.add_argument("--commit", required=True)
    given = parser.parse_args()
    path = RECORDERS[given.target](given.source, given.version, given.commit)
    print(f"{path.name}: {len(path.read_text(encoding='utf-8').splitlines()) - 3} options")


if __name__ == "__main__":
    main()
