"""Operations of a vision tower on the first stage, for the images of a micro-batch.

Symbols: N patches of the micro-batch, p patches of an image, h hidden, f inner, o output, b = h merge^2 the width of a
block of patches that becomes a token, t tensor-parallel ranks that split the tower, a width of the heads of a rank,
w bytes per activation element.

Its products stay in bf16 and its activations are not split over t or over ranks of context parallelism, which all
encode all images (Megatron-Bridge 51885cf1, get_vision_model_config of modelling_qwen3_vl: no fp8, no sequence
parallelism, context_parallel_size 1). Full recomputation recomputes its layers as well (recompute_granularity
there; gradient checkpointing of transformers concerns all modules).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..arrays import Array
from ..specs.vision import VisionTower
from . import vision
from .operation_builder import Builder
from .operations import TOWER, Core, Exchange, Gemm, LayerOperations, MemoryTraffic, Saved


def add_tower(builder: Builder, ops: LayerOperations) -> None:
    """Add the tower and its projector to the operations of the embedding. Nothing without images."""
    tower, images = builder.model.tower, builder.workload.images
    if tower is None or images is None:
        return
    patches = tower.patches(images.height, images.width)
    trains = ops.trains == "all"
    part = _Part(
        builder, ops, tower, images=builder.shard.batch * images.per_sequence, rows=patches + tower.class_tokens,
        in_windows=vision.pairs_in_windows(tower, images.height, images.width) if tower.window else 0,
        all_rows=builder.shard.batch * images.per_sequence * (patches + tower.class_tokens),
        all_patches=builder.shard.batch * images.per_sequence * patches,
        all_tokens=builder.shard.batch * images.per_sequence * vision.image_tokens(tower, images.height, images.width),
        ranks=vision.ranks(tower, builder.shard.tp, builder.stack.tp_plan),
        trains_tower=trains and not builder.workload.freeze_tower, trains_projector=trains,
    )  # fmt: skip
    part.add_patches()
    part.add_layers()
    part.add_idle()
    part.add_projector()
    # What full recomputation keeps: the input of each layer, and what is beside the layers.
    beside = sum((saved.num_bytes for saved in ops.saved if saved.tag != TOWER), np.zeros_like(part.all_patches))
    ops.input_bytes = beside + part.trains_tower * tower.layers * part.width
    ops.kernels = ops.kernels + builder.stack.kernels_per_layer * (tower.layers + tower.idle_layers + tower.idle_head)


@dataclass(frozen=True, slots=True)
class _Part:
    """Adds the parts of a tower in turn."""

    builder: Builder
    ops: LayerOperations
    tower: VisionTower
    images: Array  # [key] of the micro-batch
    rows: int  # patches of an image, and its class token
    in_windows: int  # pairs of patches of an image that attend to each other in a layer with windows
    all_rows: Array  # [key] of the micro-batch
    all_patches: Array  # [key] of the micro-batch
    all_tokens: Array  # [key] of the micro-batch
    ranks: Array  # [key] t
    trains_tower: bool
    trains_projector: bool

    @property
    def width(self) -> Array:
        """[key] bytes of the hidden states of all patches, and of class tokens."""
        return np.asarray(self.builder.activation_bytes * self.tower.hidden * self.all_rows)

    def add_patches(self) -> None:
        """One product of the pixels of a patch, which need no gradient, and the learned positions."""
        values = vision.values_of_patch(self.tower)
        self._product("tower patches", self.all_patches, self.tower.hidden, values, inputs=False)
        if self.tower.positions:
            self._traffic("tower positions", 3 * self.width, 2 * self.width)
        if self.tower.start_norm:
            self._traffic("tower start norm", 2 * self.width, 4 * self.width)
        if self.trains_tower:
            moved = self.builder.activation_bytes * values * self.all_patches
            self.ops.saved.append(Saved("tower pixels", moved + self.tower.start_norm * self.width))

    def add_layers(self) -> None:
        """Attention among the patches of an image or of its windows, and a feed-forward block."""
        n, h, f, t, layers = self.all_rows, self.tower.hidden, self.tower.inner, self.ranks, self.tower.layers
        a = self.heads * (h // self.tower.heads)
        for name, rows, columns in self._products(a, f / t):
            self._product(f"tower {name}", n, rows, columns, count=layers, tag=TOWER)
        windowed = self.tower.windowed
        for count, pairs in ((layers - windowed, self.rows**2), (windowed, self.in_windows)):
            if count:
                flops = 4.0 * self.images * pairs * a * count
                self.ops.cores.append(Core(flops, round(pairs / self.rows), h // self.tower.heads, self._tag,
                                           has_gradients=self.trains_tower))  # fmt: skip
        inner, moved = self.width * f / h / t, layers * self.width
        self._traffic("tower norms", 4 * moved, 8 * moved, TOWER)
        self._traffic("tower residuals", 6 * moved, 4 * moved, TOWER)
        parts = 1 + self.tower.gated
        self._traffic("tower activation", (parts + 1) * layers * inner, (2 * parts + 1) * layers * inner, TOWER)
        if self.tower.qk_norm:
            self._traffic("tower query and key norms", 4 * layers * self.of_heads, 8 * layers * self.of_heads, TOWER)
        if self.tower.layer_scale:
            self._traffic("tower layer scale", 4 * moved, 8 * moved, TOWER)
        self._reduced(self.width, 2 * layers, tag=self._tag)
        if self.trains_tower:
            self._save_layers(inner)

    def _products(self, heads: Array | int, inner: Array | int) -> tuple[tuple[str, Array | int, Array | int], ...]:
        """(name, outputs, inputs) of the products of a layer, with so many elements of all heads and inside."""
        h = self.tower.hidden
        return (("qkv", 3 * heads, h), ("output", h, heads), ("up", (1 + self.tower.gated) * inner, h),
                ("down", h, inner))  # fmt: skip

    def _save_layers(self, inner: Array) -> None:
        """Kept by each layer: inputs and outputs of its norms, queries, keys, values and what attention makes of them,
        and both sides of the activation, with a gate its product, too; queries and keys before their norms, and what
        the factors per channel scale."""
        width, layers, heads = self.width, self.tower.layers, self.of_heads
        gate = (2 - self.builder.stack.fused_activation) * inner if self.tower.gated else 0.0
        kept = {"norms": 4 * width, "attention": 4 * heads + self._statistics, "activation": 2 * inner + gate,
                "query and key norms": self.tower.qk_norm * 2 * heads, "scale": self.tower.layer_scale * 2 * width}
        self.ops.saved += [Saved(f"tower {name}", layers * size, TOWER) for name, size in kept.items()]
        stash = (width + 3 * heads) + (heads + width) + (width + (1 + self.tower.gated) * inner) + (inner + width)
        self.ops.wgrad_stash.append(layers * stash)

    @property
    def _statistics(self) -> Array:
        """[key] bytes that attention keeps of its scores: all of them where no flash kernel runs."""
        rows = self.all_rows * self.heads
        if self.builder.stack.attention == "unfused":
            whole = 1 - self.tower.windowed / self.tower.layers
            each = whole * self.rows + (1 - whole) * self.in_windows / self.rows
            return np.asarray(self.builder.activation_bytes * rows * each)
        return np.asarray(4.0 * rows)

    def add_projector(self) -> None:
        """Blocks of patches become tokens: a mean, a norm and a product; one product; or two products around GELU, once
        for the last layer and once for each layer whose output is added to the language model. The norm trains with the
        products, so the first product after it has a gradient of its input also above a frozen tower."""
        tower, w = self.tower, self.builder.activation_bytes
        tokens, block = self.all_tokens, tower.hidden * tower.merge**2
        if tower.merger == "mean":
            self._product("projector", tokens, tower.output, tower.hidden, trains=self.trains_projector,
                          inputs=self.trains_projector)  # fmt: skip
            # Its norm comes after the mean: the mean has a gradient only where the tower trains.
            back = 2 * self.width / (1 if self.trains_tower else tower.merge**2)
            self._traffic("projector mean", self.width * (1 + 2 / tower.merge**2), back, trains=self.trains_projector)
            if self.trains_projector:
                self.ops.saved.append(Saved("projector", 2 * self.width / tower.merge**2))
            return
        if tower.merger == "linear":
            self._product("projector", tokens, tower.output, tower.hidden, trains=self.trains_projector)
            if self.trains_projector:
                self.ops.saved.append(Saved("projector", self.width))
            return
        if tower.merger == "adapter":
            self._add_adapter(tokens, block)
            return
        if tower.merger == "perceptron":
            self._add_perceptron(tokens, block)
            return
        if tower.merger == "pooled":
            self._add_pooled(tokens)
            return
        runs, t = 1 + tower.deepstack, self.ranks
        self._product("projector up", tokens, block / t, block, count=runs, trains=self.trains_projector,
                      inputs=self.trains_projector)  # fmt: skip
        self._product("projector down", tokens, tower.output, block / t, count=runs, trains=self.trains_projector,
                      inputs=self.trains_projector)  # fmt: skip
        self._traffic("projector norm", 2 * runs * self.width, 4 * runs * self.width, trains=self.trains_projector)
        self._reduced(w * tower.output * tokens, runs, trains=self.trains_projector)
        if self.trains_projector:
            inner = w * block / t * tokens
            self.ops.saved.append(Saved("projector", runs * (2 * self.width + 2 * inner)))
            self.ops.wgrad_stash.append(runs * (self.width + 2 * inner + w * tower.output * tokens))

    def _add_adapter(self, tokens: Array, block: int) -> None:
        """The norms at the ends of the layers, and three products with an activation after the first and the second."""
        tower, trains, w = self.tower, self.trains_projector, self.builder.activation_bytes
        self._traffic("tower end norms", 4 * self.width, 8 * self.width)
        if self.trains_tower:
            self.ops.saved.append(Saved("tower end norms", 2 * self.width))
        for name, inner, outer in (("up", block, tower.adapter), ("middle", tower.adapter, tower.adapter),
                                   ("down", tower.adapter, tower.output)):  # fmt: skip
            inputs = self.trains_tower if name == "up" else trains
            self._product(f"projector {name}", tokens, outer, inner, trains=trains, inputs=inputs)
        moved = w * tower.adapter * tokens
        self._traffic("projector activations", 4 * moved, 6 * moved, trains=trains)
        if trains:
            self.ops.saved.append(Saved("projector", w * block * tokens + 4 * moved))
            self.ops.wgrad_stash.append(w * block * tokens + 4 * moved + w * tower.output * tokens)

    def _add_perceptron(self, tokens: Array, block: int) -> None:
        """Perhaps a norm of the block, and two products around GELU. Without the norm, nothing before the first product
        trains above a frozen tower."""
        tower, trains, w, t = self.tower, self.trains_projector, self.builder.activation_bytes, self.ranks
        normed, moved, inner = tower.projector_norm != "none", w * block * tokens, w * tower.adapter / t * tokens
        self._product("projector up", tokens, tower.adapter / t, block, trains=trains,
                      inputs=trains if normed else self.trains_tower)  # fmt: skip
        self._product("projector down", tokens, tower.output, tower.adapter / t, trains=trains, inputs=trains)
        if normed:
            self._traffic("projector norm", 2 * moved, 4 * moved, trains=trains)
        self._traffic("projector activation", 2 * inner, 3 * inner, trains=trains)
        self._reduced(w * tower.output * tokens, 1, trains=trains)
        if trains:
            self.ops.saved.append(Saved("projector", (1 + normed) * moved + 2 * inner))
            self.ops.wgrad_stash.append(moved + 2 * inner + w * tower.output * tokens)

    def _add_pooled(self, tokens: Array) -> None:
        """Means of patches and learned rows between them, and two products around GELU. The learned rows train with the
        products, so that the first product has a gradient of its inputs also above a frozen tower."""
        tower, trains, w = self.tower, self.trains_projector, self.builder.activation_bytes
        pooled, inner = w * tower.hidden * tokens, w * tower.output * tokens
        for name, depth in (("up", tower.hidden), ("down", tower.output)):
            self._product(f"projector {name}", tokens, tower.output, depth, trains=trains, inputs=trains)
        self._traffic("projector mean", self.width + pooled, self.width + pooled)
        self._traffic("projector activation", 2 * inner, 3 * inner, trains=trains)
        if trains:
            # torch keeps what it takes means of, where that has a gradient.
            self.ops.saved.append(Saved("projector", self.trains_tower * self.width + pooled + 2 * inner))
            self.ops.wgrad_stash.append(pooled + 3 * inner)

    def add_idle(self) -> None:
        """Layers and attention pooling behind the output that is used: computed, with no gradients and nothing kept."""
        tower, h, f, n = self.tower, self.tower.hidden, self.tower.inner, self.all_rows
        if tower.idle_layers:
            for name, columns, depth in self._products(h, f):
                self._product(f"tower idle {name}", n, columns, depth, count=tower.idle_layers, trains=False,
                              inputs=False)  # fmt: skip
            flops = 4.0 * self.all_rows * tower.patches_of_tile * h * tower.idle_layers
            self.ops.cores.append(Core(flops, tower.patches_of_tile, h // tower.heads, 0, has_gradients=False))
            moved = tower.idle_layers * self.width
            forward = (4 + 6) * moved + (2 + tower.gated) * moved * f / h  # norms, residuals, activation: `add_layers`
            self._traffic("tower idle layers", forward, np.zeros_like(forward), trains=False)
        if tower.idle_head:
            queries = self.all_patches / tower.patches_of_tile
            pooling = [("keys", n, 2 * h, h), ("query", queries, h, h), ("output", queries, h, h),
                       ("up", queries, f, h), ("down", queries, h, f)]  # fmt: skip
            for name, rows, columns, depth in pooling:
                self._product(f"tower pooling {name}", rows, columns, depth, trains=False, inputs=False)
            flops = 4.0 * self.all_patches * h
            self.ops.cores.append(Core(flops, tower.patches_of_tile, h // tower.heads, 0, has_gradients=False))

    @property
    def heads(self) -> Array:
        """[key] of a rank."""
        return vision.heads_of_rank(self.tower, self.ranks)

    @property
    def of_heads(self) -> Array:
        """[key] bytes of the queries of all patches on a rank."""
        return np.asarray(self.width * self.heads / self.tower.heads)

    @property
    def _tag(self) -> int:
        return TOWER if self.trains_tower else 0

    def _product(self, name: str, m: Array, n: Array | float, k: Array | float, *, count: int = 1, tag: int = 0,
                 trains: bool | None = None, inputs: bool | None = None) -> None:  # fmt: skip
        """trains: whether its weights do; inputs: whether its input gets a gradient; None: as the tower's layers."""
        rows, columns, depth, times = (np.broadcast_to(np.asarray(x, dtype=np.float64), self.all_patches.shape)
                                       for x in (m, n, k, count))  # fmt: skip
        wgrad = self.trains_tower if trains is None else trains
        dgrad = self.trains_tower if inputs is None else inputs
        self.ops.gemms.append(Gemm(name, rows, columns, depth, times, tag=tag and self._tag, has_wgrad=wgrad,
                                   has_dgrad=dgrad, wide=True))  # fmt: skip

    def _traffic(self, name: str, forward: Array, backward: Array, tag: int = 0, *, trains: bool | None = None) -> None:
        trains = self.trains_tower if trains is None else trains
        back = backward if trains else np.zeros_like(backward)
        self.ops.traffic.append(MemoryTraffic(name, forward, back, tag and self._tag))

    def _reduced(self, num_bytes: Array, calls: int, *, tag: int = 0, trains: bool | None = None) -> None:
        """All-reduces of products whose inputs the ranks have parts of, and backward of their inputs' gradients."""
        if np.all(self.ranks == 1):
            return
        trains = self.trains_tower if trains is None else trains
        sent = np.where(self.ranks > 1, num_bytes, 0.0)
        self.ops.exchanges.append(Exchange("tp", "all_reduce", sent, self.ranks, np.ones_like(sent), calls,
                                           calls if trains else 0, tag))  # fmt: skip
