"""Layers of hybrids: their FLOPs are those that plans count."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from meshwright.cost_models.layouts import Layout, Layouts
from meshwright.cost_models.quantities.layer_operations import decoder_layer
from meshwright.cost_models.quantities.operation_builder import Builder
from meshwright.cost_models.quantities.operations import LayerOperations
from meshwright.cost_models.quantities.shards import Shard
from meshwright.cost_models.specs.model import FeedForward, Layer, ModelSpec
from meshwright.cost_models.specs.workload import Workload
from meshwright.runtime.model.block import Numerics
from meshwright.runtime.model.layer import DecoderLayer
from meshwright.runtime.rehearsal.single_rank import single_context
from torch.utils.flop_counter import FlopCounterMode

from ...cost_models.layer_kinds.test_mixers import model_of
from ..jobs import STACK

TOKENS = 2048


def predicted(model: ModelSpec, kind: Layer) -> LayerOperations:
    workload = Workload(seq_len=TOKENS, global_batch=1)
    return decoder_layer(Builder(model, workload, STACK, Shard.of(Layouts.of([Layout()]), model, workload)), kind)


def counted(model: ModelSpec, kind: Layer) -> tuple[float, float]:
    """Of the forward pass and of both, on tensors without values."""
    meta = torch.device("meta")
    layer = DecoderLayer(single_context(torch.bfloat16, meta, Numerics.of(model)), kind, model.hidden)
    x = torch.empty(1, TOKENS, model.hidden, dtype=torch.bfloat16, device=meta, requires_grad=True)
    with FlopCounterMode(display=False) as forward:
        layer(x, None)
    with FlopCounterMode(display=False) as both:
        layer(x, None).sum().backward()
    return float(forward.get_total_flops()), float(both.get_total_flops())


@pytest.mark.parametrize("mixes", [True, False])
@pytest.mark.parametrize("name", ["nemotron-h-56b", "qwen3-next-80b-a3b"])
def test_flops_of_a_layer_within_one_percent(name: str, mixes: bool) -> None:
    """With a mixer, or with attention, of which the counter has both halves; experts, which look at values, apart."""
    model = model_of(name)
    kind = next(kind for kind in model.kinds if kind.mixes and (kind.mixer is not None) == mixes)
    if kind.feed_forward is not None:
        kind = replace(kind, feed_forward=FeedForward(inner=5120))
    ops = predicted(model, kind)
    above = sum(float(core.flops[0]) for core in ops.cores)
    made_again = sum(float((product.flops * product.remade)[0]) for product in ops.batched)
    forward, both = counted(model, kind)
    assert forward == pytest.approx(ops.forward_flops() + above, rel=0.01)
    assert both == pytest.approx(ops.forward_flops() + ops.backward_flops() + 3 * above + made_again, rel=0.01)
