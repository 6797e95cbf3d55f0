"""TRL: supervised fine-tuning with transformers' Trainer on accelerate, with adapters of peft."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ....cost_models.specs.model import ModelSpec
from ....cost_models.specs.workload import Workload
from ...space.rules import only
from .. import adapters
from ..accelerate.options import ARGUMENTS, OPTIMIZERS, conflicts
from ..accelerate.rules import RULES
from ..accelerate.target import yaml_of
from ..argv import Arguments
from ..base import Target, Trainer
from ..documents import read_config
from ..framework_parser import FrameworkParser
from ..launch_config import LaunchConfig
from ..launchers.base import Job, comment
from ..option_lists import OptionList
from ..other_layers import masked_squares
from ..setup import Setup
from .options import TABLE

_N = "trl"
MAIN_FILE = "sft.yaml"
_RANKS_FILE = "ranks.yaml"


def job(setup: Setup, header: tuple[str, ...], options: OptionList | None) -> Job:
    """Writes sft.yaml for TRL's own script, and accelerate's YAML."""
    settings = TABLE.write(setup)
    recipe = {key.removeprefix(ARGUMENTS): value for key, value in settings.items() if key.startswith(ARGUMENTS)}
    lines = "".join(f"{name}: {json.dumps(value)}\n" for name, value in sorted(recipe.items()))
    yours = ("Yours, here or after launch.sh: model_name_or_path, dataset_name, learning_rate, output_dir.",
             *(("lora_alpha is yours, too.",) if setup.workload.lora is not None else ()))  # fmt: skip
    return Job(
        name=f"{setup.model.name}-trl", title=str(setup.layout), header=header, num_nodes=setup.num_nodes,
        gpus_per_node=setup.gpus_per_node,
        files={MAIN_FILE: comment((*header, *yours)) + lines, _RANKS_FILE: comment(header) + yaml_of(settings)},
        command=f'accelerate launch --config_file "$here/{_RANKS_FILE}" --machine_rank "$NODE_RANK" \\\n'
                '  --main_process_ip "$MASTER_ADDR" --main_process_port "$MASTER_PORT" \\\n'
                f'  --module trl.scripts.sft --config "$here/{MAIN_FILE}"',
        example="--model_name_or_path <model> --dataset_name <data> --learning_rate <rate>",
    )  # fmt: skip


def cannot(model: ModelSpec, workload: Workload, options: OptionList | None) -> list[str]:
    """One sentence per part of the model and its training that TRL's script cannot express."""
    reasons = {
        f"workload.optimizer: TrainingArguments has no {workload.optimizer}": workload.optimizer not in OPTIMIZERS,
        "workload.expert_capacity_factor: it has no capacity of experts": model.capacity_factor is not None,
        "workload.trains_layers: its script trains no part of the layers": bool(workload.trains_layers),
    }
    return [*(text for text, applies in reasons.items() if applies), *masked_squares(model),
            *adapters.cannot_name(model, workload.lora)]  # fmt: skip


def cannot_run(setup: Setup, options: OptionList | None) -> list[tuple[tuple[str, ...], str]]:
    """Rules on quantised weights. FSDP shards floats only; 4-bit weights are stored as floats (bitsandbytes 0.50)."""
    lora, out = setup.workload.lora, list[tuple[tuple[str, ...], str]]()
    if lora is not None and lora.base_dtype == "int8" and setup.layout.zero:
        out.append((("zero",), "FSDP2 shards no weights of 8 bits (load_in_8bit): nf4, or no sharding"))
    return out


def _read(path: str, text: str, options: OptionList) -> Arguments:
    return read_config(path, text, options, "" if Path(path).name == _RANKS_FILE else ARGUMENTS)


def _parser_case(files: Mapping[str, str], setup: Setup) -> dict[str, Any]:
    return {"recipe": files[MAIN_FILE], "ranks": files[_RANKS_FILE], "world": setup.layout.num_gpus}


CONFIG = LaunchConfig(
    main_file=MAIN_FILE,
    more_files=(_RANKS_FILE,),
    read=_read,
    table=lambda options: TABLE,
    conflicts=conflicts,
    parser=FrameworkParser(
        script=Path(__file__).with_name("parser.py"), case=_parser_case, modules=("torch", "accelerate", "trl", "peft")
    ),
)
TARGET = Target(
    _N,
    "TRL and peft (SFTTrainer on accelerate)",
    "torch-fsdp",
    "TRL 1.16.0, trl/trainer/sft_config.py and model_config.py, trl/scripts/sft.py; peft 0.21.2, LoraConfig",
    rules=(*RULES, only(_N, "tp", (1,), "its script loads a model whole (tp {tp})")),
    built_on="accelerate",
    trainer=Trainer(framework="TRL", config=CONFIG, job=job, cannot_build=cannot, cannot_run=cannot_run),
)
