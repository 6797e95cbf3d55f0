"""One rank of a run: builds its part of the model and takes training steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn

from .data import Source, counted_targets, open_evaluated, open_source
from .job import Job
from .micro_batches import MicroBatches
from .model.block import ParamShard, named_splits
from .model.decoder import DecoderChunk
from .model.images import SequenceImages
from .model.initial_weights import InitParam, init_param, same_weight
from .model.two_stacks import DECODER_BIAS, ENCODER_BIAS, chunk_type
from .optimizer import build_optimizer, finite
from .pairs import shape_of
from .parallel import host
from .parallel.gatherer import Gatherer
from .parallel.layerwise import Parts
from .parallel.mesh import Mesh
from .parallel.pipeline import Batch, Pipeline
from .parallel.reductions import Reductions
from .parallel.resharding import Resharding
from .parallel.schedules import actions
from .parallel.sharding import Groups, Unit, Weights
from .parallel.strategies import EMBEDDING, HEAD, is_layer
from .techniques.registry import exchange_of
from .weight_decay import decay_, decayed_slices

DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32, "fp64": torch.float64}
Named = list[tuple[str, nn.Parameter, ParamShard]]  # parameters by their full names


@dataclass(frozen=True)
class Step:
    """The result of a step."""

    loss: float  # mean per token, nats
    gradient_norm: float  # before clipping
    stop: bool = False  # whether a rank was signalled to end after this step


def images_of(job: Job) -> SequenceImages | None:
    """The images of the job's sequences, or None."""
    if job.images is None or job.model.tower is None:
        return None
    return SequenceImages(job.model.tower, job.images, job.seq_len, job.freezes_tower)


