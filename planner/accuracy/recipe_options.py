"""A row of tuned plans in two parts: its layout as arguments of Megatron, and the switches of its software.

`planner/targets/megatron/options.py` reads the arguments, `stack_features.py` the switches. The fields of a row are
those of Megatron-Bridge's recipes (docs/concepts/trust.md).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...cost_models.layer_kinds.mamba2 import Mamba2
from ...cost_models.specs.model import ModelSpec
from ...profiles.model.load import trained_with
from ..targets.megatron.muon import LAYER_WISE
from ..targets.options import Settings
from .row import RowReader

# Field of a row -> argument.
_NUMBERS = {
    "tp": "--tensor-model-parallel-size", "pp": "--pipeline-model-parallel-size", "cp": "--context-parallel-size",
    "vpp": "--num-virtual-stages-per-pipeline-rank", "ep": "--expert-model-parallel-size",
    "etp": "--expert-tensor-parallel-size", "micro_batch": "--micro-batch-size",
    "global_batch": "--global-batch-size", "seq_len": "--seq-length",
    "first_stage_layers": "--decoder-first-pipeline-num-layers",
    "last_stage_layers": "--decoder-last-pipeline-num-layers",
}  # fmt: skip
_REQUIRED = ("tp", "pp", "micro_batch", "global_batch")
_FLAGS = {
    "sp": "--sequence-parallel", "account_embedding": "--account-for-embedding-in-pipeline-split",
    "account_loss": "--account-for-loss-in-pipeline-split", "fsdp": "--use-megatron-fsdp",
    "precision_aware_opt": "--use-precision-aware-optimizer",
}  # fmt: skip
# Precision of a recipe -> the arguments that its MixedPrecisionConfig of Megatron-Bridge stands for.
PRECISIONS: Mapping[str, Settings] = {
    "bf16": {"--bf16": True},
    "fp16": {"--fp16": True},
    "fp8_delayed": {"--bf16": True, "--fp8-format": "hybrid"},
    "fp8_current": {"--bf16": True, "--fp8-format": "hybrid"},
    "fp8_subchannel_blockwise": {"--bf16": True, "--fp8-format": "hybrid"},
    "mxfp8": {"--bf16": True, "--fp8-format": "e4m3"},
    "nvfp4": {"--bf16": True, "--fp4-format": "e2m1", "--fp4-recipe": "nvfp4"},
}
# Precision of a recipe -> how it finds the scales of a tensor: feature `fp8_recipe` of published runs.
_SCALES = {"fp8_delayed": "delayed", "fp8_current": "current", "fp8_subchannel_blockwise": "blockwise",
           "mxfp8": "mxfp8"}  # fmt: skip
# Precisions of recipes that keep and gather weights quantised unless told not to (MixedPrecisionConfig).
_GATHERS = {"fp8_delayed": "fp8_param_gather", "fp8_current": "fp8_param_gather", "mxfp8": "fp8_param_gather",
            "nvfp4": "fp4_param_gather"}  # fmt: skip
# Models whose base recipe for pre-training ends with apply_flex_dispatcher_backend, so that no recipe on top of it runs
# the plain all-to-all that it names before (Megatron-Bridge 067f987d, recipes/deepseek/h100/deepseek_v3.py:159, :256).
_FLEXIBLE = ("deepseek-v3",)
_MUON = ("muon", LAYER_WISE)
_DTYPES = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}
_CP_COMM = {"allgather": "all_gather"}  # other types are spelled as the argument


def arguments_of(row: RowReader, optimizer: str | None) -> Settings:
    """The arguments that say what the row's recipe sets; wrong fields are among the row's problems. optimizer: that of
    `optimizer_of`."""
    out: Settings = {}
    for name, option in _NUMBERS.items():
        if row.get(name) is not None or name in _REQUIRED:
            out[option] = row.whole(name)
    out |= {option: True for name, option in _FLAGS.items() if row.flag(name)}
    out |= _precision(row) | _states(row, optimizer) | _recompute(row) | _offload(row)
    if layout := row.text("pipeline_layout", default=""):
        out["--pipeline-model-parallel-layout"] = layout
    if comm := row.text("cp_comm_type", default=""):
        out["--cp-comm-type"] = [_CP_COMM.get(comm, comm)]
    return out


def _precision(row: RowReader) -> Settings:
    name = row.text("precision")
    if name not in PRECISIONS:
        row.fail(("precision",), f"`{name}` is none of {', '.join(PRECISIONS)}")
    return dict(PRECISIONS.get(name, {}))


def optimizer_of(row: RowReader, model: ModelSpec) -> str | None:
    """The row's optimizer as Megatron Core calls it, None for Adam. A recipe that turns the distributed optimizer of
    Adam off for a model whose makers trained it with Muon has Muon's layer-wise one in its place."""
    stated = row.text("optimizer", default="")
    if stated and stated not in ("adam", *_MUON):
        row.fail(("optimizer",), f"`{stated}` is none of adam, {', '.join(_MUON)}")
    if stated or row.flag("dist_opt") is not False or row.flag("fsdp") or trained_with(model.name) != "muon":
        return stated if stated in _MUON else None
    row.assume(f"layer-wise Muon, with which the makers of {model.name} trained it (not stated)")
    return LAYER_WISE


