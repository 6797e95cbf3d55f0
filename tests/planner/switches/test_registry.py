"""Switches change what they say they change, and nothing else."""

from __future__ import annotations

from dataclasses import fields

import pytest
from meshwright.cost_models.specs.stack import StackSpec
from meshwright.planner.accuracy.stack_features import settings_of
from meshwright.planner.switches.graphs import MODULES, modules_of
from meshwright.planner.switches.registry import SWITCHES, with_switches
from meshwright.profiles.stack.load import load_stack

STACK = load_stack("megatron-bridge")
# Graphs leave a share of what the stack has without them.
ABSOLUTE = [(name, value) for name, switch in SWITCHES.items() if name != "cuda_graphs" for value in switch.values]


def changed(stack: StackSpec, name: str, value: str) -> dict[str, object]:
    after = with_switches(stack, {name: value})
    return {field.name: getattr(after, field.name) for field in fields(after)
            if getattr(after, field.name) != getattr(stack, field.name)}  # fmt: skip


@pytest.mark.parametrize(("name", "value"), ABSOLUTE)
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
    """10 us a launch: 0.5 us of it remain where one launch replays the iteration; fp8 casts by blocks move 4 bytes."""
    assert changed(STACK, "cuda_graphs", "full_iteration") == {
        "host_s_per_kernel": pytest.approx(10e-6 * 0.05), "dropless": False,
    }  # fmt: skip
    assert changed(STACK, "cuda_graphs", "attn+moe_router") == {
        "kernels_per_layer": pytest.approx(14 * 0.2), "kernels_per_expert_block": 110 - 40,
    }  # fmt: skip
    assert changed(STACK, "moe_dispatcher", "deepep") == {"ep_dispatch": "deduplicated"}
    assert changed(STACK, "grad_reduce_dtype", "fp32") == {"gradient_bytes": 4}
    assert changed(STACK, "fp8_recipe", "current") == {"cast_bytes": 6.0}
    assert changed(STACK, "overlap_grad_reduce", "off") == {"dp_overlap": 0.0}
    assert changed(STACK, "tp_comm_overlap", "on") == {"tp_overlap": 0.45}


def test_modules_of_graphs() -> None:
    """A graph of the experts holds their router; what follows the router is held with it only (Megatron Core)."""
    assert len(MODULES) == 2 * 2 * 4 - 1
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