class Trainer:
    """Builds chunks, ZeRO units, optimizer and pipeline of this rank. All ranks must construct it at the same time."""

    kind_of = staticmethod(chunk_type)  # model -> class of its chunks

    def __init__(
        self, job: Job, mesh: Mesh, device: torch.device, source: Source | None = None, fused: bool | None = None,
        init_param: InitParam = init_param,
    ) -> None:  # fmt: skip
        job.check_states()
        self.job, self.mesh, self.device, self.init_param = job, mesh, device, init_param
        model, ahead, pairs, asked = job.model, 1 + job.model.mtp_layers, shape_of(job), job.evaluation
        self.source = source or open_source(job.data, model.vocab, job.row_len, job.global_batch, job.seed, ahead,
                                            shuffle=job.shuffle, pairs=pairs)  # fmt: skip
        self.evaluated = None if asked is None else open_evaluated(
            asked.data, model.vocab, job.seq_len, job.global_batch, job.seed, ahead, pairs, asked.batches)  # fmt: skip
        fused = device.type == "cuda" if fused is None else fused
        self.parts = Parts(job, mesh, device, DTYPES[job.dtype], fused=fused)
        self.chunks: list[DecoderChunk] = []
        arrivals: dict[int, Resharding] = {}
        for layers in (chunk for chunk in job.chunks if chunk.stage == mesh.coords.stage):
            embedding = self.chunks[0].embedding if self.chunks else None
            chunk = self.kind_of(model)(self.parts.context(EMBEDDING), model, layers, job.seq_len, embedding,
                                        self.parts.context, self.seen, job.source_len)  # fmt: skip
            for name, buffer in chunk.named_buffers():
                self.init_param(buffer, name, ParamShard(tuple(buffer.shape), start=0.0), job.seed, tied=False)
            ways = self.parts.reshardings(layers)
            if (first := next(iter(job.parts_of(layers)), None)) in ways:
                arrivals[len(self.chunks)] = ways.pop(first)
            chunk.moves.update(ways)
            if chunk.head is not None:
                chunk.head.ignores = job.end_token is not None or self.seen is not None
            self.chunks.append(chunk)
        self.contents: list[tuple[Unit, Named]] = []
        self.frozen, self.reductions = list[Weights](), Reductions()
        for chunk in self.chunks:
            chunk.run = Gatherer(self._shard(chunk), chunk.layers.values())
        if self.parts.offload is not None:
            self.parts.offload.stays(unit.flat for unit in (*self.units, *self.frozen))
        self.optimizer = build_optimizer(job, [unit.master for unit in self.units])
        self.decayed = [(unit.master, self._decayed(unit, named)) for unit, named in self.contents]
        self.pipeline = self._pipeline(arrivals)
        self.exchange = exchange_of(self)

    def _pipeline(self, arrivals: Mapping[int, Resharding]) -> Pipeline:
        job, passes = self.job, actions(self.job.order, self.mesh.coords.stage)
        return Pipeline(self.mesh, self.chunks, job.devices, passes, job.num_micro_batches, self.parts.shapes(),
                        self._targets_per_step, arrivals, self.reductions)  # fmt: skip

    @cached_property
    def seen(self) -> SequenceImages | None:
        """The images of sequences."""
        return images_of(self.job)

    @property
    def _targets_per_step(self) -> int:
        return self.job.tokens_per_step if self.seen is None else self.job.global_batch * self.seen.num_targets

    def _decayed(self, unit: Unit, named: Named) -> list[slice]:
        """Slices of this rank's part of a unit whose parameters decay."""
        tied = self.job.model.tied_embeddings
        parameters = [(same_weight(name, tied=tied), len(split.shape), parameter.numel())
                      for name, parameter, split in named]  # fmt: skip
        return decayed_slices(parameters, unit.first, unit.part, self.job.no_decay)

    def _shard(self, chunk: DecoderChunk) -> dict[nn.Module, list[Weights]]:
        """Units of every part of a chunk. Parameters on two stages form separate units, so that their shards match."""
        units_of: dict[nn.Module, list[Weights]] = {}
        for name, part in chunk.parts():
            kinds: dict[tuple[bool, str], Named] = {}
            for full_name, parameter, split in named_splits(part, name):
                kind = parameter.requires_grad, self._kind(name, full_name, split)
                kinds.setdefault(kind, []).append((full_name, parameter, split))
            units_of[part] = [(self._unit if trains else self._frozen)(name, kind, named)
                           for (trains, kind), named in kinds.items()]  # fmt: skip
        heads = [] if chunk.head is None else units_of[chunk.head]
        tables = [unit for unit in (*self.units, *self.frozen) if unit.is_token_table]
        if self.job.model.tied_embeddings:
            heads += tables
        for module in chunk.predictions:
            units_of[module] += heads
        if chunk.table is not None:  # perhaps in another chunk
            units_of.setdefault(chunk.table, tables)
        return units_of

    @property
    def units(self) -> list[Unit]:
        return [unit for unit, _ in self.contents]

    def _unit(self, part: str, kind: str, named: Named) -> Unit:
        zero = self.job.sharding(self.job.strategy(part))
        if self.job.lora is not None:
            zero = min(zero, 2)  # adapters are small and stay whole on every rank, as in the planner
        # A gradient of head or embedding would be too large to stay beside that of a layer while it is scattered. Tied
        # weights are reduced with another stage, or are complete with the embedding only.
        beside = self.reductions if is_layer(part) or (zero < 2 and kind != "tied") else None
        unit = Unit(f"{part} {kind}", [parameter for _, parameter, _ in named], self._groups(part, kind), zero,
                    self.device, self._fill(named), states_on_host=self.job.offloads_states, reductions=beside,
                    num_passes=self.job.num_micro_batches)  # fmt: skip
        self.contents.append((unit, named))
        return unit

    def _frozen(self, part: str, kind: str, named: Named) -> Weights:
        zero = self.job.sharding(self.job.strategy(part))
        unit = Weights(f"{part} {kind}", [parameter for _, parameter, _ in named], self._groups(part, kind), zero,
                       self.device, self._fill(named))  # fmt: skip
        self.frozen.append(unit)
        return unit

    def _fill(self, named: Named) -> Callable[[], None]:
        def fill() -> None:
            for name, parameter, split in named:
                self.init_param(parameter, name, split, self.job.seed, tied=self.job.model.tied_embeddings)

        return fill

    def _kind(self, part: str, name: str, split: ParamShard) -> str:
        model, mesh = self.job.model, self.parts.mesh(part)
        shared = model.tied_embeddings or model.mtp_layers > 0 or model.encoder is not None
        if (name == "embedding.tokens" and shared) or (name == "head.projection" and model.tied_embeddings) or (
            part in (ENCODER_BIAS, DECODER_BIAS)
        ):  # fmt: skip
            return "tied"
        if split.expert and max(mesh[axis].size for axis in ("tp", "ep", "etp")) > 1:
            return "expert"
        if mesh["tp"].size == 1:
            return "split"
        if name.startswith("embedding.tower.") and not split.firsts:
            return "copied"
        return "split" if split.firsts else "shared"

    def _groups(self, part: str, kind: str) -> Groups:
        prefix, mesh = "expert_" if kind == "expert" else "", self.parts.mesh(part)
        shard, replicate = mesh[f"{prefix}shard"], mesh[f"{prefix}replicate"]
        # The gradients of copies of a tower, which all ranks run on all images, are whole on each.
        partial = mesh["tp"] if kind == "shared" else None
        tied = self.parts.tied(part) if kind == "tied" else None
        copies = replicate.size * (mesh["tp"].size if kind in ("shared", "copied") else 1) * (tied.size if tied else 1)
        return Groups(shard, replicate, partial, tied, copies)

    def step(self, index: int, *, stop: bool = False) -> Step:
        """Trains on the batch of step `index` (0, 1, ...). stop: this rank was signalled to end; all ranks get this."""
        status = self.mesh["world"].status
        status.step = index
        for group in self.optimizer.param_groups:
            group["lr"] = self.job.rate(index)
        self.exchange.begin(index)
        loss = self.exchange.loss()
        norm = self.update()
        # Ranks must agree on the last step, because a rank that stopped alone would leave the others in a collective.
        # The signal travels with the loss, because one more message per step would cost time in every run.
        loss_and_stop = torch.stack([loss, torch.full_like(loss, float(stop))])
        # The tp ranks of a last stage all have the same loss, and only last stages have one.
        total, stops = self.exchange.total(loss_and_stop).tolist()
        return Step(total / self.parts.mesh(HEAD)["tp"].size, norm, stops > 0)

    def evaluate(self) -> tuple[float, int]:
        """Mean loss per token, nats, on the data of the evaluation, and the number of its batches."""
        source, asked = self.evaluated, self.job.evaluation
        if source is None or asked is None:
            raise RuntimeError("the job has no evaluation")
        number = min(asked.batches, source.num_batches)
        losses = [self.pipeline.evaluate(self._divided(source.batch(index))) for index in range(number)]
        total = self.mesh["world"].all_reduce(torch.stack(losses).sum()[None])
        return float(total) / self.parts.mesh(HEAD)["tp"].size / number, number

    def update(self) -> float:
        """Reduces and clips gradients after the last backward pass and updates weights. Returns the gradient norm."""
        status = self.mesh["world"].status
        status.set("reducing gradients")
        with torch.no_grad():
            parts = [unit.reduce() for unit in self.units]
            norm = finite(self.exchange.clip(parts), status.step)
        status.set("updating weights")
        for unit in self.units:
            unit.hand_over()
        with host.memory(self.job.offloads_states), host.threads(self.job.offloads_states):
            if self.job.no_decay:  # the optimizer decays none then
                with torch.no_grad():
                    decay_(self.decayed, 1 - self.optimizer.param_groups[0]["lr"] * self.job.weight_decay)
            self.exchange.optimize()
            self.exchange.exchange()
        for unit in self.units:
            unit.updated()
        return norm

    def settle(self) -> None:
        """Waits for messages of the last step that run beside the next one."""
        for unit in self.units:
            unit.arrived()
        self.exchange.settle()

    def batch(self, index: int) -> Batch:
        """This rank's micro-batches of step `index`."""
        return self._divided(self.source.batch(index))

    def _divided(self, batch: Tensor) -> Batch:
        """This rank's micro-batches of a global batch [sequences, seq + ahead]."""
        self._count(batch)
        if self.job.strategies is None:
            return self._part(batch, self.mesh.coords.dp)
        # All ranks of a stage have the same micro-batch at a time. Strategies only determine their share of it.
        whole = batch.view(self.job.num_micro_batches, -1, batch.shape[1])
        first, last = (self._share(self._rows(whole, part), part) for part in (EMBEDDING, HEAD))
        return lambda number: (first(number)[0], *last(number)[1:])

    def share(self, index: int, part: int) -> Batch:
        """The micro-batches of step `index` that the dp ranks `part` have."""
        batch = self.source.batch(index)
        self._count(batch)
        return self._part(batch, part)

    def _count(self, batch: Tensor) -> None:
        """The loss is the mean over the counted targets of the global batch."""
        if self.job.end_token is not None:
            self.pipeline.tokens_per_step = counted_targets(batch, self.job.seq_len, self.job.end_token)

    def _part(self, batch: Tensor, part: int) -> Batch:
        rows = self.job.global_batch // self.job.layout.dp  # a dry run has those of one rank alone
        return self._share(batch[part * rows : (part + 1) * rows], EMBEDDING)

    def _rows(self, whole: Tensor, part: str) -> Tensor:
        """This rank's share of [micro-batches, sequences, seq + 1] under the strategy of a part."""
        size, first = self.job.strategy(part).micro_batch, self.parts.mesh(part).coords.dp
        return whole[:, first * size : (first + 1) * size].flatten(0, 1)

    def _share(self, tokens: Tensor, part: str) -> MicroBatches:
        cp = self.parts.context(part).cp
        positions = None if cp is None else cp.positions(self.job.seq_len).to(self.device)
        return MicroBatches(tokens.to(self.device), self.job.strategy(part).micro_batch, positions,
                             1 + self.job.model.mtp_layers, self.job.end_token,
                             None if self.seen is None else self.seen.without_target.to(self.device),
                             self.job.source_len)  # fmt: skip

    def tensors(self) -> Iterator[Tensor]:
        """All tensors on the device between steps."""
        for unit in (*self.units, *self.frozen):
            yield from (unit.flat, unit.weights)
        yield from (unit.gradient for unit in self.units)
        yield from (buffer for chunk in self.chunks for buffer in chunk.buffers())
        if self.job.offloads_states:
            return
        yield from (unit.master for unit in self.units)
        yield from (state.flat for state in self.exchange.states() if not state.on_host)
        for state in self.optimizer.state.values():  # after a resume
            yield from (value for value in state.values() if isinstance(value, Tensor))