def _states(row: RowReader, optimizer: str | None) -> Settings:
    """The sharding of states, and the dtype of optimizer states."""
    if optimizer is not None:
        return {"--optimizer": optimizer}
    out: Settings = {}
    if (sharded := row.flag("dist_opt")) is None and not row.flag("fsdp"):
        row.assume("distributed optimizer (not stated)")
    if sharded is not False:
        out["--use-distributed-optimizer"] = True
    if row.flag("fsdp"):
        out["--data-parallel-sharding-strategy"] = row.text("fsdp_strategy", default="no_shard")
    if row.flag("precision_aware_opt"):
        stated = row.text("exp_avg_dtype", default="float32")
        out["--exp-avg-dtype"] = _DTYPES.get(stated, stated)
    return out


def _recompute(row: RowReader) -> Settings:
    """Modules without a granularity are inactive, and so is an empty list of modules."""
    part = row.part("recompute")
    granularity, modules = part.get("granularity"), part.get("modules")
    if granularity is None and modules:
        row.assume("recompute modules without a granularity: nothing is recomputed")
    if granularity is None or (granularity == "selective" and modules == []):
        return {}
    out: Settings = {"--recompute-granularity": row.text("recompute", "granularity")}
    if granularity == "selective" and modules is not None:
        out["--recompute-modules"] = [str(name) for name in modules]
    if granularity == "full":
        out["--recompute-method"] = row.text("recompute", "method", default="uniform")
        out["--recompute-num-layers"] = row.whole("recompute", "num_layers", default=1)
    return out


def _offload(row: RowReader) -> Settings:
    """Activations that go to host memory: of named modules, or of the first layers."""
    out: Settings = {}
    if row.flag("act_offload", "fine_grained"):
        out["--fine-grained-activation-offloading"] = True
        out["--offload-modules"] = [str(name) for name in row.get("act_offload", "modules") or ()]
    if row.get("act_offload", "cpu_layers") is not None:
        out["--cpu-offloading-num-layers"] = row.whole("act_offload", "cpu_layers")
    return out


def features_of(row: RowReader, optimizer: str | None, model: ModelSpec) -> dict[str, Any]:
    """The switches of the software that the recipe sets, as features of a published run (`stack_features.py`)."""
    fp32 = row.flag("grad_reduce_fp32")
    gathers = row.flag("nvfp4_or_fp8_param_gather")
    stated = {
        "grad_reduce": None if fp32 is None else "fp32" if fp32 else "bf16",
        "tp_comm_overlap": row.flag("tp_comm_overlap"),
        "dp_overlap_grad": row.flag("overlap_grad_reduce"),
        "dp_overlap_param": row.flag("overlap_param_gather"),
        "fp8_recipe": _SCALES.get(row.text("precision")),
        "moe_dispatcher": _dispatcher(row, model),
        "moe_a2a_overlap": row.flag("ep_overlap"),
        "delay_wgrad": row.flag("delay_wgrad"),
        "moe_force_balance": _balanced(row, model),
        "layer_wise_layout": None if optimizer is None else False,  # Megatron-Bridge has none
    }
    if name := _GATHERS.get(row.text("precision")):
        stated[name] = gathers is not False
    return {name: value for name, value in stated.items() if value is not None} | _graphs(row, model)


def _dispatcher(row: RowReader, model: ModelSpec) -> str | None:
    """How tokens reach their experts; None where the recipe leaves it to the framework. A recipe of a model whose base
    recipe turns to a flexible dispatcher has HybridEP where it sets up ranks for it, else DeepEP."""
    stated = row.text("dispatcher", default="")
    if stated == "flex":
        return row.text("dispatcher_backend")
    if stated != "alltoall" or model.name not in _FLEXIBLE or row.text("task") != "pretrain":
        return stated or None
    used = "hybridep" if row.get("hybrid_ep_ranks") is not None else "deepep"
    row.assume(f"{used} sends tokens, to which the base recipe of {model.name} turns (stated: alltoall)")
    return used


def _balanced(row: RowReader, model: ModelSpec) -> bool | None:
    """Whether tokens are spread over experts at random, evenly. Every recipe for pre-training does so
    (Megatron-Bridge 067f987d, perf_recipes: moe_router_force_load_balancing), those for tuning do not."""
    stated = row.flag("force_balance")
    if stated is not None or not model.is_moe or row.text("task") != "pretrain":
        return stated
    row.assume("tokens spread evenly over experts by force, as recipes for pre-training have it (not stated)")
    return True


def _graphs(row: RowReader, model: ModelSpec) -> dict[str, Any]:
    """CUDA graphs: Transformer Engine's hold the modules of their scope, without one whole layers; the local ones hold
    layers, or the iteration (`cuda_graph_impl` and `cuda_graph_scope` of Megatron Core's TransformerConfig).

    No graph of a whole layer holds experts. A recipe without a scope then names its modules in `cuda_graph_modules`,
    which rows do not have."""
    kind, scope = row.text("cuda_graph", "impl", default="none"), row.get("cuda_graph", "scope") or []
    if kind == "none":
        return {"cuda_graphs": "none"}
    if kind == "full_iteration" or "full_iteration" in scope:
        return {"cuda_graphs": "full_iteration"}
    if not scope and model.is_moe:
        scope = _with_fixed_shapes(row, model)
    return {"cuda_graphs": "partial", "cuda_graph_modules": list(scope)} if scope else {"cuda_graphs": "layer"}


def _with_fixed_shapes(row: RowReader, model: ModelSpec) -> list[str]:
    """The modules of a model that graphs can hold while experts take as many tokens as there are. The router is
    recomputed with its experts, and then in no graph."""
    row.assume("CUDA graphs of all modules with fixed shapes (not stated)")
    mamba = any(isinstance(mixer, Mamba2) for mixer in model.mixers)
    router = [] if "moe" in (row.get("recompute", "modules") or ()) else ["moe_router", "moe_preprocess"]
    return ["attn"] * bool(model.attentions) + ["mamba"] * mamba + router
