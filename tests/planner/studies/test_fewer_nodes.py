"""The plan after the loss of nodes: that of the same request without them, or of as many as train the model."""

from __future__ import annotations

from typing import Any

import pytest
from meshwright.planner import api
from meshwright.planner.document.plan import Plan
from meshwright.planner.studies.fewer_nodes import plan_for_nodes

from meshwright.errors import InputError, NoFeasibleLayoutError

SIZES = {"hidden": 64, "layers": 4, "heads": 4, "kv_heads": 4, "ffn_hidden": 128, "vocab": 256, "max_positions": 64}


def boxes(count: int, **more: Any) -> dict[str, Any]:
    """Nodes of one GPU."""
    group = {"name": "box", "gpu": "h100-sxm-80gb", "gpus_per_node": 1, "count": count, "nics": 1,
             "nic_bandwidth": "400 Gb/s", "network": "roce"}  # fmt: skip
    return {"name": "boxes", "groups": [group], **more}


def planned(cluster: dict[str, Any] | str, model: dict[str, Any] | str = SIZES, **more: Any) -> Plan:
    return api.plan(**{"model": model, "cluster": cluster, "seq_len": 64, "global_batch": 16, **more})


def test_the_same_request_without_a_node() -> None:
    fewer = plan_for_nodes(planned(boxes(4)), [0, 2, 3])
    assert fewer.nodes == (0, 2, 3)
    assert not fewer.idle
    assert fewer.plan.best == planned(boxes(4), exclude=["1"]).best
    assert fewer.plan.best.to_layout().num_gpus == 3


def test_nodes_are_left_out_by_name_again_and_again() -> None:
    """Numbers are those of the plan at hand, which has lost nodes before."""
    plan = planned(boxes(4, hosts=["a", "b", "c", "d"]), exclude=["a"])
    once = plan_for_nodes(plan, [0, 2])
    assert once.plan.request["exclude"] == ["a", "c"]
    twice = plan_for_nodes(once.plan, [0])
    assert twice.plan.request["exclude"] == ["a", "c", "d"]


def test_a_number_of_gpus_becomes_smaller() -> None:
    plan = planned("dgx-h100", gpus=24)
    assert plan_for_nodes(plan, [0, 2]).plan.request["gpus"] == 16


def test_a_batch_that_does_not_divide_leaves_a_node_out() -> None:
    fewer = plan_for_nodes(planned(boxes(4), fix={"pp": 1, "tp": 1, "cp": 1}), [0, 1, 3])
    assert (fewer.nodes, fewer.idle) == ((0, 1), (3,))
    assert "leaves no legal layout" in fewer.why_idle
    assert fewer.plan.best.to_layout().dp == 2


def test_all_nodes_that_remain_may_be_slower_than_some() -> None:
    """16 sequences do not divide by 7 replicas, and 8 layers not by 7 stages."""
    large = {**SIZES, "hidden": 2048, "heads": 16, "kv_heads": 16, "ffn_hidden": 8192, "layers": 8}
    asked: dict[str, Any] = {"model": {**large, "max_positions": 2048}, "seq_len": 2048, "fix": {"tp": 1, "cp": 1}}
    fewer = plan_for_nodes(planned(boxes(8), **asked), list(range(7)))
    assert fewer.idle
    assert not fewer.why_idle
    assert fewer.plan.best.step_s < planned(boxes(7), **asked).best.step_s


def test_too_few_nodes_name_the_least() -> None:
    plan = planned(boxes(4), "llama-3.2-1b", max_memory="9 GiB")
    with pytest.raises(NoFeasibleLayoutError, match="1 node of 4 cannot train it: no layout of") as refused:
        plan_for_nodes(plan, [0])
    least = int(refused.value.hint.split()[0])
    assert 1 < least < 4
    assert planned(boxes(least), "llama-3.2-1b", max_memory="9 GiB").candidates
    with pytest.raises(NoFeasibleLayoutError):
        planned(boxes(least - 1), "llama-3.2-1b", max_memory="9 GiB")


def test_nodes_of_a_rack_cannot_be_left_out() -> None:
    plan = planned("gb200-nvl72:2", "llama-3.2-1b")
    with pytest.raises(InputError, match="no plan without the lost nodes: exclude: nodes of gb200-nvl72 share one"):
        plan_for_nodes(plan, [0])
