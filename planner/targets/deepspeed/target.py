"""DeepSpeed: ds_config.json, and a small Python file for what JSON cannot say."""

import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from ....cost_models.arrays import Mask
from ....cost_models.layouts import CP_ALGORITHMS, OFFLOADS
from ....cost_models.problem import Problem
from ....cost_models.specs.model import ModelSpec
from ....cost_models.specs.workload import Workload
from ...space.rules import Columns, Rule, only
from ..base import Target, Trainer
from ..launchers.base import Job, torchrun
from ..option_lists import OptionList
from ..options import Entry, Facts, Settings, Table, number
from ..setup import Setup
from . import techniques

_N = "deepspeed"
_ULYSSES = CP_ALGORITHMS.index("ulysses")


def _pipeline(columns: Columns, problem: Problem) -> Mask:
    return np.asarray((columns["zero"] <= 1) | (columns["pp"] == 1))


def _shards(columns: Columns, problem: Problem) -> Mask:
    # MiCS and hpZ shard over part of the ranks; both refuse much else, and no plan uses them yet.
    return np.asarray((columns["zero"] == 0) | (columns["shard"] == columns["dp"]))


def _experts(columns: Columns, problem: Problem) -> Mask:
    return np.asarray((columns["zero"] < 3) | (columns["ep"] == 1))


def _host_optimizer(columns: Columns, problem: Problem) -> Mask:
    return np.asarray((columns["zero"] > 0) | (columns["offload"] != OFFLOADS.index("opt")))


def _no_sequence_parallel(columns: Columns, problem: Problem) -> Mask:
    return np.asarray((columns["tp"] == 1) | (columns["sequence_parallel"] == 0))


def _ulysses_alone(columns: Columns, problem: Problem) -> Mask:
    return np.asarray((columns["cp"] == 1) | (columns["pp"] == 1))


PYTHON = "ds_plan"  # options that JSON cannot say: constants of ds_plan.py
_OPTIMIZERS = {"adamw": "AdamW", "sgd": "SGD"}


def _shards_write(setup: Setup) -> Settings:
    zero = setup.layout.zero
    out: Settings = {"zero_optimization.stage": zero}
    if zero:
        overlaps = setup.stack.fsdp_overlap > 0 if zero == 3 else setup.stack.dp_overlap > 0
        out |= {"zero_optimization.overlap_comm": overlaps, "zero_optimization.contiguous_gradients": True,
                "zero_optimization.reduce_scatter": True}  # fmt: skip
    if "opt" in setup.offload:
        out |= {"zero_optimization.offload_optimizer.device": "cpu",
                "zero_optimization.offload_optimizer.pin_memory": True}  # fmt: skip
    return out | techniques.states_write(setup)


def _shards_read(settings: Settings, facts: Facts) -> Facts:
    device = settings.get("zero_optimization.offload_optimizer.device", "none")
    zero, overlap = settings.get("zero_optimization.stage", 0), "zero_optimization.overlap_comm"
    out: Facts = {"zero": zero, "offload": "opt" if device == "cpu" else "none", **techniques.states_read(settings)}
    if zero in (1, 2) and not settings.get(overlap):  # stage 3 overlaps unless told not to (runtime/zero/config.py)
        out[f"switched.{overlap}"] = {"dp_overlap_grad": False}
    return out


def _context_write(setup: Setup) -> Settings:
    if setup.layout.cp == 1:
        return {}
    return {"sequence_parallel_size": setup.layout.cp, "data_parallel_size": setup.layout.dp}


def _context_read(settings: Settings, facts: Facts) -> Facts:
    heads = settings.get("sequence_parallel_size", 1)
    out: Facts = {"cp": heads} | ({"cp_algorithm": "ulysses"} if heads > 1 else {})
    return out | ({"dp": settings["data_parallel_size"]} if "data_parallel_size" in settings else {})


def _experts_write(setup: Setup) -> Settings:
    if setup.layout.ep == 1:
        return {}
    return {"expert_parallel.enabled": True, "expert_parallel.autoep_size": setup.layout.ep}


def _experts_read(settings: Settings, facts: Facts) -> Facts:
    on = settings.get("expert_parallel.enabled", False)
    return {"ep": settings.get("expert_parallel.autoep_size", 1) if on else 1,
            "etp": settings.get("expert_parallel.expert_tensor_parallel_size", 1) if on else 1}  # fmt: skip


