"""The kernels that a model needs under a layout, in the words and shapes of the cost model's own table of operations.

No torch here: `runners` makes each of them run, `pricing` says what it should take.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from ...cost_models.arrays import Array
from ...cost_models.layouts import Layout, Layouts
from ...cost_models.problem import Problem
from ...cost_models.quantities.edge_operations import embedding, head
from ...cost_models.quantities.element_bytes import activation_bytes
from ...cost_models.quantities.layer_operations import decoder_layer
from ...cost_models.quantities.operation_builder import Builder
from ...cost_models.quantities.operations import LayerOperations, MemoryTraffic, tag
from ...cost_models.quantities.shards import KEY_FIELDS, Shard
from ...cost_models.quantities.stages import EMBEDDING, HEAD
from ...cost_models.specs.model import Attention, Layer

Kind = Literal["gemm", "attention", "norm", "residual", "rotary", "activation", "permute", "sort", "embedding", "loss",
               "update", "accumulation"]  # fmt: skip
Direction = Literal["forward", "backward", "input gradient", "weight gradient", "step"]
DTYPES = ("bf16", "fp16", "fp32")
# An optimizer or a sum works on as many parameters as a rank has, at one rate from here on (well past any cache).
MOST_PARAMETERS = 1 << 27


@dataclass(frozen=True, slots=True)
class Kernel:
    """One kernel to time. Equal shapes are one kernel, whatever they are called."""

    kind: Kind  # which function of torch runs it
    direction: Direction  # which pass it belongs to
    shape: tuple[tuple[str, int], ...]  # (dimension, size); of a product [m, k] x [k, n] of the forward pass
    name: str = field(compare=False)  # of the operation in the cost model
    flops: float = field(default=0.0, compare=False)  # model FLOPs of a call (attention: of the causal half)
    num_bytes: float = field(default=0.0, compare=False)  # of a call, as the cost model counts
    wide: bool = field(default=False, compare=False)  # see cost_models/quantities/operations.py
    fusable: bool = field(default=True, compare=False)  # see there

    def __getitem__(self, dim: str) -> int:
        return dict(self.shape)[dim]

    @property
    def product(self) -> tuple[int, int, int]:
        """Rows, columns and depth of a gemm in its direction; m, n, k name those of the forward pass."""
        m, n, k = (self[dim] for dim in "mnk")
        return {"forward": (m, n, k), "input gradient": (m, k, n), "weight gradient": (n, k, m)}[self.direction]


# Dimensions that shrink in a kernel with hardly any data; the others select a variant of the kernel, and stay.
_HARDLY = 16
_SIZES = ("m", "n", "k", "batch", "tokens", "copies", "rows", "head_dim", "value_head_dim", "hidden", "inner", "vocab",
          "parameters")  # fmt: skip


def hardly_any(kernel: Kernel) -> Kernel:
    """The kernel on so little data that its call is all that takes time."""
    heads = dict(kernel.shape).get("kv_heads", 1)
    sizes = {"batch": 1, "heads": max(dict(kernel.shape).get("heads", 1) // heads, 1), "kv_heads": 1}
    small = tuple((dim, sizes.get(dim, min(size, _HARDLY) if dim in _SIZES else size)) for dim, size in kernel.shape)
    return Kernel(kernel.kind, kernel.direction, small, f"{kernel.name}, hardly any")


@dataclass(frozen=True)
class Need:
    """The kernels that a layout runs on a rank of one pipeline stage that holds all layers."""

    layout: Layout  # whose kernels they are
    calls: Mapping[Kernel, float]  # per micro-batch (optimizer: per step)
    missing: tuple[str, ...]  # operations that are priced, but that nothing here can time


def needs(problem: Problem, layouts: Sequence[Layout], most_parameters: int = MOST_PARAMETERS) -> list[Need]:
    """The kernels of every layout. most_parameters: that one update or sum works on."""
    columns = Layouts.of(list(layouts))
    keys = {name: columns[name] for name in KEY_FIELDS}
    shard = Shard.of(keys, problem.model, problem.workload)
    builder = Builder(problem.model, problem.workload, problem.stack, shard)
    return [_Collector(problem, builder, layout, row, most_parameters).need() for row, layout in enumerate(layouts)]


class _Collector:
    """Walks the operations of one layout."""

    def __init__(self, problem: Problem, builder: Builder, layout: Layout, row: int, most_parameters: int) -> None:
        self.problem = problem
        self.builder = builder
        self.layout = layout
        self.row = row
        self.most_parameters = most_parameters
        self.tokens = int(builder.shard.tokens[row])
        self.own_tokens = int(builder.shard.sp_tokens[row])
        self.width = activation_bytes(problem.workload)
        self.calls: defaultdict[Kernel, float] = defaultdict(float)
        self.missing: dict[str, None] = {}

    def need(self) -> Need:
        pattern = Counter(self.problem.pattern)
        for index, variant in enumerate(self.problem.variants):
            kind = self.problem.model.kinds[variant.kind]
            self._operations(decoder_layer(self.builder, kind, variant.trains), pattern[index], kind)
        edge = "all" if self.problem.trains_everything else "passes"
        self._operations(embedding(self.builder, self.problem.trains_beside_embedding), 1, None)
        self._operations(head(self.builder, "all" if edge == "all" else "passes"), 1, None)
        self._states()
        return Need(self.layout, dict(self.calls), tuple(self.missing))

    def _operations(self, ops: LayerOperations, count: float, kind: Layer | None) -> None:
        backward = ops.trains != "frozen"
        for gemm in ops.gemms:
            m, n, k, times = (float(x[self.row]) for x in (gemm.m, gemm.n, gemm.k, gemm.count))
            shape = tuple((dim, max(round(size), 1)) for dim, size in (("m", m), ("n", n), ("k", k)))
            directions: list[Direction] = ["forward"]
            directions += ["input gradient"] if backward and gemm.has_dgrad else []
            directions += ["weight gradient"] if backward and gemm.has_wgrad else []
            for direction in directions:
                kernel = Kernel("gemm", direction, shape, gemm.name, 2.0 * m * n * k, wide=gemm.wide)
                self.calls[kernel] += count * times
        for core in ops.cores:
            if kind is not None and kind.attention is not None:
                self._attention(kind.attention, float(core.flops[self.row]), count, backward)
            else:
                self.missing["attention of the vision tower"] = None
        for traffic in ops.traffic:
            if traffic.forward_bytes[self.row] or traffic.backward_bytes[self.row]:
                self._memory_bound(ops, traffic, count, kind, backward)

    def _attention(self, attention: Attention, flops: float, count: float, backward: bool) -> None:
        layout, workload = self.layout, self.problem.workload
        windowed = attention.window is not None and attention.window < workload.seq_len
        reasons = {
            "attention split over cp": layout.cp > 1,
            "attention with a window": windowed,
            "attention over documents of many lengths": workload.context_tokens != workload.seq_len,
        }
        if missing := [text for text, applies in reasons.items() if applies]:
            self.missing.update(dict.fromkeys(missing))
            return
        kv_heads = attention.heads if attention.is_mla else max(attention.kv_heads, layout.tp)
        shape = (("batch", layout.micro_batch), ("heads", attention.heads // layout.tp),
                 ("kv_heads", kv_heads // layout.tp), ("tokens", workload.seq_len),
                 ("head_dim", attention.head_dim), ("value_head_dim", attention.value_head_dim))  # fmt: skip
        self.calls[Kernel("attention", "forward", shape, "attention", flops)] += count
        if backward:
            self.calls[Kernel("attention", "backward", shape, "attention", 2 * flops)] += count

    def _memory_bound(
        self, ops: LayerOperations, traffic: MemoryTraffic, count: float, kind: Layer | None, backward: bool
    ) -> None:  # fmt: skip
        if traffic.name == "positions" and self.problem.model.learned_positions:
            return  # added once to the embedding
        shape_of = _SHAPES.get(traffic.name)
        found = shape_of(_Part(self, ops, traffic, kind)) if shape_of is not None else None
        if found is None:
            self.missing[traffic.name] = None
            return
        name, shape, times = found
        both: tuple[tuple[Direction, Array], ...] = (
            ("forward", traffic.forward_bytes), ("backward", traffic.backward_bytes))  # fmt: skip
        for direction, num_bytes in both[: 1 + backward]:
            moved = float(num_bytes[self.row]) / times
            self.calls[Kernel(name, direction, shape, traffic.name, num_bytes=moved, fusable=traffic.fusable)] += (
                count * times
            )

    def _states(self) -> None:
        """The optimizer's step and the sum of gradients, over the parameters of a rank."""
        layout, problem = self.layout, self.problem
        rows = problem.parameters
        trained = sum(
            times * (rows[i].trained_sharded / layout.tp + rows[i].trained_replicated
                     + rows[i].trained_experts / (layout.ep * layout.etp))
            for i, times in (*Counter(problem.pattern).items(), (EMBEDDING, 1), (HEAD, 1))
        )  # fmt: skip
        states = problem.state_bytes
        updated = trained / (layout.shard * layout.cp if layout.zero else 1)
        per_update = states.gradient + 2 * states.optimizer + states.weight + problem.stack.optimizer_extra_bytes
        per_sum = 2 * states.gradient + 2 * self.width
        for kind, total, bytes_each in (("update", updated, per_update), ("accumulation", trained, per_sum)):
            size = int(min(total, self.most_parameters))
            if size:
                kernel = Kernel(kind, "step", (("parameters", size),), kind, num_bytes=bytes_each * size, fusable=False)  # type: ignore[arg-type]
                self.calls[kernel] += total / size


