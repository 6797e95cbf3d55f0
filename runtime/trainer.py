"""One rank of a run: builds its part of the model and takes training steps."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..cost_models.layouts import CP_ALGORITHMS
from .blocks import Context, Split
from .context_parallel import ContextParallel
from .data import Source, open_source
from .job import Job
from .mesh import Mesh
from .model import DecoderChunk, Draw, draw, named_splits
from .pipeline import Pipeline
from .recompute import Recompute
from .schedules import actions
from .sharding import Gatherer, Groups, Unit, gradient_norm

DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32, "fp64": torch.float64}
MOMENTUM = 0.9
Named = list[tuple[str, nn.Parameter, Split]]  # parameters by their full names


@dataclass(frozen=True)
class Step:
    """What a step found: mean loss per token in nats, norm of the gradient before clipping."""

    loss: float
    gradient_norm: float


class Trainer:
    """Builds chunks, ZeRO units, optimizer and pipeline of this rank. Every rank must build it at the same time."""

    def __init__(
        self, job: Job, mesh: Mesh, device: torch.device, source: Source | None = None, fused: bool | None = None,
        draw: Draw = draw,
    ) -> None:  # fmt: skip
        job.check_states()
        self.job, self.mesh, self.device, self.draw = job, mesh, device, draw
        layout = job.layout
        model = job.model
        self.source = source or open_source(job.data, model.vocab, job.seq_len, job.global_batch, job.seed)
        fused = device.type == "cuda" if fused is None else fused
        algorithm = CP_ALGORITHMS[layout.cp_algorithm]
        cp = ContextParallel(mesh["cp"], algorithm, fused) if layout.cp > 1 else None
        context = Context(mesh["tp"], mesh["ep"], DTYPES[job.dtype], device, model.norm_epsilon, model.activation,
                          Recompute(job.recompute_modules), fused, cp)  # fmt: skip
        self.positions = None if cp is None else cp.positions(job.seq_len).to(device)
        self.chunks: list[DecoderChunk] = []
        for layers in (chunk for chunk in job.chunks if chunk.stage == mesh.place.stage):
            embedding = self.chunks[0].embedding if self.chunks else None
            self.chunks.append(DecoderChunk(context, model, layers, job.seq_len, embedding))
        self.contents: list[tuple[Unit, Named]] = []
        for chunk in self.chunks:
            chunk.run = Gatherer(self._shard(chunk))
        self._norm = torch.zeros(1, dtype=torch.float64, device=device)
        self.optimizer = build_optimizer(job, [unit.master for unit in self.units], fused=fused)
        shape = (layout.micro_batch, job.seq_len // (layout.cp * layout.tp), model.hidden)
        self.pipeline = Pipeline(mesh, self.chunks, job.devices, actions(job.order, mesh.place.stage),
                                 job.num_micro_batches, shape, job.tokens_per_step)  # fmt: skip

    def _shard(self, chunk: DecoderChunk) -> dict[nn.Module, list[Unit]]:
        """Units of every part of a chunk; tied embeddings are their own, so that both stages' shards line up."""
        found: dict[nn.Module, list[Unit]] = {}
        for name, part in chunk.parts():
            kinds: dict[str, Named] = {}
            for each in named_splits(part, name):
                kinds.setdefault(self._kind(each[0], each[2]), []).append(each)
            found[part] = [self._unit(f"{name} {kind}", kind, named) for kind, named in kinds.items()]
            self.contents += zip(found[part], kinds.values(), strict=True)
        if chunk.head is not None and self.job.model.tied_embeddings:
            found[chunk.head] += [unit for unit in self.units if unit.name == "embedding tied"]
        return found

    @property
    def units(self) -> list[Unit]:
        return [unit for unit, _ in self.contents]

    def _unit(self, name: str, kind: str, named: Named) -> Unit:
        def fill() -> None:
            for each, parameter, split in named:
                self.draw(parameter, each, split, self.job.seed, tied=self.job.model.tied_embeddings)

        parameters = [parameter for _, parameter, _ in named]
        return Unit(name, parameters, self._groups(kind), self.job.sharding, self.device, fill)

    def _kind(self, name: str, split: Split) -> str:
        if self.job.model.tied_embeddings and name in ("embedding.tokens", "head.projection"):
            return "tied"
        if split.expert and max(self.mesh["tp"].size, self.mesh["ep"].size) > 1:
            return "expert"
        if self.mesh["tp"].size == 1:
            return "split"
        return "split" if split.dim is not None else "shared"

    def _groups(self, kind: str) -> Groups:
        prefix = "expert_" if kind == "expert" else ""
        shard, replicate = self.mesh[f"{prefix}shard"], self.mesh[f"{prefix}replicate"]
        partial = self.mesh["tp"] if kind == "shared" else None
        apart = self.job.devices[0] != self.job.devices[-1]
        tied = self.mesh["tied"] if kind == "tied" and apart else None
        copies = replicate.size * (partial.size if partial else 1) * (tied.size if tied else 1)
        return Groups(shard, replicate, partial, tied, copies)

    def step(self, index: int) -> Step:
        """Trains on the batch of step `index` (0, 1, ...)."""
        status = self.mesh["world"].status
        status.step = index
        loss = self.pipeline.run(self._micro_batches(index))
        norm = self.update()
        # The tp ranks of a last stage all have the same loss, and only last stages have one.
        self.mesh["world"].all_reduce(loss)
        return Step(float(loss) / self.mesh["tp"].size, norm)

    def update(self) -> float:
        """After the last backward pass: gradients over all ranks, clipped, and new weights. Returns their norm."""
        status = self.mesh["world"].status
        status.set("reducing gradients")
        with torch.no_grad():
            parts = [unit.reduce() for unit in self.units]
            norm = gradient_norm(self.units, parts, self.mesh["world"], self._norm)
            clip_(parts, norm, self.job.clip)
        status.set("updating weights")
        self.optimizer.step()
        for unit in self.units:
            unit.updated()
        return norm

    def _micro_batches(self, index: int) -> _MicroBatches:
        layout = self.job.layout
        batch = self.source.batch(index)
        per_rank = self.job.global_batch // layout.dp
        mine = batch[self.mesh.place.dp * per_rank : (self.mesh.place.dp + 1) * per_rank]
        return _MicroBatches(mine.to(self.device), layout.micro_batch, self.positions)

    def tensors(self) -> Iterator[Tensor]:
        """All that lives between steps."""
        for unit in self.units:
            yield from (unit.flat, unit.weights, unit.master, unit.gradient)
        for state in self.optimizer.state.values():  # after a resume
            yield from (value for value in state.values() if isinstance(value, Tensor))