def _batch_write(setup: Setup) -> Settings:
    return {
        "train_batch_size": setup.workload.global_batch, "train_micro_batch_size_per_gpu": setup.layout.micro_batch,
        "gradient_accumulation_steps": setup.num_micro_batches,
    }  # fmt: skip


def _batch_read(settings: Settings, facts: Facts) -> Facts:
    batch, micro, steps = (settings.get(name) for name in ("train_batch_size", "train_micro_batch_size_per_gpu",
                                                           "gradient_accumulation_steps"))  # fmt: skip
    out: Facts = {} if batch is None else {"workload.global_batch": batch}
    if micro is None:
        return out
    out |= {"micro_batch": micro}
    return out if batch is not None else out | {"batch_per_rank": micro * (steps or 1)}


def _precision_write(setup: Setup) -> Settings:
    return {} if setup.precision == "fp32" else {f"{setup.precision}.enabled": True}


def _precision_read(settings: Settings, facts: Facts) -> Facts:
    return {"precision": next((name for name in ("bf16", "fp16") if settings.get(f"{name}.enabled")), "fp32")}


def _recompute_write(setup: Setup) -> Settings:
    out: Settings = {f"{PYTHON}.RECOMPUTE": setup.recompute == "full"}
    if setup.recompute == "full" and setup.layout.pp > 1:
        out["pipeline.activation_checkpoint_interval"] = 1
    return out


def _recompute_read(settings: Settings, facts: Facts) -> Facts:
    full = settings.get(f"{PYTHON}.RECOMPUTE") or settings.get("pipeline.activation_checkpoint_interval")
    return {"recompute": {"mode": "full" if full else "none"}}


TABLE = Table((
    number("pp", f"{PYTHON}.PIPELINE_STAGES", lambda s: s.layout.pp, 1),
    number("tp", "tensor_parallel.autotp_size", lambda s: s.layout.tp, 1),
    Entry(("cp", "cp_algorithm"), ("sequence_parallel_size", "data_parallel_size"), _context_write, _context_read),
    Entry(("zero", "shard", "dp", "offload", techniques.FACT),
          (*(f"zero_optimization.{name}" for name in ("stage", "overlap_comm", "contiguous_gradients",
             "reduce_scatter", "offload_optimizer.device", "offload_optimizer.pin_memory")), *techniques.OPTIONS),
          _shards_write, _shards_read),
    Entry(("ep", "etp"), ("expert_parallel.enabled", "expert_parallel.autoep_size"), _experts_write, _experts_read),
    Entry(("micro_batch", "workload.global_batch"),
          ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"),
          _batch_write, _batch_read),
    Entry(("precision",), ("bf16.enabled", "fp16.enabled"), _precision_write, _precision_read),
    Entry(("recompute", "recompute_modules", "recompute_layers"),
          (f"{PYTHON}.RECOMPUTE", "pipeline.activation_checkpoint_interval"), _recompute_write, _recompute_read),
    Entry(("workload.optimizer",), techniques.OPTIMIZER_OPTIONS,
          lambda s: techniques.optimizer_write(s, _OPTIMIZERS), techniques.optimizer_read),
    Entry(("schedule", "vpp"), (), lambda s: {}, lambda given, facts: {"schedule": "1f1b", "vpp": 1}),
    Entry(("sequence_parallel",), (), lambda s: {}, lambda given, facts: {"sequence_parallel": False}),
))  # fmt: skip

