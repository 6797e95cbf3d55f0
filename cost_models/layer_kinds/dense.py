"""A dense feed-forward block: up, activation, down."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ..arrays import Array
from ..offload_modules import mask_of_modules
from ..quantities.matrix import Matrix
from ..quantities.operation_builder import Builder
from ..quantities.operations import LAST, LayerOperations, MemoryTraffic, Saved, tag
from ..specs.model import FeedForward


def parameters(block: FeedForward, hidden: int) -> dict[str, int]:
    """Elements of the block, by name."""
    counts = matrix_parameters(hidden, block.inner, block.gated, block.bias)
    return counts | ({"activation": block.activation_parameters} if block.activation_parameters else {})


def matrix_parameters(hidden: int, inner: int, gated: bool, bias: bool) -> dict[str, int]:
    """up and down (h·f each), gate when gated, and one bias per output element."""
    counts = {"gate": hidden * inner} if gated else {}
    counts["up"] = hidden * inner
    counts["down"] = inner * hidden
    if bias:
        counts["ffn_bias"] = inner * (2 if gated else 1) + hidden
    return counts


def matrices(hidden: int, inner: int, gated: bool, *, expert: bool = False) -> Iterator[Matrix]:
    """The matrices that Muon orthogonalises: gate and up projection together, and down."""
    yield Matrix((((2 if gated else 1) * inner, hidden),), expert=expert)
    yield Matrix(((hidden, inner),), expert=expert)


def add_dense(builder: Builder, ops: LayerOperations, inner: float, gated: bool, module: str = "mlp") -> None:
    """module: the recompute module that drops the whole block, without its norm."""
    whole = tag(module)
    shard, h, w = builder.shard, builder.model.hidden, builder.activation_bytes
    f, tokens = inner / shard.tp, shard.tokens
    builder.add_gemm(ops, "up", tokens, f * (2 if gated else 1), h, whole)
    builder.add_gemm(ops, "down", tokens, h, f, LAST | last_of_block(builder, module))
    ops.wgrad_stash.append((w * (2 if gated else 1) + builder.kept_input) * tokens * f + w * h * shard.sp_tokens)
    add_activation(builder, ops, tokens * f, gated, tag("act", module), w, ops.keeps_input("down"))


def add_threshold(builder: Builder, ops: LayerOperations, block: FeedForward) -> None:
    """Gates less the threshold of their token, a multiple of their deviation above their mean, and not below 0
    (Gemma3nTextMLP of transformers 5.24). The deviation keeps the gates, and the result is kept beside them. Mean 1,
    deviation 1, difference 2, maximum 2; backward: maximum 3, difference 1, deviation 3, mean 1, three sums 3 each."""
    if not block.sparsity:
        return
    moved = builder.activation_bytes * builder.shard.tokens * block.inner / builder.shard.tp
    ops.saved.append(Saved("gates above the threshold", moved, tag("mlp")))
    ops.traffic.append(MemoryTraffic("threshold of gates", 6 * moved, 17 * moved, tag("mlp"), fusable=False))
    ops.kernels = ops.kernels + 5.0


def last_of_block(builder: Builder, module: str) -> int:
    """Tag of the end of a recomputed block: its result is kept by nothing, so some stacks do not make it again."""
    return 0 if builder.stack.recompute_stops_early else tag(module)


def add_activation(
    builder: Builder, ops: LayerOperations, elements: Array, gated: bool, tags: int, w: float, keeps_output: bool,
    weighted: bool = False, room: Array | float = 0.0,
) -> None:  # fmt: skip
    """weighted: the output is multiplied by the token's weight for its expert, in the same kernel where it is fused;
    room: elements that are computed beside these and not kept, as a share of them."""
    parts = 2 if gated else 1
    # The inputs of the activation go with a block that is recomputed as a whole, not with `act` alone.
    outer = tags & ~tag("act")
    input_bytes = 1.0 if builder.stack.saves_fp8_activations and builder.workload.is_quantised else w
    if builder.model.activation == "relu" and not gated:
        # Its backward pass reads the result (torch derivatives.yaml, threshold_backward), which the next product keeps
        # anyway. Made again, it would need its input, which is as large.
        ops.saved.append(Saved("activation output", w * elements, outer))
        keeps_more = keeps_output and builder.kept_input < w
    else:
        sends = mask_of_modules("moe_act") if tags & tag("moe") else 0
        ops.saved.append(Saved("activation input", parts * input_bytes * elements, outer, sends))
        keeps_more = keeps_output
        if not keeps_output:
            ops.unkept_output = np.maximum(ops.unkept_output, w * elements)
    if keeps_more:
        ops.saved.append(Saved("activation output", builder.kept_input * elements, tags))
    passes, fused = (parts + 1, 2 * parts + 1), not gated or builder.stack.fused_activation
    if not fused:  # activation 2 and product 3; backward: two products 3 each, activation 3
        ops.saved.append(Saved("activation of the gate", w * elements, tags))
        if weighted:
            ops.saved.append(Saved("activation without its weight", w * elements, tags))
        passes = (5, 9)
    forward, backward = (number * w * elements * (1 + room) for number in passes)
    ops.traffic.append(MemoryTraffic("activation", forward, backward, tags, fusable=fused))
