"""Plan <-> arguments of Megatron-LM's pretrain_gpt.py, both ways.

Names and meanings: Megatron-LM core_v0.16.1 to d98e8a64, training/arguments.py, core/model_parallel_config.py,
core/transformer/transformer_config.py.
"""

from __future__ import annotations

import numpy as np

from ....cost_models.layouts import CP_ALGORITHMS
from ....cost_models.quantities.shards import ulysses_degree
from ....cost_models.specs.cluster import BLACKWELL
from ....errors import InputError
from ..option_lists import OptionList
from ..options import Entry, Facts, NoCounterpartError, Settings, Table, number
from ..setup import Setup
from ..switch_options import entries_of
from . import encoders, engine_json, layer_inputs, mindspeed, multimodal, offload
from .model import MODEL
from .muon import LAYER_WISE
from .stages import GROUP_SIZE, group_read, group_write, pipeline_read, pipeline_write

MODULES = {"attn": "core_attn", "norm": "layernorm", "act": "moe_act", "moe": "moe", "mla": "mla_up_proj", "mlp": "mlp",
           "shared": "shared_experts"}  # fmt: skip
CP_COMM = {"ring": "p2p", "allgather": "all_gather", "ulysses": "a2a", "ring+ulysses": "a2a+p2p"}
STRATEGIES = {2: "optim_grads", 3: "optim_grads_params"}


def max_connections(setup: Setup) -> str | None:
    """CUDA_DEVICE_MAX_CONNECTIONS; None where it may be unset.

    Megatron asserts 1 with tp or cp before Blackwell, and Megatron-FSDP rejects 1. Expert messages that overlap with
    compute need more (training/arguments.py names 32).
    """
    if setup.layout.ep_overlap:
        return "32"
    split = setup.layout.tp > 1 or setup.layout.cp > 1
    return "1" if split and setup.layout.zero < 2 and (setup.capability or 0.0) < BLACKWELL else None


