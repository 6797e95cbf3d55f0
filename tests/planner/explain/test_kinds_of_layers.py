"""Seconds by kind of layer: they are those of the stages, taken apart."""

from __future__ import annotations

import pytest
from meshwright.planner import api
from meshwright.planner.explain.kinds_of_layers import kind_loads
from meshwright.planner.explain.stage_loads import stage_loads
from meshwright.planner.request.load import request_from_dict

PLANS = {
    "nemotron-h-56b": ("tp8-pp4-dp2-mbs1-z1-rnone", ["mamba2 layer", "mlp layer", "attention layer"], [54, 54, 10]),
    "qwen3-next-80b-a3b": ("tp2-pp4-dp8-ep8-mbs1-z1-rnone",
                           ["gated_delta_net + experts layer", "moe layer"], [36, 12]),
    "deepseek-v2-lite": ("pp4-dp16-ep8-mbs1-z1-rnone", ["layer", "moe layer"], [1, 26]),
}  # fmt: skip


@pytest.mark.parametrize("model", PLANS)
def test_the_kinds_of_layers_take_what_the_stages_take(model: str) -> None:
    layout, names, counts = PLANS[model]
    plan = api.evaluate(None, layout, model=model, cluster="dgx-h100:8", seq_len=4096, global_batch=64, target="any")
    request = request_from_dict(plan.request)
    kinds = kind_loads(request, plan.best)
    assert [kind.name for kind in kinds] == names
    assert [kind.layers for kind in kinds] == counts
    assert sum(kind.share for kind in kinds) == pytest.approx(1, abs=1e-6)
    loads = stage_loads(request, plan.best)
    ends = (loads.embedding_layers + loads.head_layers) * loads.layer_s
    layers_s = sum(kind.layers * (kind.forward_s + kind.backward_s) for kind in kinds)
    # Stages accumulate gradients as well, and wait for slow GPUs.
    assert layers_s + ends < sum(loads.stage_s) < 1.12 * (layers_s + ends)
    assert all(0 < kind.forward_s < kind.backward_s and kind.saved_bytes > 0 for kind in kinds)