@dataclass(frozen=True, slots=True)
class _Part:
    """A memory-bound operation of a layer, or of an end of the model, under one layout."""

    of: _Collector
    ops: LayerOperations  # all of the layer's
    traffic: MemoryTraffic  # of the operation itself
    kind: Layer | None  # None: of an end of the model

    @property
    def layer(self) -> Layer:
        if self.kind is None:
            raise TypeError("not an operation of a layer")
        return self.kind

    def product(self, name: str) -> tuple[int, int, int]:
        """Rows, columns and depth of a product of the layer; the rows of all experts of a rank."""
        gemm = next(each for each in self.ops.gemms if each.name == name)
        m, n, k = (float(size[self.of.row]) for size in (gemm.m * gemm.count, gemm.n, gemm.k))
        return max(round(m), 1), round(n), round(k)


# Kind of kernel, its shape, calls per operation.
_Shape = tuple[Kind, tuple[tuple[str, int], ...], float]


def _norm(part: _Part) -> _Shape:
    of, kind = part.of, part.kind
    bias = kind.norm_bias if kind is not None else of.problem.model.norm_bias
    shape = (("tokens", of.own_tokens), ("hidden", of.problem.model.hidden), ("bias", int(bias)))
    return "norm", shape, float(kind.num_norms) if kind is not None else 1.0


