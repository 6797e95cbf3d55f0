"""Plan <-> options of MaxText's YAML: mesh, batch, recomputation, numerics.

MaxText e591f30c (2026-08-22), src/maxtext: configs/base.yml (defaults, logical_axis_rules), configs/types.py (values,
batch sizes), utils/maxtext_utils.py and max_utils.py: each axis has ranks in a slice (ici) and over slices (dcn), one
of each may be -1, the rest of the devices. On GPUs a slice is a node (jax-ml/jax, pull request 26906).
"""

from __future__ import annotations

from collections.abc import Mapping
from math import gcd, prod

from ....cost_models.layouts import CP_ALGORITHMS, Layout
from ....errors import InputError
from ..facts import NODES
from ..model_names import known_model
from ..options import Entry, Facts, NoCounterpartError, Settings, Table, always, number
from ..setup import Setup
from ..switch_options import entries_of
from .model import EXPERTS, MODEL
from .remat import OF_MODULES

_PLAIN = ("data", "fsdp", "tensor", "tensor_sequence", "context", "expert", "pipeline")
_OTHER = ("diloco", "fsdp_transpose", "sequence", "context_usp_ulysses", "context_autoregressive", "autoregressive")
AXES = tuple(f"{place}_{axis}_parallelism" for place in ("ici", "dcn") for axis in (*_PLAIN, *_OTHER))
_AUTO = {"ici_fsdp_parallelism": -1, "dcn_data_parallelism": -1}
ALGORITHMS = {"all_gather": "allgather", "ring": "ring", "ulysses": "ulysses"}
_OPTIMIZERS = {"adamw": "adamw", "adam_pax": "adamw", "sgd": "sgd", "muon": "muon"}
_DTYPES = {"bfloat16": "bf16", "float32": "fp32", "float16": "fp16"}
BATCH, STEPS, LENGTH = "per_device_batch_size", "gradient_accumulation_steps", "max_target_length"
STRATEGY, PACKING, SEGMENTS = "context_parallel_strategy", "packing", "max_segments_per_seq"
SLICES, POLICY = "num_slices", "remat_policy"
_MODULES = {policy: modules for modules, policy in OF_MODULES.items()}
_MOST_SEGMENTS = 32  # documents of a packed sequence, as in src/maxtext/configs/gpu/models/


