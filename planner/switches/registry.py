"""All switches, and the changes of a stack by their settings."""

from __future__ import annotations

from dataclasses import replace

from ...cost_models.specs.stack import StackSpec
from .base import Settings, Switch
from .dtypes import FP4_PARAM_GATHER, FP8_PARAM_GATHER, FP8_RECIPE, GRAD_REDUCE_DTYPE
from .experts import DELAY_WGRAD, EP_OVERLAP, MOE_DISPATCHER, MOE_FORCE_BALANCE, MOE_PAGED_STASH, MOE_PERMUTE_FUSION
from .graphs import CUDA_GRAPHS
from .kernels import ATTENTION, CROSS_ENTROPY, GRADIENT_ACCUMULATION_FUSION, NORMS, TORCH_COMPILE
from .optimizers import LAYER_WISE_LAYOUT
from .overlaps import OVERLAP_GRAD_REDUCE, OVERLAP_PARAM_GATHER, SYNC_EACH_BATCH, TP_COMM_OVERLAP

# In the order of screens and of the changes. Compilation depends on whether norms are already fused.
SWITCHES: dict[str, Switch] = {
    switch.name: switch
    for switch in (
        MOE_DISPATCHER, EP_OVERLAP, DELAY_WGRAD, MOE_PERMUTE_FUSION, MOE_FORCE_BALANCE, MOE_PAGED_STASH, CUDA_GRAPHS,
        TP_COMM_OVERLAP, OVERLAP_GRAD_REDUCE, LAYER_WISE_LAYOUT, OVERLAP_PARAM_GATHER, SYNC_EACH_BATCH,
        GRAD_REDUCE_DTYPE, FP8_RECIPE, FP8_PARAM_GATHER, FP4_PARAM_GATHER, GRADIENT_ACCUMULATION_FUSION, ATTENTION,
        CROSS_ENTROPY, NORMS, TORCH_COMPILE,
    )
}  # fmt: skip


def with_switches(stack: StackSpec, settings: Settings) -> StackSpec:
    """`stack` with its switches set. Switches outside `settings` stay as they are.

    Raises KeyError for an unknown switch.
    """
    unknown = set(settings) - set(SWITCHES)
    if unknown:
        raise KeyError(f"no such switch: {', '.join(sorted(unknown))}")
    for name, switch in SWITCHES.items():
        if name in settings and not switch.axis:
            changes = switch.changes(stack, settings[name])
            if not all(_same(getattr(stack, field), value) for field, value in changes.items()):
                stack = replace(stack, **changes)
    return stack


def _same(one: object, other: object) -> bool:
    """Whether both are written alike: 6 and 6.0 are not."""
    return type(one) is type(other) and one == other
