"""Operations of two encoders in place of one, each of which reads its share of the sequences."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ..specs.retrieval import Retrieval
from .operation_builder import Builder
from .operations import LayerOperations


def split_towers(ops: LayerOperations, retrieval: Retrieval | None) -> None:
    """Parts the products of a layer by the encoder that has its weights."""
    if retrieval is None or len(retrieval.shares) == 1:
        return
    ops.gemms = [replace(gemm, m=gemm.m * share) for gemm in ops.gemms for share in retrieval.shares]
    ops.kernels = len(retrieval.shares) * np.asarray(ops.kernels)


def add_vectors(builder: Builder, ops: LayerOperations, retrieval: Retrieval) -> None:
    """The product of the first token of each sequence."""
    if retrieval.projection:
        builder.add_gemm(ops, "vectors", builder.shard.batch, retrieval.projection, builder.model.hidden, wide=True)
        ops.kernels += 2.0
        split_towers(ops, retrieval)
