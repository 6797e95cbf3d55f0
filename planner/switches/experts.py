"""Switches of expert parallelism: how tokens reach their experts, and what runs beside that."""

from __future__ import annotations

from ...cost_models.problem import Problem
from .base import Switch, on_off

_EP_SHARE = 0.8  # FIDELITY 6: overlap of the all-to-all with another micro-batch hides 70-90 %
# A token is sent once per expert, or once per node.
_DISPATCH = {"allgather": "alltoall", "alltoall": "alltoall", "deepep": "deduplicated", "hybridep": "deduplicated"}


def has_experts(problem: Problem) -> bool:
    """Whether the model is a mixture of experts."""
    return problem.model.is_moe


MOE_DISPATCHER = Switch(
    name="moe_dispatcher",
    meaning="how tokens are sent to the ranks of their experts",
    values=tuple(_DISPATCH),
    changes=lambda stack, value: {"ep_dispatch": _DISPATCH[value]},
    source="deepseek-ai/DeepEP, README (HybridEP is its successor in Megatron Core): a token crosses to a node once",
    concerns=has_experts,
)
EP_OVERLAP = Switch(
    name="ep_overlap",
    meaning="tokens of one micro-batch travel while another one computes",
    values=("off", "on"),
    changes=on_off({"ep_overlap": _EP_SHARE}),
    source="FIDELITY 6: overlap of the all-to-all with another micro-batch hides 70-90 %",
    concerns=has_experts,
)
