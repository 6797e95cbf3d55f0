"""A mixture of experts: router, routed experts, shared experts; `expert_dispatch` sends tokens to them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ..arrays import Array
from ..cuda_graphs import IS_ITERATION, RANK_CAPACITY, STASH_FACTOR, has_fixed_shapes, router_launches
from ..offload_modules import mask_of_modules
from ..quantities.matrix import Matrix
from ..quantities.operation_builder import Builder
from ..quantities.operations import LayerOperations, MemoryTraffic, Saved, tag
from ..specs.model import MixtureOfExperts
from . import dense, residual_experts
from .dense import add_activation, add_dense, last_of_block
from .expert_dispatch import add_dispatch, add_duplicates, is_dropless


def parameters(block: MixtureOfExperts, hidden: int) -> dict[str, int]:
    """Elements of the block: router = h·E (+ E), its factors = h + E, experts = E·(2 or 3)·h·f_e (+ biases), shared =
    (2 or 3)·h·f_shared (+ biases), shared_gate = h, coefficient = 2·(h + 1)."""
    counts = {"router": hidden * block.experts}
    if block.router_bias:
        counts["router_bias"] = block.experts
    if block.router_factors:
        counts["router_factors"] = hidden + block.experts
    counts["experts"] = block.experts * one_expert_parameters(block, hidden)
    if block.latent is not None:
        counts["latent"] = 2 * hidden * block.latent
    if block.shared_inner:
        shared = dense.matrix_parameters(hidden, block.shared_inner, block.gated, block.expert_bias)
        counts["shared"] = sum(shared.values())
    if block.shared_gate:
        counts["shared_gate"] = hidden
    if block.residual:
        counts["coefficient"] = residual_experts.parameters(hidden)
    return counts


def one_expert_parameters(block: MixtureOfExperts, hidden: int) -> int:
    """Elements of one routed expert, its biases included."""
    width = block.latent or hidden
    return sum(dense.matrix_parameters(width, block.expert_inner, block.gated, block.expert_bias).values())


def matrices(block: MixtureOfExperts, h: int) -> Iterator[tuple[Matrix, int]]:
    """The matrices that Muon orthogonalises, with their numbers in a block."""
    yield Matrix(((block.experts, h),), split=False), 1  # the router
    if block.latent is not None:
        yield Matrix(((block.latent, h),), split=False), 1
        yield Matrix(((h, block.latent),), split=False), 1
    for matrix in dense.matrices(block.latent or h, block.expert_inner, block.gated, expert=True):
        yield matrix, block.experts
    if block.shared_inner:
        for matrix in dense.matrices(h, block.shared_inner, block.gated):
            yield matrix, 1
    if block.shared_gate:
        yield Matrix(((1, h),), split=False), 1
    if block.residual:
        yield Matrix(((2, h),), split=False), 1


def add_experts(builder: Builder, ops: LayerOperations, block: MixtureOfExperts) -> None:
    shard, h, w = builder.shard, builder.model.hidden, builder.activation_bytes
    load = np.where(shard.ep > 1, builder.stack.moe_imbalance, 1.0)  # a rank with all experts gets every token
    local = shard.sp_tokens  # tokens that a rank routes
    chosen = _copies(block, local, load)
    routed = chosen * (shard.tokens / shard.tp / local)  # copies at a rank of ep; tp shares out tokens held by all
    rows = routed * shard.etp  # gathered over expert-tensor ranks
    num_local = block.experts / shard.ep
    inner = block.expert_inner / shard.etp
    parts, moe = (2 if block.gated else 1), tag("moe")
    builder.add_gemm(ops, "router", local, float(block.experts), h, wide=True)
    width = h if block.latent is None else _add_latent(builder, ops, float(block.latent))
    _add_products(builder, ops, block, rows, inner * parts, width, up=True)
    _add_products(builder, ops, block, rows, width, inner, up=False)
    ops.wgrad_stash.append((w * parts + builder.kept_input) * rows * inner + (w + builder.kept_input) * rows * width)
    ops.wgrad_stash.append(w * local * block.experts)
    computed, kept = _room_of_rows(builder, block, load)
    add_activation(builder, ops, rows * inner, block.gated, tag("act", "moe"), w, ops.keeps_input(),
                    weighted=builder.stack.weighs_activations, room=computed)  # fmt: skip
    _add_activation_steps(builder, ops, block, rows * inner * (1 + computed))
    if ops.keeps_input():
        sends = mask_of_modules("expert_fc1")
        ops.saved.append(Saved("dispatched tokens", builder.kept_input * rows * width, moe, sends))
    if not builder.stack.weighs_activations:
        ops.saved.append(Saved("expert outputs", w * chosen * width, moe))
    if kept.any():
        ops.saved += [Saved(f"{each.name}, room", kept * each.num_bytes, each.tag)
                      for each in ops.saved if each.tag & moe]  # fmt: skip
    _add_router(builder, ops, block, local)
    if block.expert_bias:
        _add_output_bias(builder, ops, rows * width, num_local)
    launched = np.maximum(builder.stack.kernels_per_expert_block - router_launches(shard.graphs), 0.0)
    ops.kernels = ops.kernels + launched + builder.stack.kernels_per_expert * num_local
    ops.host_waits = ~has_fixed_shapes(shard.graphs) & is_dropless(builder, block)
    ops.ep_overlap = shard.ep_overlap
    add_dispatch(builder, ops, block, chosen, routed, rows)
    add_duplicates(ops, w * width * _copies(block, local, 1.0), w * width * rows, shard)
    _add_shared(builder, ops, block, local)


def _add_shared(builder: Builder, ops: LayerOperations, block: MixtureOfExperts, tokens: Array) -> None:
    """The shared experts, and the sum of their outputs and of those of routed ones where it has weights of its own."""
    if block.shared_inner:
        add_dense(builder, ops, float(block.shared_inner), block.gated, "shared")
        builder.add_tensor_parallel(ops, first=tag("shared"), last=last_of_block(builder, "shared"))
    if block.residual:
        residual_experts.add_weighed_sum(builder, ops, tokens)


def _copies(block: MixtureOfExperts, tokens: Array, load: Array | float) -> Array:
    """[key] rows of the experts of these tokens: one per token and chosen expert, or the capacity of each expert. load:
    rows of the busiest rank over the mean, where no capacity limits them."""
    if block.capacity_factor is None:
        return np.asarray(block.top_k * tokens * load)
    return np.asarray(block.experts * block.capacity(tokens))


def _add_router(builder: Builder, ops: LayerOperations, block: MixtureOfExperts, tokens: Array) -> None:
    """The scores of the router, and its norm, which takes the residual stream that the norms of blocks keep. The norm's
    output is kept for the gradient of its weights, and their product for that of the router."""
    ops.saved.append(Saved("router", 4.0 * tokens * block.experts))
    if block.router_factors:
        elements = builder.model.hidden * tokens
        ops.saved += [Saved(name, builder.activation_bytes * elements, tag("norm"))
                      for name in ("router norm output", "router input")]  # fmt: skip
        ops.traffic.append(builder.norm_traffic("router norm", elements, tag("norm")))


def _add_products(
    builder: Builder, ops: LayerOperations, block: MixtureOfExperts, rows: Array, made: Array | float,
    taken: Array | float, *, up: bool,
) -> None:  # fmt: skip
    """The products of a rank's experts, which get `rows` together; without a capacity not all of them equally many."""
    number = block.experts / builder.shard.ep
    builder.add_gemm(
        ops, "experts up" if up else "experts down", rows / number, made, taken, tag("moe"), count=number,
        at_once=builder.stack.experts_at_once, ragged=block.capacity_factor is None,
    )  # fmt: skip


