"""LLaMA-Factory: fine-tuning with transformers' Trainer on accelerate, of all weights, adapters or the last layers."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from ....cost_models.arrays import Mask
from ....cost_models.problem import Problem
from ....cost_models.specs.model import ModelSpec
from ....cost_models.specs.workload import Workload
from ...space.rules import Columns, Rule, only
from ..accelerate import recipes
from ..accelerate.rules import RULES
from ..base import Target, Trainer
from ..launchers.base import Job
from ..option_lists import OptionList
from ..readers import llama_factory as reader
from ..setup import Setup
from .options import TABLE

_N = "llama-factory"
MAIN_FILE = "llama_factory.yaml"


def _all_ranks(columns: Columns, problem: Problem) -> Mask:
    # Replicas are a degree of accelerate's ParallelismConfig. The Trainer of transformers 5.6 looks for its sp_backend
    # (trainer.py), which accelerate 1.11 does not have, the newest release that LLaMA-Factory takes.
    return np.asarray((columns["zero"] == 0) | (columns["shard"] == columns["dp"]))


def job(setup: Setup, header: tuple[str, ...], options: OptionList | None) -> Job:
    """Writes llama_factory.yaml and accelerate's YAML. Its command line takes `option=value` after the file
    (hparams/parser.py, read_args)."""
    yours = ("Yours, here or after launch.sh: model_name_or_path, dataset, template, learning_rate, output_dir;",
             "stage pt trains on plain text.",
             *(("lora_alpha is yours, too.",) if setup.workload.lora is not None else ()))  # fmt: skip
    return recipes.job(
        setup, header, TABLE, target=_N, main_file=MAIN_FILE, module="llamafactory.launcher", yours=yours,
        example="model_name_or_path=<model> dataset=<data> template=<name> learning_rate=<rate> output_dir=<folder>",
    )  # fmt: skip


def cannot(model: ModelSpec, workload: Workload, options: OptionList | None) -> list[str]:
    """One sentence per part of the model and its training that LLaMA-Factory cannot express."""
    both = "workload.trains_layers: finetuning_type is lora or freeze, not both"
    return [*recipes.cannot(model, workload), *([both] if workload.lora and workload.trains_layers else [])]


# Options that no plan writes -> their effect (LLaMA-Factory ff6d4d12, src/llamafactory/hparams).
_PRICES = {
    r"pure_bf16|fp8\w*|upcast_(layernorm|lmhead_output)|compute_dtype": "another precision",
    r"enable_liger_kernel|use_v1_kernels|block_diag_attn": "other kernels",
    r"device_map": "layers put on devices by their memory",
    r"resize_vocab": "another vocabulary",
}
TARGET = Target(
    _N,
    "LLaMA-Factory (Trainer on accelerate)",
    "accelerate",
    "LLaMA-Factory 0.9.5, src/llamafactory/hparams/, model/loader.py and model/adapter.py",
    rules=(*RULES, only(_N, "tp", (1,), "it loads a model whole (tp {tp})"),
           only(_N, "cp", (1,), "its trainers split no sequences (cp {cp})"),
           Rule(f"{_N}: replicas", ("dp", "zero", "shard"), _all_ranks,
                "its releases of transformers and accelerate fail on replicas of shards: shard {shard} of dp {dp}")),
    built_on="accelerate",
    trainer=Trainer(
        framework="LLaMA-Factory", job=job, cannot_build=cannot,
        config=recipes.launch_config(MAIN_FILE, TABLE, Path(__file__).with_name("parser.py"), ("llamafactory",),
                                     {**reader.READER.reading.changes, **_PRICES}),
        cannot_run=lambda setup, options: recipes.eight_bits(setup, "quantization_bit"),
    ),
)  # fmt: skip