def _residual(part: _Part) -> _Shape:
    return "residual", (("tokens", part.of.own_tokens), ("hidden", part.of.problem.model.hidden)), 2.0


def _rotary(part: _Part) -> _Shape:
    attention, _ = part.layer.transformer_blocks
    tp = part.of.layout.tp
    kv_heads = attention.heads if attention.is_mla else max(attention.kv_heads, tp)
    return "rotary", (("tokens", part.of.tokens), ("heads", (attention.heads + kv_heads) // tp),
                      ("head_dim", attention.head_dim)), 1.0  # fmt: skip


def _activation(part: _Part) -> _Shape:
    """Its output is the input of the product behind it."""
    _, block = part.layer.transformer_blocks
    tokens, _, inner = part.product("experts down" if part.traffic.tag & tag("moe") else "down")
    return "activation", (("tokens", tokens), ("inner", inner), ("gated", int(block.gated))), 1.0


def _permute(part: _Part) -> _Shape | None:
    """The copies that a rank makes of its own tokens and sums up; other dispatchers than by all-to-all copy those of
    other ranks."""
    if part.of.problem.stack.ep_dispatch != "alltoall":
        return None
    rows, hidden, _ = part.product("experts down")
    copies = rows // part.of.layout.etp
    return "permute", (("tokens", part.of.own_tokens), ("copies", copies), ("hidden", hidden)), 1.0


def _sort(part: _Part) -> _Shape:
    """Rows in another order, as often as they are read and written."""
    rows, hidden, _ = part.product("experts down")
    times = float(part.traffic.forward_bytes[part.of.row]) / (2 * part.of.width * rows * hidden)
    return "sort", (("rows", rows), ("hidden", hidden)), times


def _embedding(part: _Part) -> _Shape:
    model, layout = part.of.problem.model, part.of.layout
    return "embedding", (("tokens", part.of.tokens), ("vocab", model.vocab // layout.tp), ("hidden", model.hidden)), 1.0


def _loss(part: _Part) -> _Shape:
    vocab = part.of.problem.model.vocab // part.of.layout.tp
    return "loss", (("tokens", part.of.tokens), ("vocab", vocab)), 1.0


# Memory-bound operations of cost_models.operations that a kernel can be made of; the others stay priced.
_SHAPES: Mapping[str, Callable[[_Part], _Shape | None]] = {
    "norms": _norm, "final norm": _norm, "residuals": _residual, "positions": _rotary, "activation": _activation,
    "permute": _permute, "sort": _sort, "embedding": _embedding, "loss": _loss,
}  # fmt: skip


def distinct(needs: Sequence[Need]) -> Iterator[Kernel]:
    """Every kernel once, in the order of first use."""
    yield from dict.fromkeys(kernel for need in needs for kernel in need.calls)