def _add_latent(builder: Builder, ops: LayerOperations, latent: float) -> float:
    """The projection of tokens to the width of experts, and that of their outputs back, whole on every rank of tp
    (Megatron Core d98e8a64, transformer/moe/moe_layer.py, fc1_latent_proj); returns that width."""
    h, w, tokens = builder.model.hidden, builder.activation_bytes, builder.shard.sp_tokens
    builder.add_gemm(ops, "experts latent down", tokens, latent, h)
    builder.add_gemm(ops, "experts latent up", tokens, h, latent)
    ops.wgrad_stash.append((w + builder.kept_input) * tokens * latent + w * h * tokens)
    if ops.keeps_input():
        ops.saved.append(Saved("latent of experts", 2 * builder.kept_input * tokens * latent))
    return latent


def _room_of_rows(builder: Builder, block: MixtureOfExperts, load: Array) -> tuple[Array, Array]:
    """Rows of experts beside those in use, as shares of these: those that the activation takes, and those whose saved
    tensors have room. There are some where a graph holds the iteration and no token is dropped. load: rows in use over
    their average.

    TransformerEngine e7c550c5, pytorch/ops: in MXFP8 and NVFP4 products and activation are one kernel
    (fused/grouped_mlp.py), which marks what it saves, so that Megatron Core copies the rows in use to pages
    (transformer/moe/paged_stash.py, on_save_for_backward; the copies run beside the next layer and are not priced). In
    other numerics the products know the rows in use (basic/grouped_linear.py), but the activation does not
    (basic/swiglu.py), and what they save stays in buffers with all of the room.
    """
    unused = np.maximum(RANK_CAPACITY / load - 1.0, 0.0)
    computed, kept = (np.zeros_like(unused), STASH_FACTOR - 1.0) if _is_fused(builder) else (unused, unused)
    return _has_room(builder, block) * computed, _has_room(builder, block) * kept


