"""torchtitan: a Python config module for torchtitan.train."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from ....cost_models.arrays import Mask
from ....cost_models.layouts import CP_ALGORITHMS
from ....cost_models.problem import Problem
from ....cost_models.specs.model import MixtureOfExperts, ModelSpec
from ....cost_models.specs.workload import Workload
from ...space.rules import Columns, Rule, only
from .. import cpu_offload
from ..argv import Arguments
from ..base import Target, Trainer
from ..config_modules import read_config_module, read_modules
from ..documents import read_config
from ..framework_parser import FrameworkParser
from ..launch_config import LaunchConfig
from ..launchers.base import Job, torchrun
from ..option_lists import OptionList
from ..options import Settings
from ..other_layers import other_layers, whole_heads
from ..reading import Reading
from ..setup import Setup
from ..switch_options import rules_of
from . import flux, micro_batches
from .as_planned import changes_of
from .job_config import CHANGES, HARMLESS, PRICES, read_job_config
from .options import registered, table

_N = "torchtitan"
MAIN_FILE = "torchtitan_plan.py"
_EXAMPLE = "--hf_assets_path ... --training.steps 1000"


def _reshard(columns: Columns, problem: Problem) -> Mask:
    # A pipeline stage does not reshard or scatter before its last micro-batch, so that ZeRO-3 would equal ZeRO-2.
    return np.asarray((columns["zero"] != 3) | (columns["pp"] == 1))


def _replicas(columns: Columns, problem: Problem) -> Mask:
    return np.asarray((columns["zero"] > 0) | ((columns["cp"] == 1) & (columns["ep"] == 1)))


def _gathers(columns: Columns, problem: Problem) -> Mask:
    return np.asarray((columns["cp"] == 1) | (columns["cp_algorithm"] == CP_ALGORITHMS.index("allgather")))


def _predicts_further(columns: Columns, problem: Problem) -> Mask:  # MTPDecoder.Config of deepseek_v3/mtp.py
    return np.asarray((columns["pp"] == 1) & (columns["cp"] == 1) | (problem.model.mtp_layers == 0))


_MODULE = """\
\"\"\"{header}

Not from the plan, edit or give after `--config plan`: data, tokenizer (hf_assets_path), learning rate, steps.
\"\"\"

from dataclasses import replace

{imports}

{as_planned}

def plan() -> Trainer.Config:
    model_spec = as_planned(model_registry("{flavor}"{model_arguments}))
    return Trainer.Config(
        model_spec=model_spec,
        loss={loss}.Config(global_vocab_size=decoder_vocab_size(model_spec)),
        optimizer=default_adamw(lr=3e-4),
{dataloader}{blocks}        activation_checkpoint={recompute},
    )
