"""The software of a published run: its switches and its routing, out of the features that its row records."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Protocol

from ...cost_models.cuda_graphs import modules_of
from ...cost_models.layouts import Layout, encode
from ...cost_models.specs.stack import StackSpec
from ..switches.registry import SWITCHES, with_switches


class Notes(Protocol):
    """Takes the labels of assumptions."""

    def assume(self, label: str) -> None: ...


class NoNotes:
    """Drops the labels: for a run that is priced again."""

    def assume(self, label: str) -> None:
        pass


# Feature -> the switch that it states, where its values are those of the switch.
_SAME_VALUES = {"loss": "cross_entropy", "grad_reduce": "grad_reduce_dtype", "moe_dispatcher": "moe_dispatcher",
                "fp8_recipe": "fp8_recipe", "norms": "norms"}  # fmt: skip
# Switch -> the features that state it by a truth value, the first one that is recorded.
_STATED_BY = {
    "tp_comm_overlap": ("tp_comm_overlap", "async_tp"),
    "overlap_grad_reduce": ("dp_overlap", "grad_sync_overlap", "dp_overlap_grad"),
    "overlap_param_gather": ("param_sync_overlap", "dp_overlap_param", "dp_overlap"),
    "gradient_accumulation_fusion": ("gradient_accumulation_fusion",),
    "torch_compile": ("torch_compile",),
    "layer_wise_layout": ("layer_wise_layout",),
    "ep_overlap": ("moe_a2a_overlap",),
    "delay_wgrad": ("delay_wgrad",),
    "moe_paged_stash": ("moe_paged_stash",),
    "moe_permute_fusion": ("moe_permute_fusion",),
    "moe_force_balance": ("moe_force_balance",),
    "fp8_param_gather": ("fp8_param_gather", "float8_allgather"),
    "fp4_param_gather": ("fp4_param_gather",),
}


# Software -> features of its runs that were recorded from a later recipe, as the runs had them.
# InternEvo's tables are of July 2023; its submodule third_party/flash-attention was 1.0.5 until January 2024 (87445e3).
_RAN_WITH: Mapping[str, Mapping[str, Any]] = {"internevo-2024": {"attention": "flash1"}}


def ran_with(row: Notes, stack_name: str) -> Mapping[str, Any]:
    """Features that a run of that software had, whatever is recorded."""
    known = _RAN_WITH.get(stack_name, {})
    for feature, value in known.items():
        row.assume(f"{feature} {value}, whatever is recorded: the runs of {stack_name} are older than what was read")
    return known


def has_gpt_defaults(stack_name: str, family: str, *, tied: bool) -> bool:
    """Whether a run's GPT models have biases, learned positions and dropout: defaults of Megatron-LM's own scripts
    (training/arguments.py: hidden_dropout 0.1, add_bias_linear), which NeMo's mlperf recipes and Megatron-Bridge set
    anew. NeMo of 2024 had them for GPT-3 (NeMo-Framework-Launcher, conf/training/gpt3), with `tied` embeddings, and not
    for Nemotron."""
    if stack_name.lower().startswith("nemo-24"):
        return tied
    return family == "megatron-lm" or stack_name.lower().startswith("megatron-core")


def with_features(stack: StackSpec, features: Mapping[str, Any], row: Notes) -> StackSpec:
    """`stack` as the run had it switched; what is not recorded stays as the family has it, with a label."""
    settings = settings_of(features)
    if "attention" not in settings:
        row.assume(f"attention kernel {stack.attention}, the default of {stack.name} (not stated)")
    if "cross_entropy" not in settings:
        row.assume("loss kernel of the stack's family (not stated)")
    if "grad_reduce_dtype" not in settings:
        row.assume("gradient dtype of the stack's family (not stated)")
    switched, routing = with_switches(stack, settings), _routing(features)
    return replace(switched, **routing) if routing else switched


def switched_layout(layout: Layout, features: Mapping[str, Any]) -> Layout:
    """`layout` with the switches that are fields of it, as the run had them."""
    settings = settings_of(features)
    codes = {name: encode(name, value) for name, value in settings.items() if SWITCHES[name].axis}
    if layout.ep == 1:
        codes.pop("ep_overlap", None)
    return replace(layout, **codes)


def settings_of(features: Mapping[str, Any]) -> dict[str, str]:
    """The switches that the features of a run state."""
    out = {switch: str(features[feature]) for feature, switch in _SAME_VALUES.items()
           if features.get(feature) in SWITCHES[switch].values}  # fmt: skip
    for switch, names in _STATED_BY.items():
        flag = next((flag for name in names if isinstance(flag := features.get(name), bool)), None)
        if flag is not None:
            out[switch] = "on" if flag else "off"
    return out | _attention(features) | _graphs(features)


def _attention(features: Mapping[str, Any]) -> dict[str, str]:
    stated = str(features.get("attention") or "").split(" ")[0].lower()
    if features.get("attn_impl") == "triton":  # takes the bias of ALiBi, which the kernels of its time did not
        return {"attention": "triton"}
    if stated in ("flash", "flash-attention"):
        return {"attention": "flash2"}
    return {"attention": stated} if stated in SWITCHES["attention"].values else {}


def _graphs(features: Mapping[str, Any]) -> dict[str, str]:
    stated = str(features.get("cuda_graphs"))
    if stated != "partial":
        return {"cuda_graphs": stated} if stated in SWITCHES["cuda_graphs"].values else {}
    held = set(features.get("cuda_graph_modules") or ())
    value = next((value for value in SWITCHES["cuda_graphs"].values if held and set(modules_of(value)) == held), None)
    return {} if value is None else {"cuda_graphs": value}


def capacity_of(features: Mapping[str, Any]) -> float | None:
    """The capacity to which the rows of an expert are filled up, as a request has it; None where they are not."""
    return _capacity(features) if features.get("moe_pad_to_capacity") is True else None


def _capacity(features: Mapping[str, Any]) -> float | None:
    capacity = features.get("moe_capacity_factor") if features.get("moe_force_balance") is not True else None
    if isinstance(capacity, int | float) and not isinstance(capacity, bool) and capacity > 0:
        return float(capacity)
    return None


def _routing(features: Mapping[str, Any]) -> dict[str, Any]:
    """Token drop without padding: no expert gets more than its capacity."""
    if capacity_of(features) is not None:
        return {}  # the model has it
    capacity = _capacity(features)
    out: dict[str, Any] = {} if capacity is None else {"moe_imbalance": capacity}
    if features.get("moe_token_drop") is True or features.get("moe_pad_to_capacity") is True:
        out["dropless"] = False
    return out
