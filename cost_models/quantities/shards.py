"""Shard keys: the columns of a layout that determine shapes and launches, and sizes derived from them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..arrays import Array, Ints, Mask
from ..layouts import CP_ALGORITHMS
from ..specs.model import ModelSpec
from ..specs.stack import StackSpec
from ..specs.workload import Workload

KEY_FIELDS = ("tp", "sequence_parallel", "cp", "cp_algorithm", "ep", "etp", "micro_batch", "ep_overlap", "cuda_graphs",
              "offload_modules")  # fmt: skip
# Those of them that no product and no exchange depends on: a switch has no part in what is computed and sent.
KEY_SWITCHES = ("ep_overlap", "cuda_graphs", "offload_modules")


@dataclass(frozen=True, slots=True)
class Shard:
    """The shard keys as columns [key], with the sizes that follow from them."""

    tp: Array  # ranks
    sp: Array  # 1 where activations are sequence-parallel
    cp: Array  # ranks, ulysses x ring
    ulysses: Array  # ranks that exchange heads
    ring: Array  # ranks that exchange keys and values
    allgather: NDArray[np.bool_]  # whether these gather them all at once
    ep: Array  # ranks
    etp: Array  # ranks
    ep_overlap: Mask  # whether tokens travel to experts beside another micro-batch
    graphs: Ints  # codes of CUDA_GRAPHS
    batch: Array  # sequences per micro-batch
    tokens: Array  # T
    sp_tokens: Array  # T/t where activations are sequence-parallel, else T

    @classmethod
    def of(cls, keys: Mapping[str, NDArray[np.int64]], model: ModelSpec, workload: Workload) -> Shard:
        col = {name: np.asarray(keys[name]).astype(np.float64) for name in KEY_FIELDS}
        algorithm = np.asarray(keys["cp_algorithm"])
        ulysses = ulysses_degree(model, keys)
        tokens = col["micro_batch"] * workload.seq_len / col["cp"]
        return cls(
            tp=col["tp"], sp=col["sequence_parallel"], cp=col["cp"], ulysses=ulysses, ring=col["cp"] / ulysses,
            allgather=algorithm == CP_ALGORITHMS.index("allgather"), ep=col["ep"], etp=col["etp"],
            ep_overlap=col["ep_overlap"] > 0, graphs=np.asarray(keys["cuda_graphs"]),
            batch=col["micro_batch"], tokens=tokens,
            sp_tokens=np.where(col["sequence_parallel"] > 0, tokens / col["tp"], tokens),
        )  # fmt: skip

    def head_parts(self, stack: StackSpec) -> Array:
        """[key] parts that the head is split into over tp."""
        return np.where((stack.tp_plan == "by-projection") & (self.sp == 0), 1.0, self.tp)

    def loss_parts(self, stack: StackSpec) -> Array:
        """[key] parts that the loss is split into over tp."""
        return self.head_parts(stack) if stack.split_logits else np.ones_like(self.tp)


def ulysses_degree(model: ModelSpec, keys: Mapping[str, NDArray[np.int64]]) -> Array:
    """[key] ranks that exchange heads instead of keys and values: cp under ulysses, a proper divisor under
    ring+ulysses.

    The hybrid (USP, arXiv 2405.07719) takes the largest divisor of cp, below cp, that divides the KV heads of a rank.
    """
    cp, tp, algorithm = (np.asarray(keys[name]) for name in ("cp", "tp", "cp_algorithm"))
    degree = np.ones(len(cp))
    degree[algorithm == CP_ALGORITHMS.index("ulysses")] = cp[algorithm == CP_ALGORITHMS.index("ulysses")]
    hybrid = np.flatnonzero((algorithm == CP_ALGORITHMS.index("ring+ulysses")) & (cp > 1))
    kv_heads = min((attention.kv_heads for attention in model.attentions), default=1)
    for pair in set(zip(cp[hybrid].tolist(), tp[hybrid].tolist(), strict=True)):
        per_rank = max(1, kv_heads // pair[1])
        best = max(u for u in range(1, pair[0]) if pair[0] % u == 0 and per_rank % u == 0)
        degree[hybrid[(cp[hybrid] == pair[0]) & (tp[hybrid] == pair[1])]] = best
    return degree