"""
_LOSS = "from torchtitan.components.loss import CrossEntropyLoss\n"
_FURTHER_LOSS = "from torchtitan.models.deepseek_v3.mtp import MTPLoss\n"  # MTPDecoder returns a list of logits
_IMPORTS = """\
from torchtitan.components.optimizer import default_adamw
from torchtitan.config import ParallelismConfig, TrainingConfig
from torchtitan.models.common.config_utils import decoder_vocab_size
from torchtitan.models.{family} import model_registry
from torchtitan.trainer import Trainer
"""
_TEXT = ("from torchtitan.hf_datasets.text_datasets import HuggingFaceTextDataLoader\n",
         '        dataloader=HuggingFaceTextDataLoader.Config(dataset="c4"),\n')  # fmt: skip
_GRAIN = ("from torchtitan.components.data import ConcatThenSplitPackingConfig, GrainDataLoader\n"
          "from torchtitan.hf_datasets.text_datasets import DATASETS\n",
          '        dataloader=GrainDataLoader.Config(dataset=ConcatThenSplitPackingConfig(dataset=DATASETS["c4"])),\n')
_FULL = "from torchtitan.distributed.activation_checkpoint import FullAC\n"
_FLOAT8 = "from torchtitan.components.quantization import {names}\n"


def _part(modules: list[str]) -> str:
    """The modules of a stage as Python, with its layers as a range."""
    numbers = [int(name.rpartition(".")[2]) for name in modules if name.startswith("layers.")]
    layers = [f'*(f"layers.{{i}}" for i in range({numbers[0]}, {numbers[-1] + 1}))'] if numbers else []
    ends = [json.dumps(name) for name in modules if not name.startswith("layers.")]
    first = ends[:1] if ends[:1] == ['"tok_embeddings"'] else []
    return ", ".join([*first, *layers, *ends[len(first) :]])


def _block(name: str, kind: str, settings: Settings) -> str:
    values = {key.partition(".")[2]: value for key, value in settings.items() if key.startswith(f"{name}.")}
    lines = []
    for key, value in values.items():
        if isinstance(value, list):
            rows = "".join(f"                [{_part(part)}],\n" for part in value)
            lines.append(f"            {key}=[\n{rows}            ],\n")
        else:
            lines.append(f"            {key}={json.dumps(value) if isinstance(value, str) else value},\n")
    return f"        {name}={kind}(\n{''.join(lines)}        ),\n"


def _imported(imports: str, blocks: str) -> str:
    """The lines of imports in their order, with what a block of options needs beside them."""
    if "CompileConfig(" in blocks:
        imports = imports.replace("import Parallelism", "import CompileConfig, Parallelism")
    return "".join(sorted(imports.splitlines(True)))


def _module(setup: Setup, header: tuple[str, ...], options: OptionList) -> str:
    settings = table(options).write(setup)
    family, flavor = str(settings["model_spec"]).split("/")
    data_import, dataloader = _GRAIN if "training.num_tokens_per_train_step" in options.options else _TEXT
    more = f", num_mtp_layers={setup.model.mtp_layers}" if setup.model.mtp_layers else ""
    further = setup.model.mtp_layers > 0
    imports = _IMPORTS.format(family=family) + data_import + (_FURTHER_LOSS if further else _LOSS)
    if settings.get("converters"):
        names = ["Float8LinearConverter"] + (["Float8GroupedExpertsConverter"] if setup.model.is_moe else [])
        imports += _FLOAT8.format(names=", ".join(sorted(names)))
        more += f", converters=[{', '.join(f'{name}.Config()' for name in names)}]"
    checkpoints = _FULL if settings["activation_checkpoint"] == "full" else ""
    imports += checkpoints
    blocks = _block("training", "TrainingConfig", settings) + _block("parallelism", "ParallelismConfig", settings)
    if settings.get("compile.enable"):
        blocks += _block("compile", "CompileConfig", settings)
    recompute = "FullAC.Config()" if checkpoints else "None"
    if setup.model.diffusion is not None:
        blocks = "".join(_block(name, kind, settings) for name, kind in flux.BLOCKS.items()) + blocks
        return flux.module_of(header, flavor, _imported(flux.IMPORTS + checkpoints, blocks), blocks, recompute)
    return _MODULE.format(
        header="\n".join(header), imports=_imported(imports, blocks), flavor=flavor,
        loss="MTPLoss" if further else "CrossEntropyLoss",
        model_arguments=more, as_planned=changes_of(setup.model), dataloader=dataloader, blocks=blocks,
        recompute=recompute,
    )  # fmt: skip


def _notes(model: ModelSpec) -> tuple[str, ...]:
    """Assumptions of the model, and how its experts are balanced."""
    if model.diffusion is not None:
        return (*model.assumptions, flux.NOTE)
    blocks = [block for block in model.feed_forwards if isinstance(block, MixtureOfExperts)]
    if not blocks or blocks[0].choice_bias:
        return model.assumptions
    return (*model.assumptions, "torchtitan has no balancing loss: experts are balanced by a bias of their choice "
                                "(`moe.load_balance_coeff` of a layer)")  # fmt: skip


def job(setup: Setup, header: tuple[str, ...], options: OptionList | None) -> Job:
    """Writes torchtitan_plan.py with a function `plan`, and the command that trains it."""
    if options is None:
        raise RuntimeError("torchtitan has an option list")
    return Job(
        name=f"{setup.model.name}-torchtitan", title=str(setup.layout), header=header, num_nodes=setup.num_nodes,
        gpus_per_node=setup.gpus_per_node, files={MAIN_FILE: _module(setup, header, options)},
        command=f"{torchrun(setup.num_nodes, setup.gpus_per_node)}"
                "  -m torchtitan.train --module torchtitan_plan --config plan",
        environment={"PYTORCH_ALLOC_CONF": "expandable_segments:True"}, python_path=True, notes=_notes(setup.model),
        example=_EXAMPLE if setup.model.diffusion is None else flux.EXAMPLE,
    )  # fmt: skip


def conflicts(settings: Settings, environment: Mapping[str, str]) -> list[tuple[str, str]]:
    """Rules of Trainer.Config and ParallelDims on combinations of fields."""
    out = []
    section, graphs = "parallelism.", "training.disable_cuda_graphs"
    pp, ep = (settings.get(f"{section}{name}_parallel_degree", 1) for name in ("pipeline", "expert"))
    if (pp > 1 or ep > 1) and not settings.get(graphs):
        out.append((graphs, f"must be True: CUDA graphs refuse {'pipelines' if pp > 1 else 'experts over ranks'}"))
    local = settings.get("training.local_batch_size", 8)
    size = settings.get(f"{section}pipeline_parallel_microbatch_size", 1)
    if local < 1:
        out.append(("training.local_batch_size", f"`{local}` is not 1 or more"))
    elif pp > 1 and (size < 1 or local % size):
        out.append(("training.local_batch_size", f"{local} is no multiple of the micro-batch size {size}"))
    degrees = [name for name in settings if name.startswith(section) and name.endswith("_degree")]
    for name in degrees:
        least = -1 if name.endswith("data_parallel_shard_degree") else 1
        if settings[name] < least or settings[name] == 0:
            out.append((name, f"`{settings[name]}` is not 1 or more"))
    return out


def _cannot_rotate(model: ModelSpec, flavor: str) -> dict[str, bool]:
    """Sentence -> whether it applies. ComplexRoPE scales like Llama 3 and by YaRN, CosSinRoPE (qwen3) by YaRN."""
    scaling = model.trained_scaling
    kind, amplitude = (scaling.kind, scaling.amplitude) if scaling is not None else ("", 1.0)
    return {
        "model.rope_theta: its models have rotary positions": model.rope_theta is None,
        f"model.rope_scaling: {flavor or 'it'} has no {kind}":
            kind in ("linear", "longrope") or (kind == "llama3" and flavor.startswith("qwen3")),
        f"model.rope_scaling: its yarn leaves cos and sin as they are, here they grow by {amplitude:g}":
            abs(amplitude - 1) > 1e-6,
        "model.partial_rotary_factor: it turns whole heads": model.partial_rotary_factor < 1,
    }  # fmt: skip


def cannot(model: ModelSpec, workload: Workload, options: OptionList | None) -> list[str]:
    """One sentence per part of the model and its training that torchtitan cannot express."""
    if options is None:
        return []
    if model.diffusion is not None:
        return flux.cannot(model, workload, options, registered(model, options) is not None)
    if other := other_layers(model, "torchtitan"):
        return other
    known = ", ".join(entry.name for entry in options.models)
    entry = registered(model, options)
    reasons = {
        f"model: torchtitan {options.version} registers none with the shapes of {model.name}; it has {known}":
            entry is None,
        **_cannot_rotate(model, entry.name if entry is not None else ""),
        "model.mtp_layers: only its deepseek_v3 takes them":
            model.mtp_layers > 0 and not model.family.startswith("deepseek"),
        f"workload.optimizer: it has no {workload.optimizer}": workload.optimizer != "adamw",
        "workload.lora: no adapters": workload.lora is not None,
        "workload.expert_capacity_factor: its experts drop no token": model.capacity_factor is not None,
        "workload.trains_layers: it trains all layers": workload.trains_layers is not None,
    }  # fmt: skip
    return [text for text, applies in reasons.items() if applies]


def _container(*texts: str) -> str:
    """The class that a config module makes."""
    return flux.CONTAINER if any(flux.CONTAINER in text for text in texts) else "Trainer.Config"


def _read(path: str, text: str, options: OptionList) -> Arguments:
    if path.endswith(".py"):
        return read_config_module(path, text, options, _container(text))
    return read_job_config(path, text, options) if path.endswith(".toml") else read_config(path, text, options)


def _read_together(files: Mapping[str, str], options: OptionList, given: Sequence[str],
                   wanted: frozenset[str]) -> Arguments:  # fmt: skip
    return read_modules(files, options, given, _container(*files.values()), _read)


CONFIG = LaunchConfig(
    main_file=MAIN_FILE,
    read=_read,
    read_together=_read_together,
    table=table,
    conflicts=conflicts,
    import_format=_N,
    prices=PRICES,
    reading=Reading(changes=CHANGES, harmless=HARMLESS, modernise=flux.modernise),
    parser=FrameworkParser(
        script=Path(__file__).with_name("parser.py"),
        case=lambda files, setup: {"module": files[MAIN_FILE], "world": setup.layout.num_gpus},
        modules=("torch", "torchtitan"),
    ),
)
TARGET = Target(
    _N,
    "torchtitan (Trainer.Config module)",
    "torch-fsdp",
    "torchtitan b5bcd76c (2026-08-21), torchtitan/config/configs.py and distributed/parallel_dims.py",
    stages="layers",
    rules=(
        Rule(f"{_N}: cp_algorithm", ("cp", "cp_algorithm"), _gathers,
             "torchtitan leaves torch's exchange at all-gather: no option selects {algorithm}"),
        only(_N, "etp", (1,), "torchtitan has no expert-tensor parallelism (etp {etp})"),
        only(_N, "schedule", ("1f1b", "gpipe", "interleaved", "zb-v", "dualpipe-v"),
             "torchtitan has no {schedule_name}"),
        Rule(f"{_N}: mtp_layers", ("pp", "cp"), _predicts_further,
             "its prediction modules refuse pipelines and context parallelism (pp {pp}, cp {cp}): plan without them by "
             "`--set workload.mtp_layers=0`"),
        *micro_batches.rules(_N),
        whole_heads(_N, _N),
        only(_N, "zero", (0, 2, 3),
             "z1: it replicates (DDP) or shards parameters (FSDP2); ParallelismConfig cannot shard only the optimizer"),
        Rule(f"{_N}: reshard", ("pp", "zero"), _reshard,
             "in a pipeline weights stay whole through the step: z3 is z2 there (pp {pp})"),
        only(_N, "recompute", ("none", "full"), "torchtitan's selective recompute is by operator, not by module"),
        Rule(f"{_N}: replicas", ("cp", "ep", "zero"), _replicas,
             "z0 replicates (DDP): with cp {cp} or ep {ep} its mesh shards parameters (FSDP2)"),
        only(_N, "recompute_layers", (0,), "torchtitan recomputes all layers or none"),
        only(_N, "offload", ("none",), "enable_cpu_offload moves weights, too: plan with `--technique cpu-offload`"),
        only(_N, "precision", ("bf16", "fp8", "fp32"), "torchtitan trains in bf16, fp8 or fp32"),
        *flux.rules(_N),
        *rules_of(_N),
    ),
    trainer=Trainer(framework="torchtitan", config=CONFIG, job=job, cannot_build=cannot, denoises=True,
                    techniques=cpu_offload.CAN),
)  # fmt: skip
