"""Rules on switches of Megatron Core and layouts. Source: core/transformer/transformer_config.py of d98e8a64."""

from __future__ import annotations

import numpy as np

from ....cost_models.arrays import Mask
from ....cost_models.cuda_graphs import CUDA_GRAPHS, GRAPH_CODE, WHOLE, modules_of
from ....cost_models.layouts import MODULES, PRECISIONS, RECOMPUTE_MODES, SCHEDULES
from ....cost_models.problem import Problem
from ...space.rules import Columns, Rule
from ...switches.dtypes import CAST_CURRENT, CAST_DELAYED
from ..option_lists import OptionList, is_before
from ..setup import Setup

_FULL = RECOMPUTE_MODES.index("full")
# Module -> [code] whether graphs hold it, alone or with other modules.
_GRAPH_HOLDS = {module: np.array([name in WHOLE or module in modules_of(name) for name in CUDA_GRAPHS])
                for module in ("attn", "mlp", "moe")}  # fmt: skip
_EXPERTS = 1 << MODULES.index("moe")
_NORMS_AND_ACTIVATIONS = 1 << MODULES.index("norm") | 1 << MODULES.index("act")


def _expert_overlap(columns: Columns, problem: Problem) -> Mask:
    off = columns["ep_overlap"] == 0
    return np.asarray(off | (columns["pp"] == 1) | (columns["schedule"] == SCHEDULES.index("interleaved")))


def _expert_overlap_recompute(columns: Columns, problem: Problem) -> Mask:
    redone = (columns["recompute"] == _FULL) | (columns["recompute_modules"] & _EXPERTS > 0)
    return np.asarray((columns["ep_overlap"] == 0) | ~redone)


def _expert_overlap_graphs(columns: Columns, problem: Problem) -> Mask:
    held = np.array([{"moe", "mlp"}.isdisjoint(modules_of(name)) and name != "layer" for name in CUDA_GRAPHS])
    return np.asarray((columns["ep_overlap"] == 0) | held[columns["cuda_graphs"]])


def _expert_overlap_precision(columns: Columns, problem: Problem) -> Mask:
    return np.asarray((columns["ep_overlap"] == 0) | (columns["precision"] != PRECISIONS.index("fp32")))


def _expert_overlap_dispatch(columns: Columns, problem: Problem) -> Mask:
    return np.asarray((columns["ep_overlap"] == 0) | (problem.stack.ep_dispatch != "allgather"))


def _expert_overlap_mtp(columns: Columns, problem: Problem) -> Mask:
    return np.asarray((columns["ep_overlap"] == 0) | (problem.model.mtp_layers <= 1))


def _delayed_scaling(columns: Columns, problem: Problem) -> Mask:
    delayed = problem.workload.precision == "fp8" and problem.stack.cast_bytes == CAST_DELAYED
    again = np.bitwise_and(columns["recompute_modules"], _NORMS_AND_ACTIVATIONS) > 0
    return np.asarray(~np.logical_and(again, delayed))


def _graphs_of_experts(columns: Columns, problem: Problem) -> Mask:
    """Whether the host reads the token counts of dropless experts in the middle of a step."""
    dropless = problem.model.is_moe and problem.model.capacity_factor is None
    fixed_shapes = np.array([name != "layer" and "moe" not in modules_of(name) for name in CUDA_GRAPHS])
    return np.asarray(~np.array(dropless) | fixed_shapes[columns["cuda_graphs"]])


def _stashes(columns: Columns, problem: Problem) -> Mask:
    """Mask of layouts with dropless experts in a graph of the iteration (--moe-paged-stash)."""
    dropless = problem.model.is_moe and problem.model.capacity_factor is None
    return np.asarray((columns["cuda_graphs"] == GRAPH_CODE["full_iteration"]) & dropless)


def _graphs_fused_experts(columns: Columns, problem: Problem) -> Mask:
    """Fused experts as TEGroupedMLP asserts them (core/transformer/moe/experts.py, _is_fused_impl_supported)."""
    return np.asarray(~_stashes(columns, problem) | (columns["etp"] == 1))


def _graphs_recipe(columns: Columns, problem: Problem) -> Mask:
    """TransformerEngine e7c550c5, pytorch/ops/basic/grouped_linear.py, _is_graph_safe_path_supported."""
    stack, fp8 = problem.stack, columns["precision"] == PRECISIONS.index("fp8")
    takes = stack.fuses_expert_blocks or stack.cast_bytes == CAST_CURRENT
    return np.asarray(~_stashes(columns, problem) | ~fp8 | takes)


def _graphs_activations(columns: Columns, problem: Problem) -> Mask:
    """Recomputed activations of experts, which only the fused kernel supports.

    Source: TransformerEngine e7c550c5, pytorch/ops/basic/swiglu.py, fuser_forward.
    """
    fp8, fp4 = (columns["precision"] == PRECISIONS.index(name) for name in ("fp8", "fp4"))
    again = columns["recompute_modules"] & 1 << MODULES.index("act") > 0
    return np.asarray(~_stashes(columns, problem) | ~again | fp4 | fp8 & np.array(problem.stack.fuses_expert_blocks))


def _graphs_recompute(columns: Columns, problem: Problem) -> Mask:
    none, iteration = GRAPH_CODE["none"], GRAPH_CODE["full_iteration"]
    return np.asarray((columns["recompute"] != _FULL) | np.isin(columns["cuda_graphs"], (none, iteration)))


