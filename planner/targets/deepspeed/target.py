"""DeepSpeed: ds_config.json, and a small Python file for settings that the JSON lacks."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from ....cost_models.arrays import Mask
from ....cost_models.layouts import CP_ALGORITHMS, OFFLOADS, PRECISIONS
from ....cost_models.problem import Problem
from ....cost_models.specs.model import ModelSpec
from ....cost_models.specs.workload import Workload
from ...space.rules import Columns, Rule, only
from ..argv import Arguments
from ..base import Target, Trainer
from ..config_modules import read_constants
from ..documents import nested, read_config
from ..framework_parser import FrameworkParser
from ..launch_config import LaunchConfig
from ..launchers.base import Job, torchrun
from ..option_lists import OptionList, option_list
from ..other_layers import masked_squares, whole_mixers, whole_sequences
from ..reading import Reading, pass_over
from ..setup import Setup
from ..shell.nearby import is_script
from ..switch_options import rules_of
from ..train_script import DEFAULTS, TRAIN_FILE, train_script
from . import launch_script, techniques, templates
from .not_read import CHANGES, EXCLUSIVE, HARMLESS, OLDER, PRICES, modernise
from .options import OPTIMIZERS, PYTHON, TABLE, conflicts, pipeline_shards
from .train_script import IMPORTS, MAIN

_N = "deepspeed"
MAIN_FILE = "ds_config.json"
_ULYSSES = CP_ALGORITHMS.index("ulysses")


def _pipeline(columns: Columns, problem: Problem) -> Mask:
    return np.asarray((columns["zero"] <= 1) | (columns["pp"] == 1))


def _shards(columns: Columns, problem: Problem) -> Mask:
    # MiCS and hpZ shard over part of the ranks. Both exclude many other options, and no plan uses them yet.
    return np.asarray((columns["zero"] == 0) | (columns["shard"] == columns["dp"]))


def _experts(columns: Columns, problem: Problem) -> Mask:
    return np.asarray((columns["zero"] < 3) | (columns["ep"] == 1))


def _host_optimizer(columns: Columns, problem: Problem) -> Mask:
    return np.asarray((columns["zero"] > 0) | (columns["offload"] != OFFLOADS.index("opt")))


def _no_sequence_parallel(columns: Columns, problem: Problem) -> Mask:
    return np.asarray((columns["tp"] == 1) | (columns["sequence_parallel"] == 0))


def _whole_states(columns: Columns, problem: Problem) -> Mask:
    bf16 = columns["precision"] == PRECISIONS.index("bf16")
    return np.asarray((columns["zero"] > 0) | ~pipeline_shards(columns["pp"], columns["dp"], bf16))


def _ulysses_alone(columns: Columns, problem: Problem) -> Mask:
    return np.asarray((columns["cp"] == 1) | (columns["pp"] == 1))


_MODULE = '''\
"""{header}

