"""Rates of a device, its links and a software stack: every measured, fitted or assumed constant."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from ..specs.cluster import NetworkLevel
from ..specs.stack import StackSpec
from .collectives import CollectiveRates, Levels
from .surfaces import AttentionSurface, GemmSurface, UnfusedSurface

# Kinds of groups of ranks that communicate, each over links of its own once nodes are placed (Rates.links).
GROUPS = ("tp", "cp", "ep", "etp", "pp", "tied", "shard", "replicate", "expert_shard", "expert_replicate")

# Fields of StackSpec that pricing alone reads: under other values of these the operations stay as they are.
STACK_FIELDS = frozenset((
    "throughput", "elementwise_traffic", "tp_overlap", "sequence_parallel_overlap", "dp_overlap", "fsdp_overlap",
    "cp_overlap", "blocking_heads", "ep_overlap", "ep_overlap_beside", "offload_overlap", "contention",
    "host_s_per_kernel", "sources",
))  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class MemoryOverheads:
    """Device memory outside tensors."""

    context_bytes: float  # CUDA context and libraries
    communicator_bytes: float  # NCCL buffers per group
    reserve_share: float  # of the allocated bytes, lost to fragmentation
    source: str = ""  # of the numbers


@dataclass(frozen=True, kw_only=True)
class Rates:
    """Seconds per unit of everything, for one GPU, its links and one software stack.

    Peaks, bandwidths and latencies may be arrays [n] where n rows are priced under a rate each
    (planner/studies/pricing.py says which).
    """

    gemm: GemmSurface  # products of the compute dtype
    wide_gemm: GemmSurface  # of products that stay in bf16 when the rest is fp8 or fp4
    attention: AttentionSurface | UnfusedSurface  # core attention
    memory_bw_bytes_per_s: float  # achieved by memory-bound kernels
    peak_flops_per_s: float  # dense, of the compute dtype: the denominator of MFU
    vector_flops_per_s: float | None = None  # of vector units in fp32 (datasheet), None: not known, none is priced
    collectives: CollectiveRates  # constants of collectives
    levels: tuple[NetworkLevel, ...]  # network from the innermost level
    pcie_bw_bytes_per_s: float  # per GPU, one direction
    host_memory_bw_bytes_per_s: float  # per GPU, for an optimizer that runs on the host
    stack: StackSpec  # overlaps and kernels of the software
    overheads: MemoryOverheads  # memory beside tensors
    element_bytes: float = 2.0  # of matmul operands
    wide_element_bytes: float = 2.0  # of operands of `wide_gemm`
    host_exponent: float = 3.0  # soft maximum of host and device time (docs/reference/efficiencies.md)
    # Of a device that was measured: bytes/s of an operation by the name of its Traffic, forward and backward ("update",
    # "accumulation", "message": both the same), and seconds that a layer or an end of the model takes by itself, by its
    # name; "weights": what of a layer's backward pass makes gradients of weights; "split", "ulysses", "message":
    # per_pass_overhead.py; "recompute layer", "recompute attn", ...: that recomputing takes beside its work, of all of
    # a layer or of a module.
    passes: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    latency_s: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    sources: Mapping[str, str]  # term -> measured | fitted | formula | datasheet | assumed
    links: Mapping[str, Levels] = field(default_factory=dict)  # of a kind of group (GROUPS), where not `levels`

    def bandwidth(self, operation: str) -> tuple[float, float]:
        """Bytes/s of a memory-bound operation, forward and backward."""
        return self.passes.get(operation, (self.memory_bw_bytes_per_s, self.memory_bw_bytes_per_s))

    def levels_of(self, group: str) -> Levels:
        """The network levels of groups of this kind."""
        return self.links.get(group, self.levels)

    def on_network(self, bw_bytes_per_s: Mapping[str, float]) -> Rates:
        """These rates where each kind of group finds a bandwidth of its own (per GPU) on the outermost level."""
        inner, network = self.levels[:-1], self.levels[-1]
        links = {name: (*inner, replace(network, bw_bytes_per_s=bw)) for name, bw in bw_bytes_per_s.items()}
        return replace(self, links=links)
