"""Hugging Face accelerate: FSDP2 YAML with parallelism_config."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ....cost_models.specs.model import ModelSpec
from ....cost_models.specs.workload import Workload
from .. import cpu_offload
from ..argv import Arguments
from ..base import Target, Trainer
from ..documents import read_config
from ..framework_parser import FrameworkParser
from ..launch_config import LaunchConfig
from ..launchers.base import Job, comment
from ..option_lists import OptionList
from ..options import Settings
from ..other_layers import masked_squares
from ..reading import Reading
from ..setup import Setup
from ..train_script import DEFAULTS, TRAIN_FILE, train_script
from .older_names import CHANGES, HARMLESS, OLDER, PRICES, modernise
from .options import ARGUMENTS, OPTIMIZERS, TABLE, conflicts
from .rules import RULES
from .train_script import IMPORTS, MAIN

_N = "accelerate"
MAIN_FILE = "accelerate.yaml"
_ARGUMENTS_FILE = "training_arguments.json"


def job(setup: Setup, header: tuple[str, ...], options: OptionList | None) -> Job:
    """Writes accelerate.yaml, and TrainingArguments for options that the YAML lacks."""
    settings = TABLE.write(setup)
    arguments = {key.removeprefix(ARGUMENTS): value for key, value in settings.items() if key.startswith(ARGUMENTS)}
    own = setup.layout.tp > 1  # loading splits the model, by calls that differ between releases of transformers
    note = (f"{_ARGUMENTS_FILE} holds the rest of the plan: HfArgumentParser.parse_json_file, or your own loop.",
            f"Sequences of {setup.workload.seq_len} tokens.")  # fmt: skip
    return Job(
        name=f"{setup.model.name}-accelerate", title=str(setup.layout), header=header, num_nodes=setup.num_nodes,
        gpus_per_node=setup.gpus_per_node,
        files={MAIN_FILE: comment((*header, *note)) + yaml_of(settings),
               _ARGUMENTS_FILE: json.dumps(arguments, indent=2, sort_keys=True) + "\n",
               **({} if own else {TRAIN_FILE: train_script(setup, header, IMPORTS, MAIN)})},
        command=f'accelerate launch --config_file "$here/{MAIN_FILE}" --machine_rank "$NODE_RANK" \\\n'
                '  --main_process_ip "$MASTER_ADDR" --main_process_port "$MASTER_PORT" "$TRAIN_SCRIPT"',
        needs={"TRAIN_SCRIPT": "your training script (transformers.Trainer or accelerate.Accelerator)"} if own else {},
        defaults={} if own else DEFAULTS, example="" if own else "--model <folder with config.json>",
    )  # fmt: skip


def yaml_of(settings: Settings) -> str:
    """Top-level keys, then the blocks, in alphabetical order as accelerate saves them."""
    lines: list[str] = []
    blocks: dict[str, dict[str, Any]] = {}
    for key, value in sorted(settings.items()):
        block, dot, name = key.partition(".")
        if not dot:
            lines.append(f"{key}: {json.dumps(value)}\n")
        elif block != "training_arguments":
            blocks.setdefault(block, {})[name] = value
    for block, values in sorted(blocks.items()):
        lines += [f"{block}:\n", *(f"  {name}: {json.dumps(value)}\n" for name, value in values.items())]
    return "".join(lines)


def cannot(model: ModelSpec, workload: Workload, options: OptionList | None) -> list[str]:
    """One sentence per part of the model and its training that accelerate cannot express."""
    reasons = {
        f"workload.optimizer: TrainingArguments has no {workload.optimizer}": workload.optimizer not in OPTIMIZERS,
        "workload.lora: adapters belong to your script (peft)": workload.lora is not None,
        "workload.expert_capacity_factor: it has no capacity of experts": model.capacity_factor is not None,
        "workload.trains_layers: frozen layers belong to your script": workload.trains_layers is not None,
    }  # fmt: skip
    return [*(text for text, applies in reasons.items() if applies), *masked_squares(model)]


def _read(path: str, text: str, options: OptionList) -> Arguments:
    if path.endswith(".json") and '"zero_optimization"' in text:  # the JSON that the YAML names
        return Arguments(texts={path: text})
    # accelerate 1.15, commands/config: yaml.safe_load, which takes the last of two equal keys.
    return read_config(path, text, options, ARGUMENTS if path.endswith(".json") else "", last_counts=True)


def _parser_case(files: Mapping[str, str], setup: Setup) -> dict[str, Any]:
    arguments = json.loads(files[_ARGUMENTS_FILE])
    return {"yaml": files[MAIN_FILE], "arguments": arguments, "world": setup.layout.num_gpus}


CONFIG = LaunchConfig(
    main_file=MAIN_FILE,
    more_files=(_ARGUMENTS_FILE,),
    read=_read,
    table=lambda options: TABLE,
    conflicts=conflicts,
    import_format=_N,
    prices=PRICES,
    reading=Reading(older=OLDER, modernise=modernise, changes=CHANGES, harmless=HARMLESS),
    parser=FrameworkParser(
        script=Path(__file__).with_name("parser.py"), case=_parser_case, modules=("torch", "accelerate")
    ),
)
TARGET = Target(
    _N,
    "accelerate (FSDP2, parallelism_config)",
    "accelerate",
    "accelerate 16cb6eb8 (2026-07-24), src/accelerate/parallelism_config.py and commands/launch.py",
    rules=RULES,
    trainer=Trainer(framework="accelerate", config=CONFIG, job=job, cannot_build=cannot,
                    techniques=cpu_offload.CAN),
)
