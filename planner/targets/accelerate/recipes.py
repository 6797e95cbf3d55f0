"""A recipe of transformers' Trainer beside accelerate's file, for the targets that are built on accelerate.

A recipe holds fields of TrainingArguments and of the framework. Both have the prefix of TrainingArguments here.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ....cost_models.specs.model import ModelSpec
from ....cost_models.specs.workload import Workload
from .. import adapters
from ..argv import Arguments
from ..documents import read_config
from ..framework_parser import FrameworkParser
from ..launch_config import LaunchConfig
from ..launchers.base import Job, comment
from ..option_lists import OptionList
from ..options import Entry, Table
from ..other_layers import masked_squares
from ..setup import Setup
from .older_names import PRICES
from .options import ARGUMENTS, OPTIMIZERS, conflicts
from .options import TABLE as ACCELERATE
from .target import yaml_of

RANKS_FILE = "ranks.yaml"
# Option of accelerate's file that recomputes layers.
CHECKPOINTING = "fsdp_config.fsdp_activation_checkpointing"
# Options of files on accelerate that no plan writes -> their effect on layout and memory.
HOSTS = {
    r"fsdp_config\.(fsdp_)?offload_params": "keeps weights and states on the host",
    rf"({re.escape(ARGUMENTS)})?(deepspeed|fsdp|fsdp_config)": "shards in another way",
}


def of_recipe(*names: str) -> tuple[str, ...]:
    """Options of a recipe by their names there."""
    return tuple(f"{ARGUMENTS}{name}" for name in names)


def table(own: Iterable[Entry]) -> Table:
    """The entries of accelerate. An entry of `own` replaces those that have one of its options."""
    own = tuple(own)
    replaced = {option for entry in own for option in entry.options}
    return Table((*(entry for entry in ACCELERATE.entries if not replaced.intersection(entry.options)), *own))


def job(setup: Setup, header: tuple[str, ...], options: Table, *, target: str, main_file: str, module: str,
        yours: Iterable[str], example: str) -> Job:  # fmt: skip
    """Writes the recipe and accelerate's YAML. module: the module to start, with the words before the recipe's path;
    yours: comment lines that name the options of a user; example: those options as arguments of launch.sh."""
    settings = options.write(setup)
    recipe = {key.removeprefix(ARGUMENTS): value for key, value in settings.items() if key.startswith(ARGUMENTS)}
    lines = "".join(f"{name}: {json.dumps(value)}\n" for name, value in sorted(recipe.items()))
    return Job(
        name=f"{setup.model.name}-{target}", title=str(setup.layout), header=header,
        num_nodes=setup.num_nodes, gpus_per_node=setup.gpus_per_node,
        files={main_file: comment((*header, *yours)) + lines, RANKS_FILE: comment(header) + yaml_of(settings)},
        command=f'accelerate launch --config_file "$here/{RANKS_FILE}" --machine_rank "$NODE_RANK" \\\n'
                '  --main_process_ip "$MASTER_ADDR" --main_process_port "$MASTER_PORT" \\\n'
                f'  --module {module} "$here/{main_file}"',
        example=example,
    )  # fmt: skip


def cannot(model: ModelSpec, workload: Workload) -> list[str]:
    """One sentence per part of the model and its training that no recipe of the Trainer can express."""
    reasons = {
        f"workload.optimizer: TrainingArguments has no {workload.optimizer}": workload.optimizer not in OPTIMIZERS,
        "workload.expert_capacity_factor: it has no capacity of experts": model.capacity_factor is not None,
    }
    return [*(text for text, applies in reasons.items() if applies), *masked_squares(model),
            *adapters.cannot_name(model, workload.lora)]  # fmt: skip


def eight_bits(setup: Setup, option: str) -> list[tuple[tuple[str, ...], str]]:
    """Refuses 8-bit weights under FSDP, which shards floats only (bitsandbytes 0.50 stores 4-bit weights as floats).
    option: the option of the recipe that loads 8 bits."""
    lora = setup.workload.lora
    if lora is None or lora.base_dtype != "int8" or not setup.layout.zero:
        return []
    return [(("zero",), f"FSDP2 shards no weights of 8 bits ({option}): nf4, or no sharding")]


def launch_config(
    main_file: str, options: Table, parser: Path, modules: tuple[str, ...], changes: Mapping[str, str]
) -> LaunchConfig:
    """The launch config of a recipe. parser: the script that gives recipes to the framework; modules: the modules that
    it imports beside those of accelerate; changes: option of a recipe, by regular expressions -> its effect."""
    effects = {f"{re.escape(ARGUMENTS)}({pattern})": text for pattern, text in changes.items()}

    def case(files: Mapping[str, str], setup: Setup) -> dict[str, Any]:
        return {"recipe": files[main_file], "ranks": files[RANKS_FILE], "world": setup.layout.num_gpus}

    return LaunchConfig(
        main_file=main_file, more_files=(RANKS_FILE,), read=_read, table=lambda release: options, conflicts=conflicts,
        prices={**HOSTS, **PRICES, **effects},
        parser=FrameworkParser(script=parser, case=case, modules=("torch", "accelerate", *modules)),
    )  # fmt: skip


def _read(path: str, text: str, options: OptionList) -> Arguments:
    return read_config(path, text, options, "" if Path(path).name == RANKS_FILE else ARGUMENTS)