_MODULE = '''\
"""{header}

What ds_config.json cannot say. Your script imports it: `import ds_plan`.
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


def nested(settings: Settings) -> dict[str, Any]:
    """Dotted options as blocks."""
    out: dict[str, Any] = {}
    for key, value in settings.items():
        *blocks, name = key.split(".")
        holder = out
        for block in blocks:
            holder = holder.setdefault(block, {})
        holder[name] = value
    return out


def job(setup: Setup, header: tuple[str, ...], options: OptionList | None) -> Job:
    """ds_config.json, ds_plan.py for what it cannot say, and the command that gives it to your script."""
    document = nested({key: value for key, value in TABLE.write(setup).items() if not key.startswith(f"{PYTHON}.")})
    pipeline = _PIPELINE.format(layers=setup.chunk_sizes[0]) if setup.layout.pp > 1 else ""
    module = _MODULE.format(header="\n".join(header), pp=setup.layout.pp, tp=setup.layout.tp, dp=setup.layout.dp,
                            recompute=setup.recompute == "full", seq_len=setup.workload.seq_len,
                            pipeline=pipeline)  # fmt: skip
    return Job(
        name=f"{setup.model.name}-deepspeed", title=str(setup.layout), header=header, num_nodes=setup.num_nodes,
        gpus_per_node=setup.gpus_per_node,
        files={"ds_config.json": json.dumps(document, indent=2, sort_keys=True) + "\n", "ds_plan.py": module},
        command=f"{torchrun(setup.num_nodes, setup.gpus_per_node)}"
                '  "$TRAIN_SCRIPT" --deepspeed_config "$here/ds_config.json"',
        needs={"TRAIN_SCRIPT": "your training script, which calls deepspeed.initialize"}, python_path=True,
        says=_says(setup),
    )  # fmt: skip


def _says(setup: Setup) -> tuple[str, ...]:
    """What the JSON alone would leave out."""
    out = []
    if setup.layout.pp > 1:
        out.append(f"pp {setup.layout.pp} is not in ds_config.json: build the model with ds_plan.pipeline(...)")
    if setup.recompute == "full" and setup.layout.pp == 1:
        out.append("full recomputation is not in ds_config.json: call model.gradient_checkpointing_enable()")
    return (*out, *techniques.says(setup))


def conflicts(settings: Settings, environment: Mapping[str, str]) -> list[tuple[str, str]]:
    """What DeepSpeed finds out late or never."""
    out = []
    if settings.get("bf16.enabled") and settings.get("fp16.enabled"):
        out.append(("fp16.enabled", "bf16 and fp16 are both enabled"))
    stage, pp = settings.get("zero_optimization.stage", 0), settings.get(f"{PYTHON}.PIPELINE_STAGES", 1)
    if pp > 1 and stage > 1:
        out.append(("zero_optimization.stage", f"PipelineEngine refuses ZeRO-{stage} (PIPELINE_STAGES {pp})"))
    for name in ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"):
        if (value := settings.get(name)) is not None and value < 1:
            out.append((name, f"`{value}` is not 1 or more"))
    if settings.get("sequence_parallel_size", 1) > 1 and "data_parallel_size" not in settings:
        out.append(("sequence_parallel_size", "makes a mesh only together with data_parallel_size"))
    return out


def _stages(setup: Setup) -> list[str]:
    """Stages that its partition does not make."""
    uneven = len(set(setup.chunk_sizes)) > 1 and setup.candidate.partition is None  # else `Target.cannot_split` says it
    sizes = ", ".join(map(str, setup.chunk_sizes))
    even_only = f"stages: layers of {sizes}; its partition by type gives every stage the same"
    return [even_only] if setup.layout.pp > 1 and uneven else []


def cannot(model: ModelSpec, workload: Workload, options: OptionList | None) -> list[str]:
    """What of the model and its training DeepSpeed cannot express."""
    reasons = {
        f"workload.optimizer: it has no {workload.optimizer}": workload.optimizer not in _OPTIMIZERS,
        "workload.lora: adapters belong to your script (peft)": workload.lora is not None,
        "workload.expert_capacity_factor: its AutoEP drops no token": model.capacity_factor is not None,
        "workload.trains_layers: frozen layers belong to your script": workload.trains_layers is not None,
    }
    return [text for text, applies in reasons.items() if applies]


TARGET = Target(
    _N,
    "DeepSpeed (ds_config.json)",
    "deepspeed",
    "DeepSpeed edaa7221 (2026-08-22, 0.19.6), runtime/pipe/engine.py:77, runtime/zero/config.py, sequence/layer.py",
    rules=(
        Rule(f"{_N}: pipeline", ("pp", "zero"), _pipeline,
             "PipelineEngine refuses ZeRO-2 and 3 (z{zero} with pp {pp})"),
        Rule(f"{_N}: sequence_parallel", ("tp", "sequence_parallel"), _no_sequence_parallel,
             "AutoTP keeps activations whole: no sequence parallelism with tp {tp}"),
        only(_N, "schedule", ("1f1b",), "DeepSpeed's pipeline has only 1f1b, not {schedule_name}"),
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
    ),
    trainer=Trainer("DeepSpeed", lambda options: TABLE, job, cannot, _stages, conflicts, techniques.CAN),
)  # fmt: skip
