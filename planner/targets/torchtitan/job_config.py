"""JobConfig, the TOML of torchtitan up to release 0.2.2, translated to the Python config that replaced it.

Sources: torchtitan v0.1.0 to v0.2.2, torchtitan/config_manager.py, torchtitan/config/job_config.py and, of Flux,
torchtitan/experiments/flux/job_config.py.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ....errors import FieldProblem
from ....profiles.io.reader import read_document
from ..argv import Arguments
from ..config_modules import AS_PLANNED
from ..documents import read_blocks
from ..option_lists import Option, OptionList
from . import flux, optimizers
from .options import ACCUMULATION

# Sections without options that affect a layout. The affecting parts of `model`, `float8` and `quantize` are below.
_OTHER_SECTIONS = (
    "job", "profiling", "metrics", "optimizer", "lr_scheduler", "checkpoint", "comm", "model", "memory_estimation",
    "fault_tolerance", "validation", "inference", "quantize", "float8", "debug", "activation_checkpoint", "mx",
)  # fmt: skip
# Options of these sections went to `parallelism` in 0.1.0 ...
_FORMER_SECTIONS = ("training", "experimental")
# ... and these were renamed on the way.
_RENAMED = {
    "training.batch_size": "training.local_batch_size",
    "training.data_parallel_degree": "parallelism.data_parallel_shard_degree",
    "training.compile": "compile.enable", **flux.OLDER,
}
_SCHEDULE = "pipeline_parallel_schedule"
_ACCUMULATION = Option(ACCUMULATION, "int")
# Of releases up to 0.2: the degree inside experts, which has no effect where these have no degree of their own.
_ETP = "parallelism.expert_tensor_parallel_degree"
# Of release 0.2: the library that brings tokens to their experts.
_DISPATCHER = "parallelism.expert_parallel_comm_backend"
CHANGES: Mapping[str, str] = {
    r"parallelism\.pipeline_parallel_split_points": "stages by names of modules",
    r"parallelism\.pipeline_parallel_microbatches": "a number of micro-batches",
    r"parallelism\.pipeline_parallel_schedule_csv": "another schedule",
    r"parallelism\.module_fqns_per_model_part": "stages by names of modules",
    r"training\.img_size": "a model of images",
}
# Options that no plan writes -> their effect (torchtitan b5bcd76c, torchtitan/config/configs.py).
PRICES: Mapping[str, str] = {
    AS_PLANNED: "rotary positions and epsilon of norms",
    r"compile\.(backend|components)": "other kernels",
    r"parallelism\.(context_parallel_\w+|enable_fsdp_symm_mem|spmd_backend)": "other messages",
    r"training\.mixed_precision_reduce": "messages of gradients in another type",
    r"override(\..*)?": "another config than that of the file",
}
HARMLESS = (
    r"expert_parallel_comm_backend|enable_async_tensor_parallel|disable_loss_parallel|enable_loss_parallel|enable_compiled_autograd|"
    r"context_parallel_rotate_method|custom_|training\.(dataloader|debug_moe_\w+|deterministic|max_norm|dataset|steps|warmup|gc_freq|"
    r"fp8_linear|enable_fp8_linear|mixed_precision_reduce|classifier_free_guidance_prob|test_mode)|converters|fused"
)


# The default of activation_checkpoint: whole layers, one of so many (distributed/activation_checkpoint.py). `op` stands
# for a choice by operator.
_MODE, _EVERY = "selective", "2"
# Words in names of forks' options for the states of an optimizer.
_STATES = re.compile(r"dtype|bits|8bit|quant|offload|cpu")


def read_job_config(path: str, text: str, options: OptionList) -> Arguments:
    """The settings of a TOML file. Raises InputError for broken syntax."""
    document = read_document(path, text)
    data = {key: _cased(value, options) for key, value in dict(document.data).items() if key not in _OTHER_SECTIONS}
    arguments = read_blocks(replace(document, data=data), options)
    _move(arguments, data, options, path)
    components = arguments.settings.get("compile.components")
    if isinstance(components, list) and "model" not in components:  # the loss alone
        arguments.settings.pop("compile.enable", None)
    if not {"job", "model", "training", "parallelism", "experimental"} & {*document.data}:
        return arguments  # of another program
    block = dict(document.data).get("activation_checkpoint") or {}
    mode = block.get("mode", _MODE)
    if mode == _MODE and (every := str(block.get("selective_ac_option", _EVERY))).isdigit():
        mode = every
    line = document.line(("activation_checkpoint", "mode"))
    if str(mode) not in ("none", "full", "selective") and not str(mode).isdigit():
        arguments.gaps.append(FieldProblem(f"`{mode}` is no mode of a plan", file=path, line=line,
                                           field="activation_checkpoint.mode"))  # fmt: skip
    _model(arguments, dict(document.data), path)
    optimizer = document.at(("optimizer",))
    if isinstance(optimizer, Mapping):
        arguments.gaps += [document.problem(("optimizer", name), "states of another type or in another place")
                           for name, given in optimizer.items() if given and _STATES.search(name)]  # fmt: skip
        arguments.settings[optimizers.OPTION] = optimizers.of_section(optimizer)
        arguments.lines[optimizers.OPTION] = document.line(("optimizer",))
    copies = document.at(("fault_tolerance",))
    if isinstance(copies, Mapping) and copies.get("enable") and copies.get("semi_sync_method"):
        arguments.gaps.append(document.problem(("fault_tolerance", "semi_sync_method"),
                                               "copies that exchange no gradients in most steps"))  # fmt: skip
    if mode != "none" and flux.builds(arguments.settings):
        mode = "full"  # its apply_ac wraps every block, whatever the mode is
    arguments.settings["activation_checkpoint"] = mode
    arguments.lines["activation_checkpoint"] = line
    return arguments


def _cased(section: Any, options: OptionList) -> Any:
    """A section with the name of a schedule as the list has it: torch takes it in any case."""
    if not isinstance(section, Mapping) or not isinstance(name := section.get(_SCHEDULE), str):
        return section
    known = {each.lower(): each for each in options.options[f"parallelism.{_SCHEDULE}"].values}
    return {**section, _SCHEDULE: known.get(name.lower(), name)}


def _move(arguments: Arguments, data: Mapping[str, Any], options: OptionList, path: str) -> None:
    """Moves unknown options to their present section and name."""
    for name, line in list(arguments.unknown.items()):
        section, _, rest = name.partition(".")
        moved = f"parallelism.{rest}" if section in _FORMER_SECTIONS and "parallel" in rest else name
        new = _RENAMED.get(name, moved)
        value = data.get(section, {}).get(rest) if isinstance(data.get(section), Mapping) else None
        if name == _DISPATCHER and value not in (None, "standard"):
            arguments.notes.append(f"{name} {value}: priced as the standard exchange of tokens")
        if new == _ETP and (value == 1 or (data.get(section) or {}).get("expert_parallel_degree", 1) == 1):
            arguments.unknown.pop(name)
        elif (option := _ACCUMULATION if new == ACCUMULATION else options.options.get(new)) is not None:
            arguments.unknown.pop(name)
            arguments.record(option, value, line, path)
        elif new != name:
            arguments.unknown.pop(name)
            arguments.unknown[new] = line
            arguments.lines[new] = line
        elif value in (False, None, "", 0, []) and not re.search(HARMLESS, name):  # switched off
            arguments.unknown.pop(name)


def _model(arguments: Arguments, data: Mapping[str, Any], path: str) -> None:
    model = data.get("model", {})
    if not isinstance(model, Mapping):
        return
    if model.get("flavor"):
        arguments.settings["model_spec"] = f"{model.get('name', '')}/{model['flavor']}"
    converters = model.get("converters", [])
    sections = [data.get(section) for section in ("float8", "training")]
    older = any(isinstance(section, Mapping) and section.get(name) for section in sections
                for name in ("enable_float8_linear", "enable_fp8_linear"))  # fmt: skip
    if older or any("float8" in str(converter) for converter in converters):
        arguments.settings["converters"] = "float8"
    if any("mx" in str(converter) for converter in converters):
        arguments.settings["converters"] = "float8"
        arguments.notes.append("the mx converter is priced as float8")
    if others := [str(name) for name in converters if not re.search("float8|mx", str(name))]:
        arguments.gaps.append(FieldProblem(f"{', '.join(others)}: layers that no plan has", file=path,
                                           field="model.converters"))  # fmt: skip
