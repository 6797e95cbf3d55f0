"""Axolotl: fine-tuning with transformers' Trainer on accelerate, of all weights or of adapters."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ....cost_models.arrays import Mask
from ....cost_models.layouts import PRECISIONS
from ....cost_models.problem import Problem
from ....cost_models.specs.model import ModelSpec
from ....cost_models.specs.workload import Workload
from ...space.rules import Columns, Rule, only
from ..accelerate import recipes
from ..accelerate.rules import RULES
from ..accelerate.target import yaml_of
from ..base import Target, Trainer
from ..documents import read_config
from ..framework_parser import FrameworkParser
from ..launch_config import LaunchConfig
from ..launchers.base import Job, comment, torchrun
from ..option_lists import OptionList
from ..readers import axolotl as reader
from ..setup import Setup
from .options import TABLE

_N = "axolotl"
MAIN_FILE = "axolotl.yaml"


def _kept_in_fp32(columns: Columns, problem: Problem) -> Mask:
    # It loads weights in the data type of the products (loaders/model.py); accelerate makes fp32 copies for FSDP2 only.
    whole = columns["precision"] == PRECISIONS.index("fp32")
    return np.asarray((columns["zero"] > 0) | whole | (problem.workload.lora is not None))


def _without_adapters(columns: Columns, problem: Problem) -> Mask:
    return np.asarray((columns["tp"] == 1) | (problem.workload.lora is None))


def job(setup: Setup, header: tuple[str, ...], options: OptionList | None) -> Job:
    """Writes axolotl.yaml, which also holds what accelerate gets. Its command line takes `--option=value`."""
    yours = ("Yours, here or after launch.sh: base_model, learning_rate, num_epochs, output_dir; here: datasets.",
             *(("lora_alpha is yours, too.",) if setup.workload.lora is not None else ()))  # fmt: skip
    return Job(
        name=f"{setup.model.name}-{_N}", title=str(setup.layout), header=header, num_nodes=setup.num_nodes,
        gpus_per_node=setup.gpus_per_node,
        files={MAIN_FILE: comment((*header, *yours)) + yaml_of(TABLE.write(setup))},
        command=torchrun(setup.num_nodes, setup.gpus_per_node) + f'  -m axolotl.cli.train "$here/{MAIN_FILE}"',
        example="--base_model=<model> --learning_rate=<rate> --num_epochs=<number> --output_dir=<folder>",
        notes=(f"data: put your datasets into {MAIN_FILE}",),
    )  # fmt: skip


def cannot(model: ModelSpec, workload: Workload, options: OptionList | None) -> list[str]:
    """One sentence per part of the model and its training that Axolotl cannot express."""
    partly = ["workload.trains_layers: its layers train by patterns of names"] if workload.trains_layers else []
    return [*recipes.cannot(model, workload), *partly]


def _parser_case(files: Mapping[str, str], setup: Setup) -> dict[str, Any]:
    return {"recipe": files[MAIN_FILE], "world": setup.layout.num_gpus, "capability": setup.capability or 9.0}


# Options that no plan writes -> their effect (Axolotl 0.19.0, utils/schemas/).
_PRICES = {
    r"accelerator_config(\..*)?|max_packed_sequence_len": "another batch or length",
    r"(context_parallel|sequence_parallel)_(size|degree)|use_ray|ray_num_workers": "other ranks",
    r"bfloat16|float(16|32)|fp8\w*|fp32_norm(s|_classes)|embeddings_skip_upcast|tf32|bnb_config_kwargs":
        "another precision",
    r"(flex|sdp|xformers|sage|s2|large_head|eager)_attention|sdpa_varlen|flash_attn_\w+|flash_optimum|fused_attn_kernel|"
    r"gemma4_hybrid_attn_impl|lora_\w+_kernel|experts_implementation|use_kernels|chunked_cross_entropy(_num_chunks)?|"
    r"plugins|deepcompile|torch_compile_\w+": "other kernels",
    r"dynamic_checkpoint|ple_cpu_offload|torch_empty_cache_steps|gc_(collect_)?steps|ddp_bucket_cap_mb|"
    r"quantize_moe_experts": "another use of memory",
    r"optim_(args|target_modules)|trainer_cls|dion_rank_\w+|qgalore_\w+": "another optimizer or trainer",
    r"resize_token_embeddings_to_32x|shrink_embeddings|scaling_softmax\w*|peft(\..*)?|type_of_model": "another model",
}
CONFIG = LaunchConfig(
    main_file=MAIN_FILE,
    read=read_config,
    table=lambda options: TABLE,
    prices={**recipes.HOSTS, **reader.READER.reading.changes, **_PRICES},
    parser=FrameworkParser(
        script=Path(__file__).with_name("parser.py"), case=_parser_case, modules=("torch", "axolotl")
    ),
)
TARGET = Target(
    _N,
    "Axolotl (Trainer on accelerate)",
    "accelerate",
    "Axolotl 0.19.0, utils/schemas/, utils/trainer.py and loaders/model.py",
    rules=(
        *RULES,
        only(_N, "cp", (1,), "its context parallelism (ring-flash-attn) is not planned yet (cp {cp})"),
        Rule(f"{_N}: adapters", ("tp",), _without_adapters, "adapters are planned for whole models only: tp {tp}"),
        Rule(f"{_N}: weights", ("zero", "precision"), _kept_in_fp32,
             "it loads the weights in the data type of the products; only FSDP2 keeps copies in fp32 (z{zero})"),
    ),
    built_on="accelerate",
    trainer=Trainer(framework="Axolotl", config=CONFIG, job=job, cannot_build=cannot,
                    cannot_run=lambda setup, options: recipes.eight_bits(setup, "load_in_8bit")),
)  # fmt: skip
