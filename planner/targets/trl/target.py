"""TRL: supervised fine-tuning with transformers' Trainer on accelerate, with adapters of peft."""

from __future__ import annotations

from pathlib import Path

from ....cost_models.specs.model import ModelSpec
from ....cost_models.specs.workload import Workload
from ...space.rules import only
from ..accelerate import recipes
from ..accelerate.rules import RULES
from ..base import Target, Trainer
from ..launchers.base import Job
from ..option_lists import OptionList
from ..readers import hf_trainer as reader
from ..setup import Setup
from .options import TABLE

_N = "trl"
MAIN_FILE = "sft.yaml"


def job(setup: Setup, header: tuple[str, ...], options: OptionList | None) -> Job:
    """Writes sft.yaml for TRL's own script, and accelerate's YAML."""
    yours = ("Yours, here or after launch.sh: model_name_or_path, dataset_name, learning_rate, output_dir.",
             *(("lora_alpha is yours, too.",) if setup.workload.lora is not None else ()))  # fmt: skip
    return recipes.job(
        setup, header, TABLE, target=_N, main_file=MAIN_FILE, module="trl.scripts.sft --config", yours=yours,
        example="--model_name_or_path <model> --dataset_name <data> --learning_rate <rate>",
    )  # fmt: skip


def cannot(model: ModelSpec, workload: Workload, options: OptionList | None) -> list[str]:
    """One sentence per part of the model and its training that TRL's script cannot express."""
    partly = ["workload.trains_layers: its script trains no part of the layers"] if workload.trains_layers else []
    return [*recipes.cannot(model, workload), *partly]


TARGET = Target(
    _N,
    "TRL and peft (SFTTrainer on accelerate)",
    "accelerate",
    "TRL 1.16.0, trl/trainer/sft_config.py and model_config.py, trl/scripts/sft.py; peft 0.21.2, LoraConfig",
    rules=(*RULES, only(_N, "tp", (1,), "its script loads a model whole (tp {tp})")),
    built_on="accelerate",
    trainer=Trainer(
        framework="TRL", job=job, cannot_build=cannot,
        config=recipes.launch_config(MAIN_FILE, TABLE, Path(__file__).with_name("parser.py"), ("trl", "peft"),
                                     {**reader.READER.reading.changes, r"lora_target_parameters": "other adapters"}),
        cannot_run=lambda setup, options: recipes.eight_bits(setup, "load_in_8bit"),
    ),
)  # fmt: skip
