"""Environment variables of Megatron Core and TransformerEngine that a layout needs."""

from __future__ import annotations

import math
from collections.abc import Mapping

from ....cost_models.cuda_graphs import GRAPH_CODE
from ..options import Settings
from ..setup import Setup
from ..switch_options import turned
from . import offload
from .options import max_connections

_CONNECTIONS = "CUDA_DEVICE_MAX_CONNECTIONS"
_FUSER = "--use-transformer-engine-op-fuser"
# TEGroupedMLP needs it for gated experts under the option (core/transformer/moe/experts.py, d98e8a64,
# _is_fused_impl_supported). Without it the construction of the model fails with an AssertionError.
FUSED_EXPERTS = "NVTE_CUTEDSL_FUSED_GROUPED_MLP"

# Without it a graph keeps tensors that another stream read until the capture ends (torch, notes on CUDA). Such tensors
# are freed with record_stream by --overlap-moe-expert-parallel-comm, by copies to the host
# (core/pipeline_parallel/utils.py and fine_grained_activation_offload.py) and by the collectives of Megatron-FSDP.
# Megatron-Bridge 067f987d sets it with graphs of the iteration.
_REUSED = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True,graph_capture_record_stream_reuse:True",
           "NCCL_GRAPH_REGISTER": "0"}  # fmt: skip

# The number of consecutive ranks in a group that HybridEP assumes to be joined by NVLink. Its older releases do not
# detect it (deepseek-ai/DeepEP, hybrid_ep_buffer.py). Every recipe of Megatron-Bridge with HybridEP sets these
# variables (perf_recipes).
_JOINED = "NUM_OF_HYBRID_EP_RANKS_PER_NVLINK_DOMAIN"
_BACKEND = "--moe-flex-dispatcher-backend"


def environment(setup: Setup, target: str) -> dict[str, str | None]:
    """Variable -> value, None for a variable that may be unset."""
    out: dict[str, str | None] = {_CONNECTIONS: max_connections(setup)}
    if setup.layout.offload_modules:
        out[offload.VARIABLE] = "1"
    layout, switches = setup.layout, turned(setup, target)
    if switches.get("moe_paged_stash") == "on":
        out[FUSED_EXPERTS] = "1"
    if switches.get("moe_dispatcher") == "hybridep" and layout.ep > 1:
        out |= {_JOINED: str(math.gcd(layout.ep, max(setup.domain // layout.etp, 1))),
                "NVLINK_DOMAIN_SIZE": str(setup.domain),
                "USE_MNNVL": "1" if setup.nodes_per_rack > 1 else "0"}  # fmt: skip
    marks = layout.ep_overlap or layout.offload_modules or layout.zero >= 2
    if layout.cuda_graphs == GRAPH_CODE["full_iteration"] and marks:
        out |= _REUSED
    return out


def conflicts_of_fused_experts(settings: Settings, variables: Mapping[str, str]) -> list[tuple[str, str]]:
    """A problem where the variable that fused experts need is not set."""
    if not settings.get(_FUSER) or "--num-experts" not in settings or variables.get(FUSED_EXPERTS) == "1":
        return []
    return [(FUSED_EXPERTS, f"is {variables.get(FUSED_EXPERTS) or 'not set'}; {_FUSER} with gated experts needs 1")]


def conflicts_of_hybridep(settings: Settings, variables: Mapping[str, str]) -> list[tuple[str, str]]:
    """A problem where an expert group is not a whole number of NVLink domains, which HybridEP asserts."""
    joined, ep = variables.get(_JOINED), settings.get("--expert-model-parallel-size", 1)
    if joined is None or settings.get(_BACKEND) != "hybridep":
        return []
    if joined.isdecimal() and int(joined) > 0 and ep % int(joined) == 0:
        return []
    return [(_JOINED, f"is {joined}, which does not divide --expert-model-parallel-size {ep}")]
