"""What a layer and a step are made of, restated by hand on small cases."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from meshwright.cost_models import rates as pricing
from meshwright.cost_models.layouts import Layout, Layouts
from meshwright.cost_models.operations import KEY_FIELDS, Builder, LayerOperations, Shard
from meshwright.cost_models.rates import LayerSeconds, Rates, layer_seconds
from meshwright.cost_models.specs import ModelSpec, Precision, StackSpec, Workload
from meshwright.profiles.cluster import load_cluster
from meshwright.profiles.models import load_model
from meshwright.profiles.stacks import load_stack, rates_for

MIXTRAL, LLAMA = load_model("mixtral-8x7b")[0], load_model("llama-3.1-8b")[0]


def stack_of(**changed: Any) -> StackSpec:
    return replace(load_stack("generic"), **changed)


def operations(model: ModelSpec, stack: StackSpec, layout: Layout, precision: Precision = "bf16") -> LayerOperations:
    """The decoder layer of `model` under `layout`."""
    keys = {name: np.asarray(Layouts.of([layout])[name]) for name in KEY_FIELDS}
    workload = Workload(seq_len=4096, global_batch=64, precision=precision)
    return Builder(model, workload, stack, Shard.of(keys, model, workload)).layer(model.kinds[-1])


def priced(ops: LayerOperations, stack: StackSpec, precision: Precision = "bf16", **changed: Any) -> LayerSeconds:
    rates: Rates = rates_for(load_cluster("dgx-h100:2"), stack, precision)
    return layer_seconds(ops, replace(rates, **changed), 1)


# --- launches ---------------------------------------------------------------------------------------------------------


def test_kernels_of_a_layer() -> None:
    """Dense: 21; fp8 adds three per product of quantised operands. Experts add a block, and two launches each."""
    stack = stack_of(kernels_per_layer=21, kernels_per_expert_block=110, kernels_per_expert=2, kernels_per_cast=3)
    assert np.all(operations(LLAMA, stack, Layout()).kernels == 21)
    assert np.all(operations(LLAMA, stack, Layout(), "fp8").kernels == 21 + 3 * 4)  # qkv, out, up and gate, down
    two = Layout(dp=4, shard=4, ep=4)  # 8 experts over 4 ranks; the router stays in bf16
    assert np.all(operations(MIXTRAL, stack, two).kernels == 21 + 110 + 2 * 2)
    assert np.all(operations(MIXTRAL, stack, two, "fp8").kernels == 21 + 110 + 2 * 2 + 3 * (2 + 2 * 2))


def test_host_and_device_overlap_unless_the_host_waits() -> None:
    """Soft maximum with exponent 3 of host and device time; a dropless dispatch adds them in the forward pass."""
    layout = Layout(dp=4, shard=4, ep=4)
    for dropless in (False, True):
        stack = stack_of(host_s_per_kernel=50e-6, dropless=dropless)
        ops = operations(MIXTRAL, stack, layout)
        found = priced(ops, stack)
        host_s = 50e-6 * float(np.max(ops.kernels))
        free = priced(ops, replace(stack, host_s_per_kernel=0.0))
        forward, backward = (float(part.sum()) for part in (free.forward, free.backward))
        assert 0.2 < host_s / forward < 5  # both matter
        soft = (forward**3 + host_s**3) ** (1 / 3)
        assert float(found.forward.sum()) == pytest.approx(forward + host_s if dropless else soft, rel=1e-12)
        assert float(found.backward.sum()) == pytest.approx((backward**3 + (2 * host_s) ** 3) ** (1 / 3), rel=1e-12)
        assert float(found.forward[pricing.COMPONENTS.index("host")].sum()) > 0