def _has_room(builder: Builder, block: MixtureOfExperts) -> Array:
    """[key] 1 where a graph holds the iteration and no token is dropped, else 0."""
    return np.where(IS_ITERATION[builder.shard.graphs] & is_dropless(builder, block), 1.0, 0.0)


def _is_fused(builder: Builder) -> bool:
    """Whether products and activation of experts are one kernel where a graph holds the iteration."""
    return builder.stack.fuses_expert_blocks or builder.workload.precision == "fp4"


def _add_activation_steps(builder: Builder, ops: LayerOperations, block: MixtureOfExperts, elements: Array) -> None:
    """Traffic of the operations of TransformerEngine that no kernel fuses, beside the activation itself (e7c550c5,
    pytorch/ops/basic/swiglu.py; ScaledSReLU): gates and values are put apart, and the output is multiplied by
    the token's weight. Backward: put apart again, the product, gradients put together again, the activation again for
    the gradient of the weight, and that.
    """
    if _is_fused(builder):
        return
    parts, order = (2, 4) if block.gated else (1, 0)  # order: to put apart or together
    forward, backward = order + 2, 2 * order + 2 + (parts + 1) + 2
    moved = builder.activation_bytes * elements * _has_room(builder, block)
    ops.traffic.append(MemoryTraffic("activation in steps", forward * moved, backward * moved, tag("moe")))


def _add_output_bias(builder: Builder, ops: LayerOperations, elements: Array, num_local: Array) -> None:
    """The bias of an expert times the weight of a token, added to the expert's output by kernels of one step each, in
    fp32 (Megatron Core, transformer/moe/experts.py, TEGroupedMLP._apply_bias).

    Forward: product written 4, sum read w + 4 and written 4, all experts joined 8, cast 4 + w. Backward: cast w + 4,
    cast for the output 4 + w, products with weights and with biases 8 and summed up 4 each, parts joined 2 w.
    """
    w = builder.activation_bytes
    forward, backward = (24 + 2 * w) * elements, (32 + 4 * w) * elements
    ops.traffic.append(MemoryTraffic("expert bias", forward, backward, tag("moe"), fusable=False))
    ops.kernels = ops.kernels + 2.0 * num_local
