"""Experts over an NVLink domain that is larger than a node: trays of 4 GPUs in a rack of 72."""

from __future__ import annotations

from typing import Any

import pytest
from meshwright.cost_models.degrees import divisors
from meshwright.planner import api

MOE: dict[str, Any] = {"hidden": 2048, "layers": 4, "heads": 16, "kv_heads": 16, "head_dim": 128, "ffn_hidden": 4096,
                       "vocab": 32000, "max_positions": 4096,
                       "moe": {"experts": 144, "topk": 8, "expert_ffn": 768, "moe_layers": 4}}  # fmt: skip
ASKED: dict[str, Any] = {"model": MOE, "seq_len": 4096, "global_batch": 72, "target": "any"}


def ep_s(cluster: str, layout: str) -> float:
    best = api.evaluate(None, layout, **ASKED, cluster=cluster).best
    return sum(term.seconds for term in best.terms if term.name.startswith("ep comm"))


@pytest.mark.parametrize("cluster", ["gb200-nvl72:18", "gb300-nvl72:18", "vr200-nvl72:18"])
def test_experts_over_the_whole_domain(cluster: str) -> None:
    plan = api.plan(**ASKED, cluster=cluster, fix={"ep": 72}, top=1)
    assert plan.best.to_layout().ep == 72


def test_their_messages_stay_on_nvlink() -> None:
    """Nine nodes of 8 joined by InfiniBand move the same bytes far slower than one rack of trays."""
    layout = "dp72-ep72-mbs1-z1-rnone"
    assert ep_s("gb200-nvl72:18", layout) * 4 < ep_s("dgx-b200:9", layout)


@pytest.mark.parametrize("cluster", ["gb200-nvl72:18", "dgx-h100:9"])
def test_no_rule_keeps_the_parts_of_an_expert_on_a_node(cluster: str) -> None:
    """Frameworks take any etp that divides the width and the ranks; it is slow where it leaves the links of a node."""
    plan = api.plan(**ASKED, cluster=cluster, fix={"etp": 24}, top=1)
    assert plan.best.to_layout().etp == 24
    assert plan.certificate.space.by_axis["etp"] == len(divisors(768))