def axes_of(layout: Layout) -> dict[str, int]:
    """Ranks of each axis, from the innermost one on."""
    shard = layout.shard if layout.zero else 1
    tensor = "tensor_sequence" if layout.sequence_parallel else "tensor"
    return {tensor: layout.tp, "context": layout.cp, "fsdp": shard, "data": layout.dp // shard}


def on_nodes(axes: Mapping[str, int], gpus_per_node: int) -> dict[str, tuple[int, int]]:
    """Axis -> (its ranks in a node, its ranks over nodes). The first axes fill a node."""
    left, out = gpus_per_node, {}
    for axis, size in axes.items():
        inside = gcd(size, left)
        left //= inside
        out[axis] = (inside, size // inside)
    return out


def _degrees_write(setup: Setup) -> Settings:
    out: Settings = {}
    for axis, (inside, over) in on_nodes(axes_of(setup.layout), setup.gpus_per_node).items():
        sizes = {f"ici_{axis}_parallelism": inside, f"dcn_{axis}_parallelism": over}
        out |= {name: size for name, size in sizes.items() if size != 1 or name in _AUTO}
    return out | {SLICES: setup.num_nodes}


def _degrees_read(settings: Settings, facts: Facts) -> Facts:
    """Degrees of the mesh: of a node (ici) times over nodes (dcn)."""
    if any(not isinstance(rule, list) or rule[:1] != ["norm"] for rule in settings.get("logical_axis_rules") or ()):
        raise NoCounterpartError("logical_axis_rules: shards by other rules than those of base.yml")
    size = {name: settings.get(name) or _AUTO.get(name, 1) for name in AXES}
    axes = {axis: (size[f"ici_{axis}_parallelism"], size[f"dcn_{axis}_parallelism"]) for axis in (*_PLAIN, *_OTHER)}
    for axis in _OTHER:
        if axes[axis] != (1, 1):
            raise NoCounterpartError(f"ici_{axis}_parallelism has no counterpart in a plan")
    open_axes = [axis for axis, sizes in axes.items() if -1 in sizes]
    if strange := [axis for axis in open_axes if axis not in ("data", "fsdp")]:
        raise NoCounterpartError(f"ici_{strange[0]}_parallelism -1 depends on the number of GPUs: give the number")
    tp, cp, ep = (prod(axes[axis]) for axis in ("tensor", "context", "expert"))
    sequence = prod(axes["tensor_sequence"])
    if prod(axes["pipeline"]) > 1:
        raise NoCounterpartError("ici_pipeline_parallelism: its circular pipeline has no counterpart in a plan")
    out: Facts = {"tp": tp * sequence, "cp": cp, "ep": ep, "sequence_parallel": sequence > 1, "pp": 1, "vpp": 1,
                  "schedule": "1f1b", "etp": 1}  # fmt: skip
    # Weights are sharded over fsdp, context and expert (`embed` of logical_axis_rules).
    sharded = prod(axes["fsdp"]) * ep * cp > 1 or "fsdp" in open_axes
    out["zero"] = 3 if sharded else 0
    over_nodes = axes["data"][1] == -1 and all(axes[axis][1] in (1, -1) for axis in _PLAIN)
    if sharded:
        out["replicas"] = NODES if over_nodes else abs(prod(axes["data"]))
    if open_axes:
        return out
    out["dp"] = prod(prod(axes[axis]) for axis in ("data", "fsdp", "expert"))
    slices, nodes = settings.get(SLICES) or -1, prod(over for _, over in axes.values())
    if slices not in (-1, nodes):
        raise InputError(f"{SLICES} {slices}: the axes over slices (dcn) make {nodes}", hint=f"{SLICES}: {nodes}")
    return out | {"num_gpus": out["tp"] * cp * out["dp"]}


def _expert_ranks(settings: Settings, facts: Facts) -> Facts:
    """Experts are split over the tensor axes too (`mlp_moe` of logical_axis_rules)."""
    return {"etp": facts["tp"]} if _is_moe(settings, facts) and facts["ep"] > 1 else {}


def _is_moe(settings: Settings, facts: Facts) -> bool:
    known = known_model(str(facts.get("model_name", "")))
    return (settings.get("num_experts") or 1) > 1 or (known is not None and known.is_moe)


def _algorithm_write(setup: Setup) -> Settings:
    """Sequences are packed where the attention of Transformer Engine allows it (utils/train_utils.py)."""
    name = CP_ALGORITHMS[setup.layout.cp_algorithm]
    packs = setup.layout.cp == 1 or name == "ring"
    strategy = {STRATEGY: next(spelled for spelled, known in ALGORITHMS.items() if known == name)}
    return {
        **(strategy if setup.layout.cp > 1 else {}),
        PACKING: packs,
        **({SEGMENTS: _MOST_SEGMENTS} if packs else {}),
    }


def _algorithm_read(settings: Settings, facts: Facts) -> Facts:
    name = settings.get(STRATEGY) or "all_gather"
    if facts["cp"] > 1 and name not in ALGORITHMS:
        raise NoCounterpartError(f"{STRATEGY} `{name}` has no counterpart in a plan")
    return {"cp_algorithm": ALGORITHMS[name]} if facts["cp"] > 1 else {}


def per_device(micro_batch: int, ranks: int) -> float:
    """Sequences of a micro-batch per device, of which `ranks` share each sequence."""
    return micro_batch / ranks


def _batch_write(setup: Setup) -> Settings:
    layout = setup.layout
    return {BATCH: per_device(layout.micro_batch, layout.tp * layout.cp), STEPS: setup.num_micro_batches}


def _batch_read(settings: Settings, facts: Facts) -> Facts:
    """per_device_batch_size counts all devices, those that share a sequence too."""
    given = settings.get(BATCH, 12.0) * facts["tp"] * facts["cp"]
    micro = round(given)
    if micro < 1 or abs(given - micro) > 1e-6:
        raise NoCounterpartError(f"{BATCH}: {given:g} sequences per data-parallel rank")
    return {"micro_batch": micro, "batch_per_rank": micro * (settings.get(STEPS) or 1)}


def _recompute_write(setup: Setup) -> Settings:
    return {POLICY: "full" if setup.recompute == "full" else OF_MODULES[frozenset(setup.recompute_modules)]}


def _recompute_read(settings: Settings, facts: Facts) -> Facts:
    policy = settings.get(POLICY) or "full"
    if policy in ("full", "none"):
        return {"recompute": {"mode": "full"}}
    dense = not _is_moe(settings, facts)
    modules = _MODULES.get("minimal_with_context" if policy == "minimal_flash" else policy) if dense else None
    if modules is None:
        known = ", ".join(("full", *(OF_MODULES.values() if dense else ())))
        raise NoCounterpartError(f"{POLICY} `{policy}` keeps tensors of its own choice", hint=f"known: {known}")
    return {"recompute": {"mode": "selective", "modules": sorted(modules)}}


def _precision_read(settings: Settings, facts: Facts) -> Facts:
    dtype, quantised = settings.get("dtype") or "bfloat16", str(settings.get("quantization") or "")
    if "fp8" in quantised:
        return {"precision": "fp8"}
    if "nvfp4" in quantised:
        return {"precision": "fp4"}
    if quantised or dtype not in _DTYPES:
        name = "quantization" if quantised else "dtype"
        raise NoCounterpartError(f"{name} `{quantised or dtype}` has no counterpart in a plan")
    return {"precision": _DTYPES[dtype]}


def _optimizer_read(settings: Settings, facts: Facts) -> Facts:
    name = settings.get("opt_type") or "adamw"
    if name not in _OPTIMIZERS:
        raise NoCounterpartError(f"opt_type `{name}` has no counterpart in a plan", hint=", ".join(_OPTIMIZERS))
    offload = "opt" if settings.get("optimizer_memory_host_offload") else "none"
    return {"workload.optimizer": _OPTIMIZERS[name], "offload": offload}


def _capacity_read(settings: Settings, facts: Facts) -> Facts:
    factor = settings.get("capacity_factor") or -1
    return {"workload.expert_capacity_factor": factor} if factor > 0 else {}


TABLE = Table((
    always(("hardware", "gpu"), ("attention", "cudnn_flash_te"), ("weight_dtype", "float32"), ("scan_layers", True)),
    Entry(("tp", "cp", "ep", "dp", "num_gpus", "zero", "shard", "sequence_parallel", "pp", "vpp", "schedule"),
          (*AXES, SLICES, "logical_axis_rules"), _degrees_write, _degrees_read),
    Entry(("cp_algorithm",), (STRATEGY, PACKING, SEGMENTS), _algorithm_write, _algorithm_read),
    number("workload.seq_len", LENGTH, lambda setup: setup.workload.seq_len, 2048),
    Entry(("micro_batch", "workload.global_batch"), (BATCH, STEPS), _batch_write, _batch_read),
    Entry(("precision",), ("dtype", "quantization"), lambda setup: {"dtype": "bfloat16"}, _precision_read),
    Entry(("workload.optimizer", "offload"), ("opt_type", "optimizer_memory_host_offload"),
          lambda setup: {"opt_type": "adamw"}, _optimizer_read),
    *MODEL,
    Entry(("etp",), EXPERTS[:1], lambda setup: {}, _expert_ranks),
    Entry(("recompute", "recompute_modules", "recompute_layers"), (POLICY,), _recompute_write, _recompute_read),
    Entry(("workload.expert_capacity_factor",), ("capacity_factor",), lambda setup: {}, _capacity_read),
    *entries_of("maxtext"),
))  # fmt: skip
