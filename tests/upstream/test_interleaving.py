"""Numbers of micro-batches of interleaved pipelines against Megatron-LM's own checks, which come with the first step.

The two checks and the table of passes are taken out of the source (core/pipeline_parallel/schedules.py): the function
around them needs a GPU. MEGATRON_PATH names the checkout.
"""

from __future__ import annotations

import ast
import os
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from meshwright.cost_models.degrees import interleaving_group
from meshwright.cost_models.layouts import SCHEDULES, Layout, Layouts
from meshwright.cost_models.schedules.orders import F
from meshwright.cost_models.schedules.simulator import make
from meshwright.planner.request.load import load_request
from meshwright.planner.request.resolve import resolve
from meshwright.planner.space.rules import RULES
from meshwright.planner.targets.megatron.stages import refused_groups
from meshwright.planner.targets.registry import TARGETS

CHECKOUT = os.environ.get("MEGATRON_PATH", "")
if not CHECKOUT:
    pytest.skip("MEGATRON_PATH names no checkout of Megatron-LM", allow_module_level=True)
pytestmark = pytest.mark.upstream
ASKED = {"model": "llama-3.1-8b", "cluster": "dgx-h100:1", "seq_len": 4096}


@cache
def source() -> dict[str, ast.FunctionDef]:
    text = (Path(CHECKOUT) / "megatron" / "core" / "pipeline_parallel" / "schedules.py").read_text()
    return {node.name: node for node in ast.parse(text).body if isinstance(node, ast.FunctionDef)}


def run(nodes: list[ast.stmt], names: dict[str, Any]) -> None:
    exec(compile(ast.fix_missing_locations(ast.Module(nodes, [])), "schedules.py", "exec"), names)


def _checks_groups(node: ast.stmt) -> bool:
    if isinstance(node, ast.Assign):
        return ast.unparse(node.targets[0]) == "final_microbatch_group_size"
    return isinstance(node, ast.If) and isinstance(node.body[-1], ast.Raise) and "group_size" in ast.unparse(node.test)


@cache
def checks() -> tuple[ast.stmt, ...]:
    """The statements that look at the size of groups, with the assignment between them."""
    body = source()["forward_backward_pipelining_with_interleaving"].body
    found = tuple(node for node in body if _checks_groups(node))
    assert [type(node) for node in found] == [ast.If, ast.Assign, ast.If]
    return found


def is_taken(pp: int, m: int, group: int) -> bool:
    config = SimpleNamespace(microbatch_group_size_per_vp_stage=group)
    try:
        run(list(checks()), {"config": config, "num_microbatches": m, "pipeline_parallel_size": pp})
    except (ValueError, RuntimeError):
        return False
    return True


@given(pp=st.integers(2, 16), m=st.integers(1, 80), vpp=st.integers(2, 3))
def test_megatron_takes_what_is_planned_and_nothing_else(pp: int, m: int, vpp: int) -> None:
    problem = resolve(load_request(None, {**ASKED, "global_batch": m, "cluster": f"{pp}xh100-sxm-80gb"})).problem
    layout = Layouts.of([Layout(pp=pp, vpp=vpp, schedule=SCHEDULES.index("interleaved"), zero=0)])
    rules = [rule for rule in RULES + TARGETS["megatron"].rules if {"pp", "dp", "micro_batch"} <= set(rule.fields)]
    legal = all(bool(rule.allows(layout, problem)[0]) for rule in rules)
    assert legal == any(is_taken(pp, m, group) for group in range(1, m + 1))
    if legal:
        group = int(interleaving_group(pp, m))
        assert is_taken(pp, m, group)
        assert not any(is_taken(pp, m, smaller) for smaller in range(1, group))


@given(pp=st.integers(2, 16), m=st.integers(1, 80), group=st.integers(1, 90))
def test_groups_of_a_config_are_refused_where_megatron_refuses_them(pp: int, m: int, group: int) -> None:
    assert bool(refused_groups(group, pp, m)) == (not is_taken(pp, m, group))


@given(pp=st.integers(2, 8), m=st.integers(2, 40), vpp=st.integers(2, 4))
def test_passes_are_in_the_order_of_its_table(pp: int, m: int, vpp: int) -> None:
    if m < pp:
        return
    names: dict[str, Any] = {}
    run([source()["get_schedule_table"]], names)
    order = make("interleaved", pp, m, vpp)
    forwards = [op for op in range(int(order.first[1])) if order.kind[op] == F]
    ours = [(int(order.micro_batch[op]), int(order.chunk[op]) // pp) for op in forwards]
    assert ours == names["get_schedule_table"](m, vpp, int(interleaving_group(pp, m)))
