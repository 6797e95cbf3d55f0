"""The tables that a search or an evaluation prices layouts from: quantities per kind and shard key.

Built once per set of shard keys; a layout then only looks up its key.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from ..arrays import Array, group_rows
from ..cuda_graphs import IN_GRAPH, launched_share
from ..layouts import MODULES, RECOMPUTE_MODES
from ..offload_modules import num_modules, offloaded
from ..problem import Problem
from ..specs.model import Layer, MixtureOfExperts
from .by_code import ByCode, Code, of_owner, under_no_recompute
from .edge_operations import embedding, head, mtp
from .element_bytes import activation_bytes
from .graph_parts import kept_gradients, mixing_parts_of, part_of_product, parts_of
from .layer_operations import decoder_layer
from .operation_builder import Builder
from .operations import FIRST_DIFFERENTIATED, Gemm, LayerOperations
from .rank_parameters import of_rank
from .shards import KEY_FIELDS, KEY_SWITCHES, Shard
from .stages import HEAD


@dataclass(frozen=True, eq=False)
class Tables:
    """Operations, parameters and bytes per kind (variants, then the edges of stages.py) and shard key."""

    problem: Problem
    keys: Mapping[str, NDArray[np.int64]]  # KEY_FIELDS -> [key]
    operations: tuple[LayerOperations, ...]  # per kind; arrays [key]

    @property
    def num_keys(self) -> int:
        return len(self.keys["tp"])

    def saved(self, mode: int, modules: int) -> Array:
        """[kind, key] bytes kept per micro-batch."""
        return self._saved_under([(mode, modules)])[:, 0]

    @cached_property
    def saved_whole(self) -> Array:
        """[kind, key] bytes kept per micro-batch where nothing is recomputed."""
        return self.saved(0, 0)

    @cached_property
    def saved_by_code(self) -> ByCode:
        """Bytes of every kind that are kept per micro-batch."""
        return of_owner(self._saved_under)

    @cached_property
    def least_saved(self) -> Array:
        """[kind, key] bytes that no recomputation keeps less than on the GPU, per micro-batch."""
        every = (1 << len(MODULES)) - 1
        codes = [(mode, every if name == "selective" else 0) for mode, name in enumerate(RECOMPUTE_MODES)]
        return np.asarray((self._saved_under(codes) - self._offloaded_under(codes)[0]).min(axis=1))

    @cached_property
    def working_by_code(self) -> ByCode:
        """Bytes of every kind of layer that are recomputed, alive while it is differentiated."""
        return of_owner(self._working_under)

    def _working_under(self, codes: Sequence[Code]) -> Array:
        """[kind, code, key] the same."""
        layers = slice(self.problem.num_kinds)
        return np.asarray(self.saved_whole[layers, None] - self._saved_under(codes)[layers])

    def _saved_under(self, codes: Sequence[Code]) -> Array:
        """[kind, code, key] bytes kept per micro-batch."""
        out = np.zeros((len(self.operations), len(codes), self.num_keys))
        full = np.array([RECOMPUTE_MODES[mode] == "full" for mode, _ in codes])
        for i, ops in enumerate(self.operations):
            if ops.trains == "frozen":
                continue
            is_layer = i < self.problem.num_kinds
            tags = [saved.tag if is_layer else 0 for saved in ops.saved]
            keeps = under_no_recompute(tags, codes)
            for tag in dict.fromkeys(tags):
                same = sum((saved.num_bytes for saved, its in zip(ops.saved, tags, strict=True) if its == tag),
                           np.zeros(self.num_keys))  # fmt: skip
                out[i] += keeps[:, tags.index(tag), None] * same
            out[i] += ops.graph_output
            if is_layer or np.any(ops.input_bytes):
                out[i][full] = ops.kept_input
        return out

    @cached_property
    def offloaded_by_code(self) -> tuple[ByCode, ByCode]:
        """Bytes of every kind per micro-batch that `offload_modules` takes off the GPU, and those that it copies."""
        return of_owner(self._offloaded_under, 0), of_owner(self._offloaded_under, 1)

    def _offloaded_under(self, codes: Sequence[Code]) -> Array:
        """[2, kind, code, key] the same; what a layer makes again, it does not save."""
        out = np.zeros((2, len(self.operations), len(codes), self.num_keys))
        saves = np.array([RECOMPUTE_MODES[mode] != "full" for mode, _ in codes])
        for kind, tag, rows in self._offloadable:
            out[:, kind] += (under_no_recompute([tag], codes)[:, 0] * saves)[:, None] * rows[:, None]
        return out

    @cached_property
    def _offloadable(self) -> list[tuple[int, int, Array]]:
        """For each tensor that any key offloads: kind of layer, recompute modules that drop it, and [2, key] bytes that
        leave the GPU and that are copied. Each module that saves a tensor sends a copy; when all have, it leaves."""
        out = []
        for kind, ops in enumerate(self.operations[: self.problem.num_kinds]):
            is_moe = self.problem.model.kinds[self.problem.variants[kind].kind].is_moe
            on = offloaded(self.keys["offload_modules"], self.keys["cuda_graphs"], is_moe)
            for saved in ops.saved if ops.trains != "frozen" else ():
                copies = num_modules(saved.offload & on)
                if copies.any():
                    gone = copies == num_modules(saved.offload)
                    out.append((kind, saved.tag, saved.num_bytes * np.array([gone, copies])))
        return out

    @cached_property
    def wgrad_stash(self) -> Array:
        """[kind, key] bytes of a micro-batch between I and W: inputs and output gradients of the products whose weights
        train, recomputed or not. The head's product is made in I. Where not all layers train, all that is saved stays.
        """
        rows = [sum(ops.wgrad_stash) + np.zeros(self.num_keys) if ops.trains in ("all", "lora") else saved
                for ops, saved in zip(self.operations, self.saved_whole, strict=True)]  # fmt: skip
        return np.array(rows)

    @cached_property
    def logits(self) -> Array:
        """[key] logits, or values, of a micro-batch on a rank."""
        shard = Shard.of(self.keys, self.problem.model, self.problem.workload)
        model = self.problem.model
        if not model.token_head:  # values are whole on every rank
            return np.asarray(shard.tokens * model.token_labels)
        return np.asarray(shard.tokens * model.vocab / shard.loss_parts(self.problem.stack))

    @cached_property
    def message(self) -> Array:
        """[key] bytes of the largest stage-to-stage message: all hidden states of a micro-batch, or a rank's part."""
        shard = Shard.of(self.keys, self.problem.model, self.problem.workload)
        tokens = shard.tokens / shard.tp if self.problem.stack.split_messages else shard.sp_tokens
        width = self.problem.model.hidden * self.problem.model.residual_streams * self.problem.workload.sent_share
        width *= self.problem.stack.streams
        return np.asarray(activation_bytes(self.problem.workload) * width * tokens)

    @cached_property
    def head_exchange(self) -> Array:
        """[key] bytes of the destination of the head's largest collective: its gathered input."""
        largest = np.zeros(self.num_keys)
        for exchange in self.operations[HEAD].exchanges:
            if exchange.op in ("all_gather", "p2p", "all_to_all"):
                largest = np.maximum(largest, exchange.num_bytes)
        return largest

    @cached_property
    def cached_gradients(self) -> Array:
        """[kind of layer, key] bytes of one gradient of every shape of a layer's weights, where the stack keeps them.
        Routed experts have one shape."""
        layers = slice(self.problem.num_kinds)
        if not (self.problem.stack.cached_gradients and self.problem.stack.fused_accumulation):
            return np.zeros((self.problem.num_kinds, self.num_keys))
        blocks = [self.problem.model.kinds[variant.kind].feed_forward for variant in self.problem.variants]
        experts = np.array([[block.experts if isinstance(block, MixtureOfExperts) else 1] for block in blocks])
        local = np.maximum(experts / np.asarray(self.keys["ep"], dtype=np.float64), 1.0)
        of_layer = self.parameters["trained_dense"][layers] + self.parameters["trained_experts"][layers] / local
        return np.asarray(activation_bytes(self.problem.workload) * of_layer)

    @cached_property
    def workspace(self) -> Array:
        """[kind of layer, key] bytes of the gradients of the widest product's input and output, alive at once in the
        backward pass. That of an activation's output is alive beside those of its inputs; where the output itself was
        kept, it is gone by then, and is as large. The product that the backward pass meets first has that of its
        weight, too, and its output's is what a collective has brought. Those of other weights are left out: by then the
        layer has let go of about as much, but of less where a rank has few tokens beside the width of its experts.
        Experts' rows in two orders may be more."""
        kinds = range(self.problem.num_kinds)
        return np.array([self._most(self._workspace_of_parts(kind).values()) for kind in kinds])

    def _workspace_of_parts(self, kind: int) -> dict[str, Array]:
        """Part of a layer (graph_parts.parts_of) -> [key] bytes of the gradients of its widest product."""
        w, ops, layer = activation_bytes(self.problem.workload), self.operations[kind], self._layer(kind)
        widest = {part: np.zeros(self.num_keys) for part in parts_of(layer)}
        if layer.is_moe:
            widest["experts"] = np.asarray(ops.reordered_bytes + np.zeros(self.num_keys))
        for gemm in ops.gemms:
            part = part_of_product(gemm.name, layer)
            made = self._made(gemm) if gemm.name in FIRST_DIFFERENTIATED else 0.0
            needed = w * gemm.count * gemm.m * (gemm.n + gemm.k) + made + ops.unkept_output
            widest[part] = np.maximum(widest[part], needed)
        for part in mixing_parts_of(layer)[-1:]:
            widest[part] = np.maximum(widest[part], ops.steps)
        return widest

    def _layer(self, kind: int) -> Layer:
        return self.problem.model.kinds[self.problem.variants[kind].kind]

    @cached_property
    def graph_workspace(self) -> tuple[Array, Array, Array]:
        """[kind of layer, key] bytes, where CUDA graphs hold parts of layers: of the widest product's gradients in a
        graph, and outside of all; of the gradients that a graph's outputs get."""
        codes, rows = np.asarray(self.keys["cuda_graphs"]), []
        for kind in range(self.problem.num_kinds):
            layer, of_parts = self._layer(kind), self._workspace_of_parts(kind)
            inside = [np.where(IN_GRAPH[part][codes], widest, 0.0) for part, widest in of_parts.items()]
            outside = [np.where(IN_GRAPH[part][codes], 0.0, widest) for part, widest in of_parts.items()]
            gradients = kept_gradients(codes, layer) * self.operations[kind].input_bytes
            rows.append((self._most(inside), self._most(outside), gradients + np.zeros(self.num_keys)))
        inside_rows, outside_rows, gradient_rows = (np.array(part) for part in zip(*rows, strict=True))
        return inside_rows, outside_rows, gradient_rows

    @cached_property
    def graph_output(self) -> Array:
        """[kind, key] bytes per micro-batch that CUDA graphs keep of what layers put out; part of `saved`."""
        return np.array([ops.graph_output + np.zeros(self.num_keys) for ops in self.operations])

    @cached_property
    def made_gradient(self) -> Array:
        """[kind of layer, key] bytes of the largest gradient of a layer's weight."""
        return self._largest(self._made)

    @cached_property
    def largest_weight(self) -> Array:
        """[kind of layer, key] bytes of the largest weight of a layer."""
        w = activation_bytes(self.problem.workload)
        return self._largest(lambda gemm: w * gemm.count * gemm.n * gemm.k)

    def _largest(self, bytes_of: Callable[[Gemm], Array]) -> Array:
        """[kind of layer, key] the most bytes [key] of a product of a layer."""
        layers = self.operations[: self.problem.num_kinds]
        return np.array([self._most(bytes_of(gemm) for gemm in ops.gemms) for ops in layers])

    def _most(self, rows: Iterable[Array]) -> Array:
        """[key] the largest of rows that broadcast to it; 0 where there are none, as of a layer without products."""
        none = np.zeros(self.num_keys)
        return np.asarray(np.max([none, *(none + row for row in rows)], axis=0))

    def _made(self, gemm: Gemm) -> Array:
        """[key] bytes of the gradient of a weight as the product makes it, before it is added to the sum; 0 where the
        product adds to the sum by itself."""
        if self.problem.stack.fused_accumulation or not gemm.has_wgrad:
            return np.zeros(self.num_keys)
        return np.asarray(activation_bytes(self.problem.workload) * gemm.count * gemm.n * gemm.k)

    @cached_property
    def parameters(self) -> dict[str, Array]:
        """[kind, key] parameters per rank before ZeRO, and the bytes of their weights (rank_parameters.py)."""
        return of_rank(self.problem, self.keys)

    @cached_property
    def gathered_again(self) -> Array:
        """[kind] share of the weights that a second pass needs: those of layers through which gradients flow. FSDP2
        prefetches the module that ran before (FSDPParamGroup._backward_prefetch of torch), and so one without."""
        problem, layers = self.problem, self.problem.pattern
        needs = np.array([ops.trains != "frozen" or not problem.stack.differentiates for ops in self.operations], float)
        if problem.stack.is_fsdp2:
            first = next((i for i, kind in enumerate(layers) if needs[kind]), len(layers))
            before = layers[first - 1] if first else problem.num_kinds
            needs[before] = max(needs[before], 1.0 / max(layers.count(before), 1))
        return needs

    @cached_property
    def gathered_bytes(self) -> Array:
        """[kind, key] bytes of all weights as they are gathered."""
        return np.asarray(self.parameters["dense_gathered_bytes"] + self.parameters["experts_gathered_bytes"])


