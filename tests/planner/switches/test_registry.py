"""Switches change what they say they change, and nothing else."""

from __future__ import annotations

from dataclasses import fields

import pytest
from meshwright.cost_models.cuda_graphs import CUDA_GRAPHS, modules_of
from meshwright.cost_models.specs.stack import StackSpec
from meshwright.planner.accuracy.stack_features import settings_of
from meshwright.planner.switches.registry import SWITCHES, with_switches
from meshwright.profiles.stack.load import load_stack

STACK = load_stack("megatron-bridge")
VALUES = [(name, value) for name, switch in SWITCHES.items() for value in switch.values]


def changed(stack: StackSpec, name: str, value: str) -> dict[str, object]:
    after = with_switches(stack, {name: value})
    return {field.name: getattr(after, field.name) for field in fields(after)
            if getattr(after, field.name) != getattr(stack, field.name)}  # fmt: skip


@pytest.mark.parametrize(("name", "value"), VALUES)
def test_a_value_set_twice_is_set_once(name: str, value: str) -> None:
    once = with_switches(STACK, {name: value})
    assert with_switches(once, {name: value}) == once


@pytest.mark.parametrize("name", SWITCHES)
def test_every_switch_states_its_meaning_and_source(name: str) -> None:
    switch = SWITCHES[name]
    assert switch.name == name
    assert switch.meaning
    assert switch.source
    assert len(set(switch.values)) == len(switch.values) >= 2


def test_no_settings_change_nothing() -> None:
    assert with_switches(STACK, {}) == STACK
    with pytest.raises(KeyError, match="no such switch: warp"):
        with_switches(STACK, {"warp": "on"})


def test_changes_by_hand() -> None:
    """Casts by the maximum of a tensor move 6 bytes an element, gradients in fp32 have 4."""
    assert changed(STACK, "moe_dispatcher", "deepep") == {"ep_dispatch": "deduplicated"}
    assert changed(STACK, "grad_reduce_dtype", "fp32") == {"gradient_bytes": 4, "fp16_gradients": False}
    assert changed(STACK, "fp8_recipe", "current") == {"cast_bytes": 6.0, "scales_tensors": True}
    assert changed(STACK, "overlap_grad_reduce", "off") == {"dp_overlap": 0.0}
    assert changed(STACK, "tp_comm_overlap", "on") == {"sequence_parallel_overlap": 0.45}
    assert changed(STACK, "ep_overlap", "on") == {}  # a field of the layout


def test_modules_of_graphs() -> None:
    """A graph of the experts holds their router; what follows the router is held with it only (Megatron Core)."""
    assert len(CUDA_GRAPHS) == 2 * 2 * 2 * 4 + 2  # with none, layer, full_iteration
    assert modules_of("attn+moe_router+moe_preprocess") == ("attn", "moe_router", "moe_preprocess")
    assert modules_of("full_iteration") == modules_of("none") == ()


def test_features_of_a_run_are_switches() -> None:
    """As rows of published runs record them."""
    assert settings_of({"moe_a2a_overlap": True, "async_tp": True, "grad_reduce": "bf16"}) == {
        "ep_overlap": "on", "tp_comm_overlap": "on", "grad_reduce_dtype": "bf16",
    }  # fmt: skip
    graphs = {"cuda_graphs": "partial", "cuda_graph_modules": ["moe_router", "attn"]}
    assert settings_of(graphs) == {"cuda_graphs": "attn+moe_router"}
    assert settings_of({"dp_overlap": False}) == {"overlap_grad_reduce": "off", "overlap_param_gather": "off"}
    assert settings_of({"moe_dispatcher": "carrier pigeon", "attention": None}) == {}
