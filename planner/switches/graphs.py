"""The switch of CUDA graphs: which kernels are replayed instead of launched one by one."""

from __future__ import annotations

from ...cost_models.specs.stack import StackSpec
from .base import Changes, Switch

# Share of a launch's host time left under CUDA graphs. FIDELITY 5: divided by 2 to 5 by graphs of layers; one launch
# replays a whole iteration (assumed: a twentieth remains, of the optimizer and the data).
_HOST_SHARE = {"layer": 0.2, "full_iteration": 0.05}
# Where graphs hold only some modules. Attention and norms are 11 of the 14 kernels of a layer with TransformerEngine
# (stacks/megatron-core.yaml): the feed-forward block's three remain.
_BESIDE_ATTENTION = 0.2
# Kernels of an expert block that route and count: softmax, top-k, permutation maps, counts per expert and rank
# (assumed: over a third of the 110 of stacks/generic.yaml).
_ROUTER_KERNELS = 40
# Modules that a graph may hold. `moe` holds the router too; `moe_preprocess` follows it.
_BLOCKS = ("", "attn")
_DENSE = ("", "mlp")
_EXPERTS = ("", "moe", "moe_router", "moe_router+moe_preprocess")
MODULES = tuple(
    "+".join(part for part in (block, dense, experts) if part)
    for block in _BLOCKS for dense in _DENSE for experts in _EXPERTS if block or dense or experts
)  # fmt: skip


def modules_of(value: str) -> tuple[str, ...]:
    """The modules that the graphs of a value hold; none for `none`, `layer` and `full_iteration`."""
    return tuple(value.split("+")) if value in MODULES else ()


def _changes(stack: StackSpec, value: str) -> Changes:
    """Graphs of a whole layer or step need fixed shapes: no token counts are read back."""
    if value in _HOST_SHARE:
        return {"host_s_per_kernel": stack.host_s_per_kernel * _HOST_SHARE[value], "dropless": False}
    modules, out = modules_of(value), dict[str, float]()
    if "attn" in modules:
        out["kernels_per_layer"] = stack.kernels_per_layer * _BESIDE_ATTENTION
    if "moe_router" in modules:
        out["kernels_per_expert_block"] = max(stack.kernels_per_expert_block - _ROUTER_KERNELS, 0.0)
    return out


CUDA_GRAPHS = Switch(
    name="cuda_graphs",
    meaning="kernels of modules, layers or of the whole iteration are replayed as a CUDA graph",
    values=("none", *MODULES, *_HOST_SHARE),
    changes=_changes,
    source="FIDELITY 5; kernels per module as stacks/megatron-core.yaml and stacks/generic.yaml count them",
)