def build(problem: Problem, keys: Mapping[str, NDArray[np.int64]]) -> Tables:
    """The tables for every shard key (columns KEY_FIELDS)."""
    keys = {name: np.asarray(keys[name], dtype=np.int64) for name in KEY_FIELDS}
    return Tables(problem, keys, operations(problem, keys))


def operations(problem: Problem, keys: Mapping[str, NDArray[np.int64]]) -> tuple[LayerOperations, ...]:
    """Operations of every kind, for every shard key."""
    shard = Shard.of(keys, problem.model, problem.workload)
    builder = Builder(problem.model, problem.workload, problem.stack, shard, problem.any_fp8_layout)
    ops = [decoder_layer(builder, problem.model.kinds[v.kind], v.trains) for v in problem.variants]
    edge = problem.trains_head
    ops += [embedding(builder, problem.trains_beside_embedding), head(builder, edge)]
    ops.append(mtp(builder, edge) if problem.model.mtp_layers else LayerOperations(name="mtp", trains=edge))
    ops.append(LayerOperations(name="embedding copy", trains=edge))
    launched, gathers = launched_share(builder.shard.graphs), builder.shard.sp > 0
    first, index = group_rows(keys[name] for name in KEY_FIELDS if name not in KEY_SWITCHES)
    alike = (first, index) if len(first) < len(index) else None
    return tuple(replace(kind, kernels=kind.kernels * launched, sequence_parallel=gathers, alike=alike) for kind in ops)


def index_keys(columns: Mapping[str, NDArray[np.int64]]) -> tuple[dict[str, NDArray[np.int64]], NDArray[np.int64]]:
    """[key] columns of the distinct shard keys of a batch, and [n] the index of each row's key."""
    rows = {name: np.asarray(columns[name], dtype=np.int64) for name in KEY_FIELDS}
    first, index = group_rows(rows.values())
    return {name: column[first] for name, column in rows.items()}, index
