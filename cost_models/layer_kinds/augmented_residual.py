"""Two products of a low rank beside attention (LAuReL, arXiv 2411.07501, section 2; Gemma3nTextLaurelBlock of
transformers 5.24): they take what attention takes, and their normed output is added to what both gave."""

from __future__ import annotations

from collections.abc import Iterator

from ..quantities.matrix import Matrix
from ..quantities.operation_builder import Builder
from ..quantities.operations import LayerOperations, MemoryTraffic, Saved
from ..specs.model import Layer


def parameters(kind: Layer, hidden: int) -> dict[str, int]:
    """Elements of both products and of the norm."""
    return {"augmented": 2 * hidden * kind.augmented_rank + hidden} if kind.augmented_rank else {}


def matrices(kind: Layer, hidden: int) -> Iterator[Matrix]:
    """The matrices of a layer that Muon orthogonalises: both products."""
    if kind.augmented_rank:
        yield Matrix(((kind.augmented_rank, hidden),), split=False)
        yield Matrix(((hidden, kind.augmented_rank),), split=False)


def add_augmented(builder: Builder, ops: LayerOperations, kind: Layer) -> None:
    """Adds the products beside attention, which keeps their input. Every rank of tp has the weights whole."""
    rank, h, w, tokens = kind.augmented_rank, builder.model.hidden, builder.activation_bytes, builder.shard.sp_tokens
    if not rank:
        return
    builder.add_gemm(ops, "augmented residual in", tokens, float(rank), float(h), wide=True)
    builder.add_gemm(ops, "augmented residual out", tokens, float(h), float(rank), wide=True)
    ops.saved.append(Saved("augmented residual", w * (rank + h) * tokens + 4.0 * h * tokens * builder.norms_in_steps))
    ops.wgrad_stash.append(2 * w * (rank + h) * tokens)
    ops.traffic.append(builder.norm_traffic("norm of the augmented residual", h * tokens))
    # Added to its input 3, to what attention gave 3, and scaled 2; backward: scaled 2, two gradients added 3 each.
    ops.traffic.append(MemoryTraffic("augmented residual", 8 * w * h * tokens, 8 * w * h * tokens, fusable=False))
    ops.kernels = ops.kernels + 6.0