Settings that ds_config.json lacks. Your script imports them: `import ds_plan`.
"""

PIPELINE_STAGES = {pp}
TENSOR_PARALLEL = {tp}
DATA_PARALLEL = {dp}
RECOMPUTE = {recompute}  # every layer in the backward pass: without a pipeline, model.gradient_checkpointing_enable()
SEQUENCE_LENGTH = {seq_len}
{pipeline}'''
_PIPELINE = '''

def pipeline(layers, layer_class, **more):
    """The model as a PipelineModule: `layers` as DeepSpeed takes them, `layer_class` the name of the decoder layer's
    class, of which every stage gets {layers}."""
    from deepspeed.pipe import PipelineModule
    from deepspeed.runtime.pipe.topology import PipeModelDataParallelTopology

    topology = PipeModelDataParallelTopology(
        num_pp=PIPELINE_STAGES, num_mp=TENSOR_PARALLEL, num_dp=DATA_PARALLEL
    )
    return PipelineModule(
        layers=layers, topology=topology, partition_method=f"type:{{layer_class}}",
        activation_checkpoint_interval=int(RECOMPUTE), **more,
    )
'''


def job(setup: Setup, header: tuple[str, ...], options: OptionList | None) -> Job:
    """Writes ds_config.json, ds_plan.py for settings that it lacks, and the command that passes it to your script."""
    document = nested({key: value for key, value in TABLE.write(setup).items() if not key.startswith(f"{PYTHON}.")})
    pipeline = _PIPELINE.format(layers=setup.chunk_sizes[0]) if setup.layout.pp > 1 else ""
    module = _MODULE.format(header="\n".join(header), pp=setup.layout.pp, tp=setup.layout.tp, dp=setup.layout.dp,
                            recompute=setup.recompute == "full", seq_len=setup.workload.seq_len,
                            pipeline=pipeline)  # fmt: skip
    own = setup.layout.pp > 1 or setup.layout.cp > 1  # pipelines and Ulysses need another model, which is the user's
    script = {} if own else {TRAIN_FILE: train_script(setup, header, IMPORTS, MAIN)}
    return Job(
        name=f"{setup.model.name}-deepspeed", title=str(setup.layout), header=header, num_nodes=setup.num_nodes,
        gpus_per_node=setup.gpus_per_node,
        files={MAIN_FILE: json.dumps(document, indent=2, sort_keys=True) + "\n", f"{PYTHON}.py": module, **script},
        command=f"{torchrun(setup.num_nodes, setup.gpus_per_node)}"
                f'  "$TRAIN_SCRIPT" --deepspeed_config "$here/{MAIN_FILE}"',
        needs={"TRAIN_SCRIPT": "your training script, which calls deepspeed.initialize"} if own else {},
        defaults={} if own else DEFAULTS, python_path=True, notes=_notes(setup),
        example="" if own else "--model <folder with config.json> --lr <learning rate>",
    )  # fmt: skip


def _notes(setup: Setup) -> tuple[str, ...]:
    """Steps that the JSON leaves to the user."""
    out = []
    if setup.layout.pp > 1:
        out.append(f"pp {setup.layout.pp} is not in ds_config.json: build the model with ds_plan.pipeline(...)")
    if setup.recompute == "full" and setup.layout.cp > 1:
        out.append("full recomputation is not in ds_config.json: call model.gradient_checkpointing_enable()")
    rate = f"optimizer.params.{techniques.RATE}` is `auto`: {TRAIN_FILE} and Trainer fill it in, your own script must"
    return (*out, f"`{rate}", *techniques.notes(setup))


def _even_stages(columns: Columns, problem: Problem) -> Mask:
    """Mask of layouts with equally many layers per stage, as its partition by type requires."""
    return np.asarray(problem.model.num_layers % columns["pp"] == 0)


def cannot(model: ModelSpec, workload: Workload, options: OptionList | None) -> list[str]:
    """One sentence per part of the model and its training that DeepSpeed cannot express."""
    reasons = {
        "workload.optimizer: plans are not written with its Muon": workload.optimizer == "muon",
        f"workload.optimizer: it has no {workload.optimizer}": workload.optimizer not in (*OPTIMIZERS, "muon"),
        "workload.lora: adapters belong to your script (peft)": workload.lora is not None,
        "workload.expert_capacity_factor: its AutoEP drops no token": model.capacity_factor is not None,
        "workload.trains_layers: frozen layers belong to your script": workload.trains_layers is not None,
    }
    return [*(text for text, applies in reasons.items() if applies), *masked_squares(model)]


def _read(path: str, text: str, options: OptionList) -> Arguments:
    if path.endswith(".py"):
        return read_constants(path, text, options, PYTHON)
    return techniques.without_rate(read_config(path, text, options))


def _read_together(files: Mapping[str, str], options: OptionList, given: Sequence[str],
                   wanted: frozenset[str]) -> Arguments:  # fmt: skip
    """Reads each file separately, and a template with the given words. A launch script states the ranks, and writes the
    JSON where none is given."""
    arguments = Arguments()
    configs = {path: text for path, text in files.items() if not is_script(path, text)}
    for path in (path for path in files if path not in configs):
        part, written = launch_script.read(path, files[path], given)
        arguments.add(part, path)
        if not any(name.endswith(".json") for name in configs):
            configs |= {f"{path}: {name}": body for name, body in written.items()}
    for path, text in configs.items():
        filled, open_words = templates.filled(text, given)
        part = _read(path, filled, options)
        templates.doubt(part, open_words, path)
        arguments.add(part, path)
    return arguments


def _modernise(arguments: Arguments) -> None:
    """DeepSpeedConfig asks for its own keys outside of blocks (deepspeed/runtime/config.py)."""
    pass_over(arguments, "DeepSpeed", option_list(_N)[0].options, CONFIG.reading)
    modernise(arguments)


CONFIG = LaunchConfig(
    main_file=MAIN_FILE,
    more_files=(f"{PYTHON}.py",),
    stated={f"{PYTHON}.py": (r"^(?:PIPELINE_STAGES|TENSOR_PARALLEL|DATA_PARALLEL|SEQUENCE_LENGTH) = (\S+)",)},
    read=_read,
    read_together=_read_together,
    table=lambda options: TABLE,
    script_prefix=f"{PYTHON}.",
    conflicts=conflicts,
    import_format=_N,
    prices=PRICES,
    reading=Reading(older=OLDER, modernise=_modernise, changes=CHANGES, harmless=HARMLESS, exclusive=EXCLUSIVE),
    parser=FrameworkParser(
        script=Path(__file__).with_name("parser.py"),
        case=lambda files, setup: {
            "config": json.loads(files[MAIN_FILE]), "world": setup.layout.num_gpus, "dp": setup.layout.dp,
            "mpu": setup.layout.pp > 1 or setup.layout.cp > 1},
        modules=("torch", "deepspeed"),
    ),
)
TARGET = Target(
    _N,
    "DeepSpeed (ds_config.json)",
    "deepspeed",
    "DeepSpeed edaa7221 (2026-08-22, 0.19.6), runtime/pipe/engine.py:77, runtime/zero/config.py, sequence/layer.py",
    rules=(
        Rule(f"{_N}: pipeline", ("pp", "zero"), _pipeline,
             "PipelineEngine refuses ZeRO-2 and 3 (z{zero} with pp {pp})"),
        Rule(f"{_N}: states", ("pp", "dp", "zero", "precision"), _whole_states,
             "its pipeline shards the states in bf16: z0 is z1 there (pp {pp})"),
        Rule(f"{_N}: sequence_parallel", ("tp", "sequence_parallel"), _no_sequence_parallel,
             "AutoTP keeps activations whole: no sequence parallelism with tp {tp}"),
        Rule(f"{_N}: stages", ("pp",), _even_stages,
             "its partition by type gives every stage the same number of layers: pp {pp} does not divide them"),
        only(_N, "schedule", ("1f1b",), "DeepSpeed's pipeline has only 1f1b, not {schedule_name}"),
        whole_mixers(_N, "DeepSpeed"),
        whole_sequences(_N, "DeepSpeed"),
        Rule(f"{_N}: context", ("cp", "pp"), _ulysses_alone, "Ulysses does not combine with the pipeline engine"),
        Rule(f"{_N}: cp_algorithm", ("cp", "cp_algorithm"),
             lambda x, p: np.asarray((x["cp"] == 1) | (x["cp_algorithm"] == _ULYSSES)),
             "DeepSpeed has Ulysses only, no {algorithm}"),
        only(_N, "etp", (1,), "DeepSpeed has no expert-tensor parallelism (etp {etp})"),
        Rule(f"{_N}: shard", ("dp", "zero", "shard"), _shards,
             "sharding over part of the ranks (MiCS, hpZ) is not planned for DeepSpeed"),
        Rule(f"{_N}: experts", ("ep", "zero"), _experts, "DeepSpeed refuses its experts (ep {ep}) with ZeRO-3"),
        Rule(f"{_N}: offload", ("zero", "offload"), _host_optimizer, "offload_optimizer belongs to ZeRO 1 and above"),
        only(_N, "recompute", ("none", "full"), "DeepSpeed checkpoints whole layers only"),
        only(_N, "recompute_layers", (0,), "activation_checkpointing takes all layers"),
        only(_N, "offload", ("none", "opt"), "activation offload needs cpu_checkpointing of its own model code"),
        only(_N, "precision", ("bf16", "fp16", "fp32"), "DeepSpeed's JSON has no fp8 recipe"),
        *rules_of(_N),
    ),
    technique_rules=techniques.rules,
    # One rank has stages as well: offload_optimizer belongs to them, and moves the states of a single GPU.
    axes=lambda problem: {"zero": tuple(range(4))},
    trainer=Trainer(framework="DeepSpeed", config=CONFIG, job=job, cannot_build=cannot,
                    techniques=techniques.CAN),
)  # fmt: skip
