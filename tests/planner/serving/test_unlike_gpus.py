"""Prefill and decode on GPUs of different kinds: the plan of a cluster with both, and files that keep them apart."""

from __future__ import annotations

import pytest
import yaml
from meshwright.planner.api import plan_serving
from meshwright.planner.document.serving_plan import ServingPlan
from meshwright.planner.targets.engines.emit import emit_serving

CLUSTER = {
    "name": "mixed", "groups": ["dgx-h100:1", "dgx-a100-80gb:1"],
    "links": {"between_groups": {"bandwidth": "200 Gb/s per node", "latency": "5 us", "kind": "ethernet"}},
}  # fmt: skip


@pytest.fixture(scope="module")
def plan() -> ServingPlan:
    return plan_serving(model="llama-3.1-70b", cluster=CLUSTER, input=8000, output=200, rate="3/s", ttft="3s",
                        tpot="40ms", precision="fp8", top=2)  # fmt: skip


def test_prompts_go_where_they_are_quick_and_answers_where_they_are_cheap(plan: ServingPlan) -> None:
    prefill, decode = plan.best.pools
    assert (prefill.gpu, decode.gpu) == ("h100-sxm-80gb", "a100-sxm-80gb")
    assert prefill.site != decode.site
    assert not [text for text in plan.warnings if "even plan" in text or "slowest is used" in text]


@pytest.mark.parametrize(("launcher", "file"), [("dynamo", "dynamo.yaml"), ("llm-d", "modelserver.yaml")])
def test_manifests_keep_pools_on_their_gpus(launcher: str, file: str, plan: ServingPlan) -> None:
    emitted = emit_serving(plan, "vllm", 1, launcher)
    text = yaml.safe_dump_all(list(yaml.safe_load_all(emitted.files[file])))
    for pool in plan.best.pools:
        assert f"meshwright-gpu: {pool.gpu}" in text
        assert any(f"kubectl label node NODE meshwright-gpu={pool.gpu}" in note for note in emitted.warnings)
