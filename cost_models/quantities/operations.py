"""Operations of a layer: products, attention, memory traffic, collectives and saved tensors, per shard key.

`layer_operations.py` and `edge_operations.py` make them. All arrays are [key]; quantities only, `rates` turns them into
seconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeVar

import numpy as np

from ..arrays import Array, Ints, Mask
from ..layouts import MODULES
from .exchanges import Op

Axis = Literal["tp", "cp", "ep"]
Trains = Literal["all", "lora", "passes", "frozen"]
# "all": weights train; "lora": only adapters; "passes": frozen, but gradients flow through; "frozen": no backward.


# Tag of operations after the last kept tensor of a layer. Full recomputation may skip them.
LAST = 1 << len(MODULES)
# Tag of the layers of a vision tower, which full recomputation makes again.
TOWER = LAST << 1
FIRST_DIFFERENTIATED = ("down", "experts down")  # of a layer's products


@dataclass(frozen=True, slots=True)
class Gemm:
    """`count` products of [m, k] x [k, n]; backward [m, n] x [n, k] and, if weights train, [n, m] x [m, k]."""

    name: str  # for tables and profiles
    m: Array  # [key] rows
    n: Array  # [key] columns
    k: Array  # [key] contracted
    count: Array  # [key]
    tag: int = 0  # recompute modules that run it again (`tag`)
    has_wgrad: bool = True  # whether its weights train
    has_dgrad: bool = True  # whether its input gets a gradient
    wide: bool = False  # stays in bf16 when the rest is fp8 or fp4: head, router, MTP projection
    at_once: bool = False  # all `count` fill the GPU together; else each is a kernel that waits for the one before
    ragged: bool = False  # they differ in their rows, which are m in the mean


@dataclass(frozen=True, slots=True)
class Core:
    """Core attention: forward model FLOPs of the causal half; the backward pass has twice as many."""

    flops: Array  # [key] forward, causal half
    context: float  # tokens of the causal span: a query sees half of them in the mean
    head_dim: int  # of queries and keys
    tag: int  # recompute modules that run it again
    has_gradients: bool = True


@dataclass(frozen=True, slots=True)
class BatchedProduct:
    """`batch` products of activations in one kernel, [m, k] x [k, n] each; the backward pass makes the gradients of
    both, and the output again `remade` times."""

    name: str  # for tables and profiles
    m: float  # rows
    n: float  # columns
    k: float  # contracted
    batch: Array  # [key]
    tag: int  # recompute modules that run it again
    remade: float = 0.0  # by a kernel that keeps its inputs only
    has_gradients: bool = True
    fp32: bool = False  # on vector units

    @property
    def flops(self) -> Array:
        """[key] of the forward pass."""
        return 2 * self.m * self.n * self.k * self.batch


@dataclass(frozen=True, slots=True)
class MemoryTraffic:
    """An operation without products of matrices: bytes read and written, forward and backward."""

    name: str  # for Rates.passes
    forward_bytes: Array  # [key]
    backward_bytes: Array  # [key]
    tag: int = 0  # recompute modules that run it again
    fusable: bool = True  # one kernel at best: eager stacks move more bytes for it
    forward_flops: Array | float = 0.0  # [key] arithmetic of vector units, which may take longer; no part of MFU
    backward_flops: Array | float = 0.0  # [key] the same backward


@dataclass(frozen=True, slots=True)
class Exchange:
    """A collective between the ranks of one axis."""

    axis: Axis  # of the group
    op: Op  # collective
    num_bytes: Array  # [key] of the full tensor, per call
    size: Array  # [key] ranks
    stride: Array  # [key] distance between them in ranks
    forward_calls: Array | float  # per micro-batch
    backward_calls: Array | float  # per micro-batch
    tag: int = 0  # recompute modules that run it again
    copies: float = 1.0  # see collectives.curve
    groups: tuple[int, int] = (1, 1)  # see collectives.curve
    links: str = ""  # kind of group (rates.GROUPS) on whose links it is; empty: the axis
    awaited: bool = False  # few bytes, for which the host waits: among its seconds where kernels are counted


@dataclass(frozen=True, slots=True)
class Saved:
    """A tensor kept for the backward pass."""

    name: str  # for traces
    num_bytes: Array  # [key]
    tag: int = 0  # recompute modules that drop it
    offload: Ints | int = 0  # offload modules that save it, each with a copy of its own on the host; 0: none sends it


@dataclass(slots=True)
class LayerOperations:
    """All operations of one layer kind (or of the embedding, head or MTP projection) for every key."""

    name: str  # for tables and profiles
    trains: Trains = "all"  # how much of it
    gemms: list[Gemm] = field(default_factory=list)  # products
    cores: list[Core] = field(default_factory=list)  # core attention
    batched: list[BatchedProduct] = field(default_factory=list)  # products inside the scan of a mixer
    traffic: list[MemoryTraffic] = field(default_factory=list)  # memory-bound operations
    exchanges: list[Exchange] = field(default_factory=list)  # collectives
    saved: list[Saved] = field(default_factory=list)  # tensors kept for the backward pass
    wgrad_stash: list[Array] = field(default_factory=list)  # bytes kept from I to W by a split backward pass
    reordered_bytes: Array | float = 0.0  # [key] of experts' rows as they came and as they are needed, for a while both
    steps: Array | float = 0.0  # [key] bytes at once: steps of a scan that runs again, scores of an index, gathered KV
    unkept_output: Array | float = 0.0  # bytes of an activation's, of which a trained product would keep a copy
    input_bytes: Array | float = 0.0  # the layer's input: all that full recompute keeps
    gathered_input: Exchange | None = None  # of what full recompute keeps, the part of which a rank keeps its share
    graph_output: Array | float = 0.0  # bytes of outputs that CUDA graphs keep for the backward pass, as if saved
    kernels: Array | float = 0.0  # launched per forward pass
    host_waits: Mask | bool = False  # the host reads a result of the forward pass back before it can launch the rest
    sequence_parallel: Mask | bool = False  # whether its collectives over tp gather and scatter a sequence
    ep_overlap: Mask | bool = False  # whether tokens travel to experts beside another micro-batch
    adapted: frozenset[str] = frozenset()  # projections with adapters
    # The first key of those whose products and exchanges are alike, and [key] which of these it is; None: each its own.
    alike: tuple[Ints, Ints] | None = None

    @property
    def kept_input(self) -> Array:
        """[key] bytes that full recompute keeps on a rank."""
        part = self.gathered_input
        return np.asarray(self.input_bytes if part is None else self.input_bytes - part.num_bytes * (1 - 1 / part.size))

    def products_of(self, keys: Ints) -> LayerOperations:
        """The products and exchanges of some keys."""
        return LayerOperations(
            name=self.name, trains=self.trains, gemms=_rows(self.gemms, keys), cores=_rows(self.cores, keys),
            batched=_rows(self.batched, keys), exchanges=_rows(self.exchanges, keys),
        )  # fmt: skip

    def keeps_input(self, *projections: str) -> bool:
        """Whether the input of any of these projections (none: of products that take no adapters) is kept: only the
        gradient of what trains needs it."""
        return self.trains == "all" or not self.adapted.isdisjoint(projections)

    def forward_flops(self, modules: int | None = None) -> float:
        """For the first key. `modules`: only operations that selective recompute of these modules repeats."""
        gemms = sum(float((2 * g.m * g.n * g.k * g.count)[0]) for g in self.gemms if modules is None or g.tag & modules)
        cores: list[Core | BatchedProduct] = [*self.cores, *self.batched]
        return gemms + sum(float(c.flops[0]) for c in cores if modules is None or c.tag & modules)

    def backward_flops(self) -> float:
        """For the first key: gradients of inputs, and of the weights that train."""
        if self.trains == "frozen":
            return 0.0
        weights = sum(float((2 * g.m * g.n * g.k * g.count)[0]) for g in self.gemms if g.has_wgrad)
        inputs = sum(float((2 * g.m * g.n * g.k * g.count)[0]) for g in self.gemms if g.has_dgrad)
        cores = sum(float(core.flops[0]) for core in self.cores if core.has_gradients)
        cores += sum(float(product.flops[0]) for product in self.batched if product.has_gradients)
        return inputs + weights + 2 * cores


_Operation = TypeVar("_Operation", Gemm, Core, BatchedProduct, Exchange)


def _rows(operations: Sequence[_Operation], keys: Ints) -> list[_Operation]:
    """Operations of some keys."""
    return [_row(operation, keys) for operation in operations]


def _row(operation: _Operation, keys: Ints) -> _Operation:
    fields = {name: getattr(operation, name) for name in operation.__slots__}
    columns: dict[str, Any] = {name: column[keys] for name, column in fields.items() if isinstance(column, np.ndarray)}
    return replace(operation, **columns)


def tag(*modules: str) -> int:
    """Bit mask of the recompute modules that would redo an operation and drop its result."""
    return sum(1 << MODULES.index(name) for name in modules)
