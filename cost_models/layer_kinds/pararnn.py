"""A recurrent network whose cell is not linear, over all tokens at once by Newton's method (ParaRNN, arXiv 2510.21450).

d channels in H heads. One projection makes the input x and a gate; x goes through a short convolution; a product per
head makes what the k = 3 gates of a cell take from it. The cell mixes no channels: its recurrent weights are diagonal.
`gru`: update, reset, candidate; a state h. `lstm`: forget, output, candidate, the input gate is one minus the forget
gate, both see the cell through peepholes; states c and h. The states are normed, gated and projected.

The states of all L tokens solve one system of equations. An iteration computes the cell and its Jacobian at all tokens
and solves a linear recurrence, by log2 L steps of cyclic reduction that combine pairs of affine maps: 1 x 1 of a GRU,
2 x 2 of an LSTM. The adjoints of the backward pass are one linear recurrence. A fused kernel reads the inputs of gates
once and writes states once, so its time is that of its arithmetic or of its bytes, whichever is longer. Three
iterations reach rounding (the paper's default). 0 iterations: token by token, each a few small kernels (torch).

Tensor parallelism splits heads. Ranks of context parallelism swap tokens for heads around the cell, or keep their
tokens and pass on states in every iteration. No kernel of it was measured: its time is an estimate.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import log2
from typing import ClassVar, Literal

import numpy as np

from ..arrays import Array
from ..offload_modules import mask_of_modules
from ..quantities.element_bytes import FP32_BYTES
from ..quantities.exchanges import Op
from ..quantities.matrix import Matrix
from ..quantities.operation_builder import Builder
from ..quantities.operations import Exchange, LayerOperations, MemoryTraffic, Saved, tag
from ..specs.model import Mixer
from .base import MixerKind
from .chunked_scan import add_convolution, add_gated_norm, chunks_of_rank

_GATES = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class ParaRnn(Mixer):
    """Sizes of a recurrent network with a diagonal recurrence."""

    kind: ClassVar[str] = "pararnn"
    channels: int  # d
    heads: int  # H
    cell: Literal["gru", "lstm"] = "gru"
    conv_kernel: int = 4  # tokens that the convolution sees
    conv_bias: bool = True  # of the convolution
    iterations: int = field(default=3, metadata={"least": 0})  # of Newton's method, 0: token by token

    @property
    def costs(self) -> _Cell:
        return _CELLS[self.cell]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Cell:
    """FLOPs of a channel and token, one per arithmetic operation or function."""

    states: int  # numbers that pass from token to token
    recurrent: int  # diagonal weights, peepholes with them
    step: int  # FLOPs of the cell; kernels of torch, too, which has one for each
    jacobian: int  # FLOPs of its derivatives by the states, from what the cell computed

    @property
    def map_elements(self) -> int:
        """Elements of an affine map of the states: a matrix and a vector."""
        return self.states * (self.states + 1)

    @property
    def combination(self) -> int:
        """FLOPs to apply one map after another: a product of matrices, one with a vector, a sum."""
        s = self.states
        return s * s * (2 * s - 1) + s * (2 * s - 1) + s


_CELLS = {
    # Update and reset gate 3 each, candidate 4, their mixture 4. Derivatives of three gates 2 each, of the mixture 11.
    "gru": _Cell(states=1, recurrent=3, step=14, jacobian=17),
    # Forget and output gate 5 each, candidate 3, cell 4, output 2. Derivatives of functions 8, of both states 17.
    "lstm": _Cell(states=2, recurrent=5, step=19, jacobian=25),
}


def forward_flops(mixer: ParaRnn, tokens: float) -> float:
    """Arithmetic of a channel and token of a sequence of so many tokens: n (cell + Jacobian + residual + scan log L),
    with 2 per state for the residual and the update."""
    cost = mixer.costs
    if not mixer.iterations:
        return float(cost.step)
    solved = cost.combination * log2(max(tokens, 2.0))
    return mixer.iterations * (cost.step + cost.jacobian + 2 * cost.states + solved)


def backward_flops(mixer: ParaRnn, tokens: float) -> float:
    """The same of the backward pass: cell and Jacobian again, one scan, and gradients of inputs and weights, each
    assumed to take what the cell takes. Token by token: those gradients alone."""
    cost = mixer.costs
    gradients = 2.0 * cost.step
    if not mixer.iterations:
        return gradients
    return cost.step + cost.jacobian + cost.combination * log2(max(tokens, 2.0)) + gradients


def _parameters(mixer: ParaRnn, hidden: int) -> dict[str, int]:
    d = mixer.channels
    return {
        "mixer_in": 2 * d * hidden,
        "mixer_conv": d * (mixer.conv_kernel + mixer.conv_bias),
        "mixer_cell": _GATES * d * (d // mixer.heads),
        "mixer_heads": d * (mixer.costs.recurrent + _GATES),  # diagonals, biases of gates
        "mixer_norm": d,
        "mixer_out": d * hidden,
    }


def _matrices(mixer: ParaRnn, hidden: int) -> tuple[Matrix, ...]:
    width = mixer.channels // mixer.heads
    return (
        Matrix(((2 * mixer.channels, hidden),)), Matrix(((_GATES * width, width),) * mixer.heads),
        Matrix(((hidden, mixer.channels),)),
    )  # fmt: skip


def _add(builder: Builder, ops: LayerOperations, mixer: ParaRnn) -> None:
    shard, h, w, tokens = builder.shard, builder.model.hidden, builder.activation_bytes, builder.shard.tokens
    d, width = mixer.channels / shard.tp, float(mixer.channels // mixer.heads)
    builder.add_gemm(ops, "mixer in", tokens, 2 * d, h)
    builder.add_gemm(ops, "mixer cell", tokens, _GATES * width, width, count=mixer.heads / shard.tp)
    builder.add_gemm(ops, "mixer out", tokens, h, d)
    add_convolution(builder, ops, d)
    _add_recurrence(builder, ops, mixer, tokens * d)
    add_gated_norm(builder, ops, d)
    _add_context(builder, ops, mixer, d)
    sends = mask_of_modules("core_attn")
    ops.saved.append(Saved("projected by mixer", 2 * w * tokens * d))
    ops.saved.append(Saved("convolution output", w * tokens * d, tag("attn"), sends))
    ops.saved.append(Saved("inputs of gates", _GATES * w * tokens * d, tag("attn"), sends))
    if ops.keeps_input():
        ops.saved.append(Saved("mixer output", builder.kept_input * tokens * d))
    ops.wgrad_stash += [
        (2 + _GATES) * w * tokens * d, 2 * builder.kept_input * tokens * d, w * h * shard.sp_tokens
    ]  # fmt: skip


def _add_recurrence(builder: Builder, ops: LayerOperations, mixer: ParaRnn, elements: Array) -> None:
    """elements: [key] channels x tokens of a rank."""
    w, cost, tokens = builder.activation_bytes, mixer.costs, float(builder.workload.seq_len)
    forward, backward = forward_flops(mixer, tokens) * elements, backward_flops(mixer, tokens) * elements
    sends = mask_of_modules("core_attn")
    if mixer.iterations:  # inputs of gates and states; backward those, and gradients of both
        moved, kept = (_GATES + cost.states) * w * elements, cost.states * w * elements
        back = 2 * moved
    else:  # each step of the cell reads two tensors and writes one, and keeps that
        moved, kept = 3 * w * cost.step * elements, cost.step * w * elements
        back = 2 * moved
        ops.kernels = ops.kernels + tokens * cost.step
    ops.traffic.append(MemoryTraffic("recurrence", moved, back, tag("attn"), fusable=False,
                                     forward_flops=forward, backward_flops=backward))  # fmt: skip
    ops.saved.append(Saved("states", kept, tag("attn"), sends))


def _add_context(builder: Builder, ops: LayerOperations, mixer: ParaRnn, d: Array) -> None:
    """Ranks swap tokens for heads; or get, in every iteration and once backward, the maps of all ranks (gather) or the
    states of the tokens before theirs (scan), and the last tokens of the convolution."""
    shard, w, cost = builder.shard, builder.activation_bytes, mixer.costs
    calls = float(max(mixer.iterations, 1))
    if builder.stack.mixer_context == "heads":
        sizes: list[tuple[Op, Array, float]] = [("all_to_all", w * shard.tokens * part * d, 1.0) for part in (2, 1)]
    else:
        gathers = builder.stack.mixer_context == "gather"
        chunks = chunks_of_rank(builder)
        sent = FP32_BYTES * chunks * d * (cost.map_elements * shard.cp if gathers else cost.states)
        sizes = [("all_gather" if gathers else "all_scan", sent, calls),
                 ("p2p", w * chunks * (mixer.conv_kernel - 1) * d, 1.0)]  # fmt: skip
    for op, num_bytes, forward_calls in sizes:
        full = np.where(shard.cp > 1, num_bytes, 0.0)
        if full.any():
            ops.exchanges.append(Exchange("cp", op, full, shard.cp, shard.tp, forward_calls, 1, tag("attn")))


KIND = MixerKind(
    spec=ParaRnn, parameters=_parameters, replicated=(), matrices=_matrices, add=_add,
    heads=lambda mixer: {"heads of the recurrent cell": (mixer.heads, False)},
    state=lambda mixer: (mixer.channels * (mixer.conv_kernel - 1 + mixer.costs.states), 0),
    kernels=3.0,  # convolution, a product more, the recurrence
)  # fmt: skip
