"""The work of recurrences on the tokens of a prompt: products inside chunks, and what their kernels move.

It is that of the forward pass of training (cost_models/layer_kinds): engines run the same kernels on prompts (vLLM
0.32, model_executor/layers/fla/ops and layers/mamba/ops; SGLang 0.5, srt/layers/attention/fla).
"""

from __future__ import annotations

from collections.abc import Sequence

from ..layer_kinds.registry import kind_of
from ..layouts import Layout, Layouts
from ..quantities.operation_builder import Builder
from ..quantities.operations import LayerOperations
from ..quantities.shards import Shard
from ..specs.model import Layer, ModelSpec
from ..specs.stack import StackSpec
from ..specs.workload import Workload

_TOKENS = 1024  # of the sequence whose work is taken: several chunks of every kind


def scans_of(model: ModelSpec, layers: Sequence[Layer], stack: StackSpec) -> tuple[float, float]:
    """FLOPs and bytes of a token of a prompt in the recurrences of all layers, projections left out; (0, 0) without
    any. Arithmetic of vector units is left out. stack: its kernels, as in training."""
    mixers = [kind.mixer for kind in layers if kind.mixer is not None]
    if not mixers:
        return 0.0, 0.0
    workload = Workload(seq_len=_TOKENS, global_batch=1)
    builder = Builder(model, workload, stack, Shard.of(Layouts.of([Layout()]), model, workload))
    flops = moved = 0.0
    for mixer in mixers:
        operations = LayerOperations("layer")
        kind_of(mixer).add(builder, operations, mixer)
        flops += sum(float(product.flops[0]) for product in operations.batched)
        moved += sum(float(traffic.forward_bytes[0]) for traffic in operations.traffic)
    return flops / _TOKENS, moved / _TOKENS
