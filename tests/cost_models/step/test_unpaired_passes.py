"""Passes that no other micro-batch runs beside, where messages of experts hide behind one."""

from __future__ import annotations

import numpy as np
import pytest
from meshwright.cost_models.layouts import parse
from meshwright.cost_models.rates.kernel_seconds import kernel_seconds
from meshwright.cost_models.schedules import simulator
from meshwright.cost_models.schedules.orders import F
from meshwright.planner.evaluation.staged import Staged
from meshwright.planner.request.load import request_from_dict
from meshwright.planner.request.resolve import Resolved, resolve

ALONE, BESIDE = "dp16-ep16-mbs1-z1-rnone", "dp16-ep16-epo-mbs1-z1-rnone"


def resolved(micro_batches: int, gpus: int = 16) -> Resolved:
    """Qwen3 30B on nodes of H100, each rank with so many sequences."""
    return resolve(request_from_dict({
        "model": "qwen3-30b-a3b", "cluster": f"dgx-h100:{gpus // 8}", "target": "megatron",
        "workload": {"seq_len": 4096, "global_batch": 16 * micro_batches},
    }))  # fmt: skip


def test_a_single_micro_batch_hides_nothing() -> None:
    alone, beside = (Staged.of(resolved(1), parse(name)) for name in (ALONE, BESIDE))
    assert beside.terms["unpaired"] > 0.01 * alone.closed_s
    assert beside.closed_s == pytest.approx(alone.closed_s, rel=1e-9)


def test_of_many_micro_batches_one_pass_of_each_kind_is_alone() -> None:
    one, many = (Staged.of(resolved(m), parse(BESIDE)).terms["unpaired"] for m in (1, 64))
    assert many == pytest.approx(one, rel=1e-12)
    assert Staged.of(resolved(64), parse(ALONE)).terms["unpaired"] == 0.0


@pytest.mark.parametrize(("vpp", "micro_batches"), [(2, 16), (6, 16), (12, 4), (12, 8)])
def test_passes_ahead_are_those_of_the_order_and_of_its_fill(vpp: int, micro_batches: int) -> None:
    layout = parse(f"pp4-vpp{vpp}-dp16-ep8-epo-mbs1-z1-rnone")
    staged = Staged.of(resolved(micro_batches, gpus=64), layout)
    order = simulator.make("interleaved", 4, micro_batches, vpp)
    # The forward pass that the order runs just before the first backward pass of the last device runs ahead, too: one
    # pass more is ahead, so that none waits for the one beside it.
    ahead = int(np.argmax(order.kind[order.first[3] :] != F))
    longer_s = float(kernel_seconds(staged.ledger.tables, staged.resolved.rates).alone_s[0, staged.key])
    layers = staged.resolved.model.num_layers / 4
    assert staged.terms["unpaired"] == pytest.approx((3 + ahead) / vpp * layers * longer_s, rel=1e-9)
