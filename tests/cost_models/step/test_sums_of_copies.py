"""Sums of gradients over copies: once per step, or after every micro-batch."""

from __future__ import annotations

import pytest
from meshwright.cost_models.layouts import Layouts, parse
from meshwright.cost_models.problem import Problem
from meshwright.cost_models.specs.workload import Workload
from meshwright.planner.search.pricing import price_layouts
from meshwright.profiles.cluster.load import load_cluster
from meshwright.profiles.model.load import load_model
from meshwright.profiles.stack.load import load_stack
from meshwright.profiles.stack.rates import rates_for


def dp_s(stack_name: str, layout_id: str, micro_batches: int) -> float:
    """Exposed seconds of data parallelism once per step."""
    layout, cluster = parse(layout_id), load_cluster("dgx-h100:2")
    stack = load_stack(stack_name)
    workload = Workload(seq_len=8192, global_batch=layout.dp * micro_batches)
    problem = Problem(load_model("llama-3.1-8b")[0], workload, stack, 16, cluster.gpus_per_node)
    _, estimate = price_layouts(problem, rates_for(cluster, stack, "bf16"), Layouts.of([layout]))
    return float(estimate.terms["dp"][0])


@pytest.mark.parametrize(
    ("stack", "layout_id", "times"),
    [
        ("torchtitan", "dp16-sh8-mbs1-z3-rfull", 8),  # FSDP2 with the sums that it makes by itself
        ("torchtitan", "dp16-mbs1-z0-rfull", 8),
        ("torchtitan", "pp2-dp8-sh4-mbs1-z2-rfull", 1),  # torch's pipeline turns them off but in the last pass
        ("accelerate", "dp16-mbs1-z0-rfull", 1),  # no_sync
        ("meshwright", "dp16-sh8-mbs1-z3-rfull", 1),
        ("megatron-core", "dp16-mbs1-z0-rfull", 1),
    ],
)
def test_copies_sum_gradients_once_or_in_every_micro_batch(stack: str, layout_id: str, times: int) -> None:
    """Each sum hides behind the backward pass of its micro-batch, so that all cost the same; a long pipeline hides no
    more of the last one."""
    once_s = dp_s(stack, layout_id, 2 if "pp2" in layout_id else 1)
    assert once_s > 0
    assert dp_s(stack, layout_id, 8) == pytest.approx(times * once_s, rel=1e-9)
