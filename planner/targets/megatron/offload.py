"""Activation offload: the layouts that Megatron Core accepts, those that a search compares, and their options.

--cpu-offloading-num-layers offloads whole layers; --offload-modules offloads the saved tensors of modules (fine-grained
activation offloading). Source of the rules: core/transformer/transformer_config.py of d98e8a64.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ....cost_models.arrays import Mask
from ....cost_models.cuda_graphs import CUDA_GRAPHS, GRAPH_CODE, modules_of
from ....cost_models.layouts import MODULES as RECOMPUTED
from ....cost_models.layouts import encode
from ....cost_models.offload_modules import OF_EXPERTS, OFFLOAD_MODULES, SENDERS, mask_of_modules
from ....cost_models.problem import Problem
from ...space.rules import Columns, Rule
from ..options import Entry, Facts, NoCounterpartError, Settings
from ..setup import Setup

_LAYERS, _MODULES = "--cpu-offloading-num-layers", "--offload-modules"
_FINE_GRAINED = "--fine-grained-activation-offloading"
FIELDS = ("offload_layers", "offload_modules")
# Pinned memory is not made anew while a graph is captured (before torch 2.11): retain_pinned_cpu_buffers in the manual
# of TransformerEngine d0067d0d, cpu_offloading.rst.
_PINNED = "--cpu-offloading-retain-pinned-cpu-buffers"
_IN_FLIGHT = "--fine-grained-offloading-max-inflight-offloads"
# The variable for TransformerEngine's older offloading. training/arguments.py rejects modules without it (TE >= 2.10).
VARIABLE = "NVTE_CPU_OFFLOAD_V1"
_CORE, _PROJECTION = mask_of_modules("core_attn"), mask_of_modules("attn_proj")
_EXPERTS = 1 << RECOMPUTED.index("moe")


def axes(problem: Problem) -> dict[str, tuple[int, ...]]:
    """The offloads that a search compares: every number of layers, no modules, and core_attn with attn_proj.

    `--fix` accepts all other sets of modules (docs/concepts/switches.md gives the reason).
    """
    modules = (0, _CORE | _PROJECTION)
    return {"offload_layers": tuple(range(problem.model.num_layers)), "offload_modules": modules}


def _projection(columns: Columns, problem: Problem) -> Mask:
    masks = columns["offload_modules"]
    return np.asarray((masks & _PROJECTION == 0) | (masks & _CORE > 0))


def _recomputed_experts(columns: Columns, problem: Problem) -> Mask:
    inside = (columns["recompute_modules"] & _EXPERTS > 0) & (columns["offload_modules"] & OF_EXPERTS > 0)
    return np.asarray(~inside)


def _module_graphs(columns: Columns, problem: Problem) -> Mask:
    held = np.array(["moe" in modules_of(name) for name in CUDA_GRAPHS])
    return np.asarray((columns["offload_modules"] == 0) | ~held[columns["cuda_graphs"]])


def _layer_graphs(columns: Columns, problem: Problem) -> Mask:
    allowed = np.isin(columns["cuda_graphs"], (GRAPH_CODE["none"], GRAPH_CODE["full_iteration"]))
    return np.asarray((columns["offload_layers"] == 0) | allowed)


def _layer_overlap(columns: Columns, problem: Problem) -> Mask:
    """Mask of layouts that do not offload layers under --overlap-moe-expert-parallel-comm.

    The forward pass of core/transformer/transformer_block.py enters the offload contexts. The schedule of that option
    skips them (core/models/common/model_chunk_schedule_plan.py).
    """
    return np.asarray((columns["offload_layers"] == 0) | (columns["ep_overlap"] == 0))


def _stash(columns: Columns, problem: Problem) -> Mask:
    """Mask of layouts without offload where dropless experts stash saved tensors in pages (--moe-paged-stash)."""
    drops = not problem.model.is_moe or problem.model.capacity_factor is not None
    whole = columns["cuda_graphs"] == GRAPH_CODE["full_iteration"]
    stays = (columns["offload_modules"] & OF_EXPERTS == 0) & (columns["offload_layers"] == 0)
    return np.asarray(stays | ~whole | np.array(drops))


def rules(target: str) -> tuple[Rule, ...]:
    """Rules of the layouts that offload layers or modules."""
    return (
        Rule(f"{target}: offload_modules", ("offload_modules",), _projection,
             f"{_MODULES} attn_proj needs core_attn, which saves the same tensor"),
        Rule(f"{target}: offload_modules and recompute", ("offload_modules", "recompute_modules"), _recomputed_experts,
             "what experts save is not offloaded where they are recomputed (moe)"),
        Rule(f"{target}: offload_modules and graphs", ("offload_modules", "cuda_graphs"), _module_graphs,
             "modules are not offloaded beside a graph of experts ({graphs_name})"),
        Rule(f"{target}: offload_layers and graphs", ("offload_layers", "cuda_graphs"), _layer_graphs,
             "layers are offloaded beside a graph of the whole iteration or none ({graphs_name})"),
        Rule(f"{target}: offload_layers and ep_overlap", ("offload_layers", "ep_overlap"), _layer_overlap,
             "--overlap-moe-expert-parallel-comm offloads no layers: it calls their parts one by one"),
        Rule(f"{target}: offload and pages", ("offload_modules", "offload_layers", "cuda_graphs"), _stash,
             "cuda_graphs {graphs_name} stashes what experts save in pages: neither that nor layers are offloaded"),
    )  # fmt: skip


def _write(setup: Setup) -> Settings:
    layout = setup.layout
    whole = layout.cuda_graphs == GRAPH_CODE["full_iteration"]
    if layout.offload_layers:
        return {_LAYERS: layout.offload_layers, **({_PINNED: True} if whole else {})}
    if not layout.offload_modules:
        return {}
    out: Settings = {_FINE_GRAINED: True, _MODULES: OFFLOAD_MODULES[layout.offload_modules].split("+")}
    # A graph of the iteration contains the waits for copies of the previous layer.
    return {**out, _IN_FLIGHT: 1} if whole else out


def _read(settings: Settings, facts: Facts) -> Facts:
    names = settings.get(_MODULES, []) if settings.get(_FINE_GRAINED) else []
    if unknown := [name for name in names if name not in SENDERS]:
        hint = f"known: {', '.join(SENDERS)}"
        raise NoCounterpartError(f"{_MODULES} {unknown[0]} has no counterpart in a plan", hint=hint)
    modules = OFFLOAD_MODULES[encode("offload_modules", names)]
    return {"offload_layers": int(settings.get(_LAYERS, 0)), "offload_modules": modules}


ENTRY = Entry(FIELDS, (_LAYERS, _PINNED, _FINE_GRAINED, _MODULES, _IN_FLIGHT), _write, _read)


def conflicts(settings: Settings, variables: Mapping[str, str]) -> list[tuple[str, str]]:
    """Rules of validate_args and TransformerConfig about these options."""
    fine, layers, modules = (settings.get(name) for name in (_FINE_GRAINED, _LAYERS, _MODULES))
    whole = settings.get("--cuda-graph-impl") == "full_iteration"
    out = []
    if layers and whole and not settings.get(_PINNED):
        out.append((_LAYERS, f"with a graph of the whole iteration needs {_PINNED}"))
    if layers and settings.get("--pipeline-model-parallel-size", 1) > 1:
        out.append((_LAYERS, "does not go with a pipeline (--pipeline-model-parallel-size)"))
    if layers and not 0 < layers < settings.get("--num-layers", layers + 1):
        out.append((_LAYERS, f"is {layers}, not 1 or more and fewer than --num-layers"))
    if layers and "--recompute-granularity" in settings:
        out.append((_LAYERS, "does not go with --recompute-granularity"))
    if layers and fine:
        out.append((_FINE_GRAINED, f"cannot be given together with {_LAYERS}"))
    if fine and not modules:
        out.append((_FINE_GRAINED, f"needs {_MODULES}"))
    if fine and modules and "attn_proj" in modules and "core_attn" not in modules:
        out.append((_MODULES, "attn_proj needs core_attn"))
    if fine and whole and _IN_FLIGHT not in settings:
        out.append((_FINE_GRAINED, f"with a graph of the whole iteration needs {_IN_FLIGHT}"))
    if fine and variables.get(VARIABLE) != "1":
        out.append((VARIABLE, f"is {variables.get(VARIABLE) or 'not set'}; {_FINE_GRAINED} needs 1"))
    return out