def _graphs_router(columns: Columns, problem: Problem) -> Mask:
    held = np.array(["moe_router" in modules_of(name) for name in CUDA_GRAPHS])[columns["cuda_graphs"]]
    return np.asarray(~held | (columns["recompute_modules"] & _EXPERTS == 0))


def _graphs_dropout(columns: Columns, problem: Problem) -> Mask:
    """Parts with dropout are not recomputed in a graph, because a graph does not restore the random state."""
    again, codes = columns["recompute_modules"], columns["cuda_graphs"]
    held_again = [_GRAPH_HOLDS[graph][codes] & (again & 1 << MODULES.index(module) > 0)
                  for graph, module in (("attn", "attn"), ("mlp", "mlp"), ("moe", "moe"))]  # fmt: skip
    return np.asarray(~np.any(held_again, axis=0) | (not problem.model.dropout))


def _graphs_fsdp(columns: Columns, problem: Problem) -> Mask:
    """Graphs of layers exclude Megatron-FSDP: they would fix the addresses of gathered weights."""
    none, iteration = GRAPH_CODE["none"], GRAPH_CODE["full_iteration"]
    return np.asarray((columns["zero"] < 2) | np.isin(columns["cuda_graphs"], (none, iteration)))


def switch_rules(target: str) -> tuple[Rule, ...]:
    """Rules of the switches that are fields of a layout."""
    return (
        Rule(f"{target}: ep_overlap", ("pp", "schedule", "ep_overlap"), _expert_overlap,
             "--overlap-moe-expert-parallel-comm needs interleaved chunks, or no pipeline (pp {pp})"),
        Rule(f"{target}: ep_overlap and recompute", ("ep_overlap", "recompute", "recompute_modules"),
             _expert_overlap_recompute, "--overlap-moe-expert-parallel-comm recomputes no experts and no whole layers"),
        Rule(f"{target}: ep_overlap and graphs", ("ep_overlap", "cuda_graphs"), _expert_overlap_graphs,
             "--overlap-moe-expert-parallel-comm goes with no graph of experts or dense blocks ({graphs_name})"),
        Rule(f"{target}: ep_overlap and dispatcher", ("ep_overlap",), _expert_overlap_dispatch,
             "--overlap-moe-expert-parallel-comm needs --moe-token-dispatcher-type alltoall or flex"),
        Rule(f"{target}: ep_overlap and precision", ("ep_overlap", "precision"), _expert_overlap_precision,
             "--overlap-moe-expert-parallel-comm needs bf16 or fp16 weights, not {precision_name}"),
        Rule(f"{target}: ep_overlap and mtp", ("ep_overlap",), _expert_overlap_mtp,
             "--overlap-moe-expert-parallel-comm goes with one prediction module at most (--mtp-num-layers)"),
        Rule(f"{target}: delayed scaling and recompute", ("recompute_modules",), _delayed_scaling,
             "norm and act are not recomputed under delayed scaling of fp8"),
        Rule(f"{target}: graphs of experts", ("cuda_graphs",), _graphs_of_experts,
             "cuda_graphs {graphs_name} holds experts, which need a capacity to have fixed shapes"),
        Rule(f"{target}: graphs and etp", ("cuda_graphs", "etp"), _graphs_fused_experts,
             "cuda_graphs {graphs_name} fuses the products of experts, which takes no split over etp {etp}"),
        Rule(f"{target}: graphs and fp8_recipe", ("cuda_graphs", "precision"), _graphs_recipe,
             "cuda_graphs {graphs_name} holds experts, whose counts stay on the GPU under mxfp8 or current scaling"),
        Rule(f"{target}: graphs and activations", ("cuda_graphs", "precision", "recompute_modules"),
             _graphs_activations,
             "cuda_graphs {graphs_name} recomputes activations of experts under mxfp8 and fp4 only"),
        Rule(f"{target}: graphs and recompute", ("cuda_graphs", "recompute"), _graphs_recompute,
             "full recomputation goes with a graph of the whole iteration or with none ({graphs_name})"),
        Rule(f"{target}: graphs and dropout", ("cuda_graphs", "recompute_modules"), _graphs_dropout,
             "a part with dropout is not recomputed in a graph that holds it ({graphs_name})"),
        Rule(f"{target}: graphs of the router", ("cuda_graphs", "recompute_modules"), _graphs_router,
             "experts are not recomputed around a graph of their router ({graphs_name})"),
        Rule(f"{target}: graphs and zero", ("cuda_graphs", "zero"), _graphs_fsdp,
             "z{zero} is Megatron-FSDP, planned with a graph of the whole iteration or with none ({graphs_name})"),
    )  # fmt: skip


def cannot_run(setup: Setup, options: OptionList | None) -> list[tuple[tuple[str, ...], str]]:
    """(fields, sentence) of switches that go together since a release of Megatron-LM."""
    layout = setup.layout
    graphed = layout.zero >= 2 and layout.cuda_graphs != GRAPH_CODE["none"]
    if not graphed or not is_before(options, "megatron", "0.18"):
        return []
    # training/training.py, megatron_fsdp_cuda_graph_mode.
    return [(("cuda_graphs", "zero"), f"z{layout.zero} is Megatron-FSDP, which no graph holds before Megatron-LM 0.18")]
