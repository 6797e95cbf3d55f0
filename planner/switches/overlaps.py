"""Switches of overlap: which collectives run beside compute."""

from __future__ import annotations

from ...cost_models.specs.stack import StackSpec
from .base import Changes, Switch

_TP_SHARE = 0.45  # FIDELITY 6: tp_comm_overlap and async TP hide 42-47 %
_DP_SHARE = 0.8  # assumed, as dp_overlap of stacks/generic.yaml


def _of_tp(stack: StackSpec, value: str) -> Changes:
    return {"tp_overlap": max(stack.tp_overlap, _TP_SHARE) if value == "on" else stack.tp_overlap}


def _of_gradients(stack: StackSpec, value: str) -> Changes:
    return {"dp_overlap": max(stack.dp_overlap, _DP_SHARE) if value == "on" else 0.0}


def _of_weights(stack: StackSpec, value: str) -> Changes:
    return {"dp_gather_overlap": max(stack.dp_gather_overlap, _DP_SHARE) if value == "on" else 0.0}


TP_COMM_OVERLAP = Switch(
    name="tp_comm_overlap",
    meaning="collectives of tensor parallelism run beside the products that they feed",
    values=("off", "on"),
    changes=_of_tp,
    source="FIDELITY 6: tp_comm_overlap and async TP hide 42-47 %",
)
OVERLAP_GRAD_REDUCE = Switch(
    name="overlap_grad_reduce",
    meaning="gradients are reduced beside the backward pass",
    values=("off", "on"),
    changes=_of_gradients,
    source="dp_overlap of stacks/generic.yaml",
)
OVERLAP_PARAM_GATHER = Switch(
    name="overlap_param_gather",
    meaning="updated weights are gathered beside the first forward pass",
    values=("off", "on"),
    changes=_of_weights,
    source="dp_gather_overlap of stacks/generic.yaml",
)
