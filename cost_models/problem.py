"""The subject of pricing: model, workload, software and number of GPUs, without rates."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from .arrays import Array
from .layouts import Layout, Layouts
from .quantities import memory
from .quantities.edge_operations import embedding, head, mtp
from .quantities.even_stages import (
    Edges,
    Stacks,
    Tower,
    even_sizes,
    groups_of,
    joined_kinds,
    lookup_layers,
    most_chunks,
)
from .quantities.layer_operations import decoder_layer
from .quantities.matrices import edge_matrices, layer_matrices
from .quantities.matrix import Matrix
from .quantities.memory import KindParameters, StateBytes
from .quantities.operation_builder import Builder
from .quantities.operations import LayerOperations, Trains
from .quantities.parallel_streams import with_aggregation, with_prefixes
from .quantities.shards import Shard
from .specs.model import ModelSpec
from .specs.stack import StackSpec
from .specs.variants import with_capacity
from .specs.workload import Workload

FORWARD_PASSES = 2  # without gradients: weights are moved along a random direction, and against it


@dataclass(frozen=True, slots=True)
class Variant:
    """A layer kind and how much of it trains; layers of one kind differ when only the last n train, and in modules
    that share weights."""

    kind: int  # index into ModelSpec.kinds
    trains: Trains  # of its weights
    repeats: bool = False  # whether its weights are those of another prediction module


@dataclass(frozen=True)
class Problem:
    """The subject of pricing, without rates."""

    model: ModelSpec
    workload: Workload
    stack: StackSpec
    num_gpus: int  # of the whole cluster
    gpus_per_node: int  # that groups of neighbours fill
    on_host: bool = False  # the devices are CPU ranks, whose memory is that of the host
    stages: tuple[int, ...] | None = None  # [chunk] layers in the order of the model; None: as even as possible
    domain: int = 0  # GPUs that the fastest link joins, 0: not known
    any_fp8_layout: bool = False  # products take fp8 operands as they lie, so that no transposes are kept (Blackwell)

    @cached_property
    def variants(self) -> tuple[Variant, ...]:
        return tuple(dict.fromkeys((*self._variant_of_layer, *self._variants_of_mtp)))

    @cached_property
    def pattern(self) -> tuple[int, ...]:
        """Index into `variants` for every layer."""
        index = {variant: i for i, variant in enumerate(self.variants)}
        return tuple(index[variant] for variant in self._variant_of_layer)

    @cached_property
    def mtp(self) -> tuple[int, ...]:
        """Index into `variants` for every layer of the prediction modules."""
        index = {variant: i for i, variant in enumerate(self.variants)}
        return tuple(index[variant] for variant in self._variants_of_mtp)

    @cached_property
    def _variants_of_mtp(self) -> tuple[Variant, ...]:
        """They train as the last layer does."""
        trains, shared = self._variant_of_layer[-1].trains, self.model.mtp_shared
        kinds = self.model.mtp_pattern or self.model.pattern[-1:]
        return tuple(Variant(kind, trains, repeats=shared and module > 0)
                     for module in range(self.model.mtp_layers) for kind in kinds)  # fmt: skip

    @cached_property
    def _variant_of_layer(self) -> tuple[Variant, ...]:
        if not self.stack.differentiates:
            return tuple(Variant(kind, "frozen") for kind in self.model.pattern)
        if self.workload.freeze_language:
            return tuple(Variant(kind, "passes") for kind in self.model.pattern)
        last = self.workload.trains_layers
        before: Trains = "lora" if self.workload.lora else "frozen"
        first_trained = self.model.num_layers - last if last is not None else 0
        if self.workload.lora and last is None:
            first_trained = self.model.num_layers
        modes: list[Trains] = ["all" if i >= first_trained else before for i in range(self.model.num_layers)]
        return tuple(Variant(kind, mode) for kind, mode in zip(self.model.pattern, modes, strict=True))

    @property
    def trains_everything(self) -> bool:
        """Whether all of the language model trains."""
        return self.trains_projector and not self.workload.freeze_language

    @property
    def trains_head(self) -> Trains:
        """How the head and what stands beside it train."""
        if not self.stack.differentiates:
            return "frozen"
        return "all" if self.trains_everything else "passes"

    @property
    def trains_projector(self) -> bool:
        """Whether the part of a vision tower that projects its output trains."""
        return self.workload.lora is None and self.workload.trains_layers is None and self.stack.differentiates

    @property
    def trains_tower(self) -> bool:
        """Whether the layers of a vision tower train."""
        return self.trains_projector and not self.workload.freeze_tower

    @cached_property
    def parameters(self) -> tuple[KindParameters, ...]:
        """Per variant, then the edges in the order of stages.py."""
        layers = tuple(
            memory.NO_PARAMETERS if v.repeats
            else self._parameters_of(v)
            for v in self.variants
        )
        embedding, head, *beside = memory.edge_parameters(
            self.model, self.trains_everything, self.tower_parameters,
            splits_projection=self.stack.splits_mtp_projection)  # fmt: skip
        return (*layers, embedding, with_aggregation(head, self.model.hidden, self.stack), *beside)

    def _parameters_of(self, variant: Variant) -> KindParameters:
        kind = self.model.kinds[variant.kind]
        return with_prefixes(memory.layer_parameters(self.model, kind, variant.trains, self.workload), kind, self.stack)

    @cached_property
    def tower_parameters(self) -> KindParameters | None:
        """Those of the vision tower, None without one."""
        tower, freezes = self.model.tower, self.workload.freeze_tower
        return None if tower is None else memory.tower_parameters(tower, self.trains_projector, freezes=freezes)

    @cached_property
    def matrices(self) -> dict[Matrix, Array]:
        """Parameters that Muon's ranks have whole -> [kind] how many there are, in the order of `parameters`."""
        found: dict[Matrix, Array] = {}
        layers = [layer_matrices(self.model, self.model.kinds[v.kind]) if v.trains == "all" and not v.repeats
                  else ()
                  for v in self.variants]  # fmt: skip
        ends = edge_matrices(self.model, splits_projection=self.stack.splits_mtp_projection)
        edges = ends if self.trains_everything else ()
        for kind, matrices in enumerate((*layers, *edges)):
            for matrix, number in matrices:
                found.setdefault(matrix, np.zeros(len(self.parameters)))[kind] += self.model.towers * number
        return found

    @cached_property
    def sequence_operations(self) -> tuple[LayerOperations, ...]:
        """Operations of one sequence on one rank, per kind; experts are evenly loaded and drop nothing."""
        stack = replace(self.stack, moe_imbalance=1.0)
        model = with_capacity(self.model, None)
        builder = Builder(model, self.workload, stack, Shard.of(Layouts.of([Layout()]), self.model, self.workload))
        edge = self.trains_head
        layers = [decoder_layer(builder, model.kinds[v.kind], v.trains) for v in self.variants]
        looked_up = embedding(builder, self.trains_beside_embedding)
        return (*layers, looked_up, head(builder, edge), mtp(builder, edge))

    @property
    def trains_beside_embedding(self) -> Trains:
        """How the embedding trains, with a tower beside it: a table that does not train takes no gradient."""
        return "all" if self.trains_projector else "frozen"

    @property
    def forward_passes(self) -> int:
        """Forward passes of each sequence."""
        return self.workload.forward_passes * (1 if self.stack.differentiates else FORWARD_PASSES)

    @cached_property
    def flops(self) -> Array:
        """[2, kind] forward and backward FLOPs of one sequence, of layers and edges in the order of stages.py. A copy
        of the embedding computes nothing."""
        passes = self.forward_passes
        per_kind = [(passes * ops.forward_flops(), ops.backward_flops()) for ops in self.sequence_operations]
        return np.array([*per_kind, (0.0, 0.0)]).T

    @cached_property
    def state_bytes(self) -> StateBytes:
        return StateBytes.of(self.workload, self.stack, any_fp8_layout=self.any_fp8_layout)

    def chunk_sizes(self, num_chunks: int) -> tuple[int, ...]:
        """Layers of each chunk of a pipeline: those given, where there are as many, else as even as possible."""
        if self.stages is not None and len(self.stages) == num_chunks:
            return self.stages
        return even_sizes(self.pattern, self.edges, num_chunks)

    @cached_property
    def most_chunks(self) -> int:
        """Chunks at most of an even split."""
        if self.model.encoder is not None:
            return self.model.num_layers
        held = 0 if self.edges.tower is None else self.edges.tower.least
        return most_chunks(len(groups_of(self.pattern, self.edges.joined)) - held)

    @property
    def num_kinds(self) -> int:
        return len(self.variants)

    @cached_property
    def edges(self) -> Edges:
        joined = joined_kinds(self.model)
        stay = tuple(i for i, variant in enumerate(self.variants) if variant.kind in joined)
        tower, lookups = self._tower_of_stages, lookup_layers(self.model)
        tied = self.model.tied_embeddings
        return Edges(self.model.mtp_layers, self.mtp, tied, stay, tower, lookups, self._stacks)

    @property
    def _stacks(self) -> Stacks | None:
        """The stacks of an encoder and its decoder, weighted by FLOPs of both passes."""
        encoder = self.model.encoder
        if encoder is None:
            return None
        by_kind, last = self.flops.sum(axis=0), encoder.layers - 1
        of_decoder, of_head = by_kind[self.pattern[-1]], by_kind[self.num_kinds + 1]
        return Stacks(encoder.layers, float(by_kind[self.pattern[last]] / of_decoder), float(of_head / of_decoder))

    @property
    def _tower_of_stages(self) -> Tower | None:
        """The vision tower, weighted by FLOPs of both passes."""
        tower = self.model.tower
        if tower is None:
            return None
        by_kind = self.flops.sum(axis=0)
        layer = float(np.mean(by_kind[list(self.pattern)]))
        return Tower(round(float(by_kind[self.num_kinds]) / layer), tower.deepstack)
