"""The parts of the operations of every block: shapes of a rank, and the parts that several blocks share."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from ..arrays import Array, Mask
from ..cuda_graphs import returns_normed_tokens
from ..specs.model import Layer, ModelSpec
from ..specs.stack import StackSpec
from ..specs.workload import Workload
from .element_bytes import activation_bytes
from .exchanges import Op
from .operations import Exchange, Gemm, LayerOperations, MemoryTraffic
from .shards import Shard

_Calls = list[tuple[Array, Array | float, Array | float]]


@dataclass(frozen=True, slots=True)
class Builder:
    """Adds operations to a layer for a batch of shard keys. All sizes are those of one rank."""

    model: ModelSpec
    workload: Workload
    stack: StackSpec
    shard: Shard  # columns [key]
    any_fp8_layout: bool = False  # of Problem

    def of_source(self) -> Builder:
        """The same for the tokens that an encoder reads: those of the workload without one."""
        length = self.workload.source_len or self.workload.seq_len
        share, shard = length / self.workload.seq_len, self.shard
        source = replace(shard, tokens=share * shard.tokens, sp_tokens=share * shard.sp_tokens)
        return replace(self, shard=source, workload=replace(self.workload, seq_len=length, source_len=None))

    def of_streams(self) -> Builder:
        """The same for the tokens of all streams of the model."""
        streams, shard = self.stack.streams, self.shard
        if streams == 1:
            return self
        return replace(self, shard=replace(shard, batch=streams * shard.batch, tokens=streams * shard.tokens,
                                           sp_tokens=streams * shard.sp_tokens))  # fmt: skip

    @property
    def activation_bytes(self) -> float:
        """Bytes per activation element: w of the formulas."""
        return activation_bytes(self.workload)

    @property
    def kept_input(self) -> float:
        """Bytes per element that a product keeps of its input."""
        quantised = self.workload.is_quantised and self.stack.saves_fp8_inputs
        return self.workload.operand_bytes if quantised else self.activation_bytes

    def graphs_return_norm(self, kind: Layer) -> Array:
        """[key] 1 where CUDA graphs return the input of the experts, else 0."""
        if not kind.is_moe:
            return np.zeros_like(self.shard.tokens)
        permutes_first = self.stack.ep_dispatch == "alltoall"
        return np.asarray(returns_normed_tokens(self.shard.graphs, permutes_first=permutes_first), dtype=np.float64)

    @property
    def norms_in_steps(self) -> bool:
        return not self.stack.fused_norms and not self.model.norm_bias

    @property
    def fp32_casts(self) -> float:
        """Bytes per element to fp32 and back: torch makes no copy of what is fp32 already."""
        w = self.activation_bytes
        return 0.0 if w == 4 else 2 * (w + 4)

    def norm_traffic(self, name: str, elements: Array, tags: int = 0) -> MemoryTraffic:
        """RMS norms (others are one kernel in torch, too). One by one, torch's steps move, in bytes per element: cast,
        square 8, mean 4, scale 8, cast back, weights 2 w; backward: weights 6 w, cast, scale 24, mean 4, square 28, sum
        12, cast back (torchtitan, models/norms.py of 2024, `rmsnorm`; torch tools/autograd/derivatives.yaml)."""
        w, casts = self.activation_bytes, self.fp32_casts
        if not self.norms_in_steps:
            return MemoryTraffic(name, 2 * w * elements, 4 * w * elements, tags)
        return MemoryTraffic(
            name, (casts + 20 + 2 * w) * elements, (casts + 68 + 6 * w) * elements, tags, fusable=False
        )

    def add_gemm(
        self, ops: LayerOperations, name: str, m: Array, n: Array | float, k: Array | float, tags: int = 0,
        count: Array | float = 1.0, wide: bool = False, at_once: bool = False, ragged: bool = False,
        has_dgrad: bool = True,
    ) -> None:  # fmt: skip
        shape = self.shard.tokens.shape
        rows, columns, depth, times = (
            np.broadcast_to(np.asarray(x, dtype=np.float64), shape) for x in (m, n, k, count)
        )
        trained = ops.trains == "all"
        ops.gemms.append(
            Gemm(name, rows, columns, depth, times, tag=tags, has_wgrad=trained, has_dgrad=has_dgrad, wide=wide,
                 at_once=at_once, ragged=ragged)
        )  # fmt: skip

    def add_tensor_parallel(
        self, ops: LayerOperations, blocks: Array | float = 1, *, inputs: int = 1, first: int = 0, last: int = 0,
        width: float | None = None,
    ) -> None:  # fmt: skip
        """Per block: all-gather and reduce-scatter with sequence parallelism, else an all-reduce; same backward, where
        each of `inputs` projections may reduce its part of the gradient by itself. first, last: tags of what comes
        before the block and after it. width: elements per token that the block gathers, and whose gradient it reduces;
        h unless given."""
        shard, with_sp = self.shard, self.shard.sp > 0
        full = np.where(shard.tp > 1, self.activation_bytes * self.model.hidden * shard.tokens, 0.0)
        back = blocks * (inputs if self.stack.tp_plan == "by-projection" else 1)
        # Bytes, calls of the forward and of the backward pass.
        gathered: _Calls = [(full, blocks, blocks)]
        reduced: _Calls = [(full, blocks, back)]
        if width is not None:
            taken = full * width / self.model.hidden
            gathered = [(taken, blocks, 0.0), (full, 0.0, blocks)]
            reduced = [(full, blocks, 0.0), (taken, 0.0, back)]
        collectives: list[tuple[Op, _Calls, Mask, int]] = [
            ("all_gather", gathered, with_sp, first), ("reduce_scatter", reduced, with_sp, last),
            ("all_reduce", reduced, ~with_sp, last),
        ]  # fmt: skip
        for op, calls, sends, tags in collectives:
            for num_bytes, forward, backward in calls:
                sent = np.where(sends, num_bytes, 0.0)
                ones = np.ones_like(full)
                ops.exchanges.append(Exchange("tp", op, sent, shard.tp, ones, forward, backward, tags))