@dataclass(frozen=True)
class _MicroBatches:
    """Inputs and targets [micro batch, seq] of the i-th micro-batch, out of tokens [sequences, seq + 1]; of a cp rank
    those at its positions."""

    tokens: Tensor
    size: int
    positions: Tensor | None = None

    def __call__(self, index: int) -> tuple[Tensor, Tensor]:
        rows = self.tokens[index * self.size : (index + 1) * self.size]
        if self.positions is not None:
            return rows[:, self.positions], rows[:, self.positions + 1]
        return rows[:, :-1], rows[:, 1:]


def build_optimizer(job: Job, parameters: Iterable[Tensor], *, fused: bool = False) -> torch.optim.Optimizer:
    """AdamW (0.9, 0.95, weight decay 0.1 on everything) or SGD with momentum 0.9; element-wise both, so that any slice
    of a parameter is updated as the whole is."""
    how: dict[str, Any] = {"lr": job.learning_rate, "foreach": False, "fused": fused}
    if job.optimizer == "sgd":
        return torch.optim.SGD(parameters, momentum=MOMENTUM, **how)
    return torch.optim.AdamW(parameters, betas=(0.9, 0.95), weight_decay=0.1, **how)


def clip_(gradients: Iterable[Tensor], norm: float, limit: float | None) -> None:
    """Scales gradients whose common norm is over `limit` down to it."""
    if limit is not None and norm > limit:
        for gradient in gradients:
            gradient.mul_(limit / norm)