def _context_write(setup: Setup) -> Settings:
    if setup.layout.cp == 1:
        return {}
    algorithm = CP_ALGORITHMS[setup.layout.cp_algorithm]
    out: Settings = {"--cp-comm-type": [CP_COMM[algorithm]]}
    if algorithm == "ring+ulysses":
        columns = {name: np.array([getattr(setup.layout, name)]) for name in ("cp", "tp", "cp_algorithm")}
        heads = int(ulysses_degree(setup.model, columns)[0])
        out["--hierarchical-context-parallel-sizes"] = [heads, setup.layout.cp // heads]
    return out


def _context_read(settings: Settings, facts: Facts) -> Facts:
    if facts["cp"] == 1:
        return {}
    kinds = set(settings.get("--cp-comm-type", ["p2p"]))
    meaning = {value: name for name, value in CP_COMM.items()}
    if len(kinds) > 1 or not kinds <= set(meaning):
        raise InputError(
            f"--cp-comm-type {' '.join(sorted(kinds))}: a plan has one of {', '.join(meaning)} for all layers",
            hint="name it once",
        )
    return {"cp_algorithm": meaning[kinds.pop()]}


def _shards_write(setup: Setup) -> Settings:
    layout = setup.layout
    if not layout.zero:
        return {}
    out: Settings = {"--use-distributed-optimizer": True}
    if layout.zero > 1:
        out |= {
            "--use-megatron-fsdp": True, "--data-parallel-sharding-strategy": STRATEGIES[layout.zero],
            "--ckpt-format": "fsdp_dtensor", "--no-gradient-accumulation-fusion": True,
        }  # fmt: skip
    if layout.shard < layout.dp:
        out["--num-distributed-optimizer-instances"] = layout.dp // layout.shard
    return out


def _shards_read(settings: Settings, facts: Facts) -> Facts:
    strategy = str(settings.get("--data-parallel-sharding-strategy", "no_shard"))
    fsdp = {"no_shard": 0, "optim": 1, "optim_grads": 2, "optim_grads_params": 3}
    if settings.get("--use-torch-fsdp2"):
        zero = 2 if settings.get("--torch-fsdp2-no-reshard-after-forward") else 3
    elif settings.get("--use-megatron-fsdp"):
        zero = fsdp[strategy]
    else:
        layer_wise = settings.get("--optimizer") == LAYER_WISE
        zero = int(bool(settings.get("--use-distributed-optimizer")) or layer_wise)
    instances = int(settings.get("--num-distributed-optimizer-instances", 1))
    return {"zero": zero, "replicas": instances}


def _recompute_write(setup: Setup) -> Settings:
    if setup.recompute == "selective":
        chosen = setup.recompute_modules  # Megatron's `moe` also runs the shared experts (moe_layer.py, custom_forward)
        names = [MODULES[name] for name in chosen if name != "shared" or "moe" not in chosen]
        return {"--recompute-granularity": "selective", "--recompute-modules": names}
    if setup.recompute == "none":
        return {}
    layers = setup.layout.recompute_layers
    method = ("block", layers) if layers else ("uniform", 1)
    return {"--recompute-granularity": "full", "--recompute-method": method[0], "--recompute-num-layers": method[1]}


def _recompute_read(settings: Settings, facts: Facts) -> Facts:
    selective = settings.get("--recompute-activations") or settings.get("--recompute-granularity") == "selective"
    if selective:
        meaning = {value: name for name, value in MODULES.items()}
        names = settings.get("--recompute-modules", ["core_attn"])
        if unknown := [name for name in names if name not in meaning]:
            raise NoCounterpartError(
                f"--recompute-modules {unknown[0]} has no counterpart in a plan", hint=f"known: {', '.join(meaning)}"
            )
        modules = {meaning[name] for name in names}
        if "moe" in modules and facts.get("model.moe", {}).get("shared_ffn"):
            modules.add("shared")
        return {"recompute": {"mode": "selective", "modules": [name for name in MODULES if name in modules]}}
    if settings.get("--recompute-granularity") != "full":
        return {"recompute": {"mode": "none"}}
    number = int(settings.get("--recompute-num-layers", 1))
    largest = max(facts.get("stages") or [facts.get("model.layers", 0) // (facts["pp"] * facts["vpp"])])
    if settings.get("--recompute-method") == "block" and not 0 < largest <= number:
        return {"recompute": {"mode": "full", "layers": number}}
    return {"recompute": {"mode": "full"}}


def _precision_write(setup: Setup) -> Settings:
    if setup.precision == "fp8":
        return {"--bf16": True, "--fp8-format": "hybrid"}
    if setup.precision == "fp4":
        return {"--bf16": True, "--fp4-format": "e2m1", "--fp4-recipe": "nvfp4"}
    return {} if setup.precision == "fp32" else {f"--{setup.precision}": True}


def _precision_read(settings: Settings, facts: Facts) -> Facts:
    for name in ("fp8", "fp4"):
        if settings.get(f"--{name}-format") is not None:
            return {"precision": name}
    return {"precision": next((name for name in ("bf16", "fp16") if settings.get(f"--{name}")), "fp32")}


def _optimizer_write(setup: Setup) -> Settings:
    name = setup.workload.optimizer
    out: Settings = {"--optimizer": name if name in ("sgd", "muon") else "adam"}
    if name == "adamw-bf16":
        out |= {"--exp-avg-dtype": "bf16", "--exp-avg-sq-dtype": "bf16"}
    if "opt" in setup.offload:
        out |= {"--optimizer-cpu-offload": True, "--optimizer-offload-fraction": 1.0}
        if setup.stack.offload_overlap > 0:
            out["--overlap-cpu-optimizer-d2h-h2d"] = True
    if "opt" in setup.offload or name == "adamw-bf16":
        out["--use-precision-aware-optimizer"] = True
    return out


def _optimizer_read(settings: Settings, facts: Facts) -> Facts:
    name = str(settings.get("--optimizer", "adam"))
    known = {"adam": "adamw", "sgd": "sgd", "muon": "muon", LAYER_WISE: "muon"}
    if name not in known:
        raise NoCounterpartError(f"--optimizer {name} has no counterpart in a plan", hint=f"known: {', '.join(known)}")
    small = {"bf16", "fp16"} & {settings.get("--exp-avg-dtype"), settings.get("--exp-avg-sq-dtype")}
    optimizer = "adamw-bf16" if name == "adam" and small else known[name]
    places = (("opt", "--optimizer-cpu-offload"), ("act", layer_inputs.ON_HOST))
    offload = "+".join(name for name, option in places if settings.get(option))
    return {"workload.optimizer": optimizer, "offload": offload or "none"}


def _batch_read(settings: Settings, facts: Facts) -> Facts:
    """Without a global batch every rank takes one micro-batch (Megatron-LM d98e8a64, training/arguments.py)."""
    if (batch := settings.get("--global-batch-size")) is not None:
        return {"workload.global_batch": batch}
    return {"batch_per_rank": facts["micro_batch"]} if "micro_batch" in facts else {}


def _experts_write(setup: Setup) -> Settings:
    if not setup.model.is_moe:
        return {}
    out: Settings = {"--expert-model-parallel-size": setup.layout.ep, "--expert-tensor-parallel-size": setup.layout.etp}
    return out | {"--moe-grouped-gemm": True}


def _experts_read(settings: Settings, facts: Facts) -> Facts:
    if not settings.get("--num-experts"):
        return {"ep": 1, "etp": 1}
    ep = settings.get("--expert-model-parallel-size", 1)
    return {"ep": ep, "etp": settings.get("--expert-tensor-parallel-size", facts["tp"])}  # Megatron's default is tp


LAYOUT = (
    number("tp", "--tensor-model-parallel-size", lambda s: s.layout.tp, 1),
    Entry(("sequence_parallel",), ("--sequence-parallel",),
          lambda s: {"--sequence-parallel": True} if s.layout.sequence_parallel else {},
          lambda given, facts: {"sequence_parallel": bool(given.get("--sequence-parallel")) and facts["tp"] > 1}),
    number("pp", "--pipeline-model-parallel-size", lambda s: s.layout.pp, 1),
    Entry(("vpp", "schedule", "stages"),
          ("--pipeline-model-parallel-layout", "--num-layers-per-virtual-pipeline-stage",
           "--num-virtual-stages-per-pipeline-rank", "--decoder-first-pipeline-num-layers",
           "--decoder-last-pipeline-num-layers", "--account-for-embedding-in-pipeline-split",
           "--account-for-loss-in-pipeline-split"), pipeline_write, pipeline_read),
    Entry(("interleaving_group",), (GROUP_SIZE,), group_write, group_read),
    number("cp", "--context-parallel-size", lambda s: s.layout.cp, 1),
    Entry(("cp_algorithm",), ("--cp-comm-type", "--hierarchical-context-parallel-sizes"),
          _context_write, _context_read),
    Entry(("ep", "etp"), ("--expert-model-parallel-size", "--expert-tensor-parallel-size", "--moe-grouped-gemm"),
          _experts_write, _experts_read),
    Entry(("zero", "shard", "dp"),
          ("--use-distributed-optimizer", "--use-megatron-fsdp", "--data-parallel-sharding-strategy", "--ckpt-format",
           "--no-gradient-accumulation-fusion", "--num-distributed-optimizer-instances", "--use-torch-fsdp2",
           "--torch-fsdp2-no-reshard-after-forward", "--outer-dp-sharding-strategy"), _shards_write, _shards_read),
    number("micro_batch", "--micro-batch-size", lambda s: s.layout.micro_batch),
    Entry(("workload.global_batch",), ("--global-batch-size",),
          lambda s: {"--global-batch-size": s.workload.global_batch}, _batch_read),
    number("workload.seq_len", "--seq-length", lambda s: s.workload.seq_len),
    Entry(("recompute", "recompute_modules", "recompute_layers"),
          ("--recompute-granularity", "--recompute-modules", "--recompute-method", "--recompute-num-layers",
           "--recompute-activations"), _recompute_write, _recompute_read),
    Entry(("precision",), ("--bf16", "--fp16", "--fp8-format", "--fp4-format", "--fp4-recipe"),
          _precision_write, _precision_read),
    Entry(("offload", "workload.optimizer"),
          ("--optimizer", "--exp-avg-dtype", "--exp-avg-sq-dtype", "--optimizer-cpu-offload",
           "--optimizer-offload-fraction", "--overlap-cpu-optimizer-d2h-h2d", "--use-precision-aware-optimizer",
           layer_inputs.ON_HOST),
          _optimizer_write, _optimizer_read),
    offload.ENTRY,
    layer_inputs.ENTRY,
)  # fmt: skip


def table(release: OptionList | None) -> Table:
    """The table of a release (None: the newest)."""
    switches = entries_of("megatron", release, axes=offload.FIELDS)
    return Table((*MODEL, *LAYOUT, encoders.ENTRY, multimodal.ENTRY, mindspeed.ENTRY, engine_json.ENTRY, *switches))


TABLE = table(None)
