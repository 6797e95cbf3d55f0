"""Variables of the environment that Megatron Core and TransformerEngine read, and that a layout needs."""

from __future__ import annotations

from collections.abc import Mapping

from ....cost_models.cuda_graphs import GRAPH_CODE
from ..options import Settings
from ..setup import Setup
from ..switch_options import turned
from . import offload
from .options import max_connections

_CONNECTIONS = "CUDA_DEVICE_MAX_CONNECTIONS"
_FUSER = "--use-transformer-engine-op-fuser"
# Without it TEGroupedMLP refuses gated experts under the option (core/transformer/moe/experts.py, d98e8a64,
# _is_fused_impl_supported): an AssertionError as the model is built.
FUSED_EXPERTS = "NVTE_CUTEDSL_FUSED_GROUPED_MLP"

# Without it a graph holds what another stream read until its capture ends (torch, notes on CUDA): nodes of
# --overlap-moe-expert-parallel-comm and copies to the host mark all that they free (core/pipeline_parallel/utils.py and
# fine_grained_activation_offload.py, record_stream), and so do the collectives of Megatron-FSDP. As Megatron-Bridge
# 067f987d has it beside graphs of the iteration.
_REUSED = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True,graph_capture_record_stream_reuse:True",
           "NCCL_GRAPH_REGISTER": "0"}  # fmt: skip


def environment(setup: Setup, target: str) -> dict[str, str | None]:
    """Variable -> value, None for one that may be unset."""
    out: dict[str, str | None] = {_CONNECTIONS: max_connections(setup)}
    if setup.layout.offload_modules:
        out[offload.VARIABLE] = "1"
    if turned(setup, target).get("moe_paged_stash") == "on":
        out[FUSED_EXPERTS] = "1"
    layout = setup.layout
    marks = layout.ep_overlap or layout.offload_modules or layout.zero >= 2
    if layout.cuda_graphs == GRAPH_CODE["full_iteration"] and marks:
        out |= _REUSED
    return out


def conflicts_of_fused_experts(settings: Settings, variables: Mapping[str, str]) -> list[tuple[str, str]]:
    """The variable without which experts cannot be fused."""
    if not settings.get(_FUSER) or "--num-experts" not in settings or variables.get(FUSED_EXPERTS) == "1":
        return []
    return [(FUSED_EXPERTS, f"is {variables.get(FUSED_EXPERTS) or 'not set'}; {_FUSER} with gated experts needs 1")]
