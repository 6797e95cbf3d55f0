"""A single rank for timing: its group, its context, and chunks with allocated weights."""

from __future__ import annotations

from dataclasses import replace

import torch

from ...cost_models.specs.model import ModelSpec
from ...planner.document.candidate import Chunk
from ..model.block import Context, Numerics
from ..model.decoder import DecoderChunk
from ..model.dispatch import ExpertGroup
from ..model.initial_weights import materialise
from ..parallel.comm import Group
from ..parallel.context_parallel import ContextParallel
from ..parallel.gatherer import Gatherer
from ..parallel.recompute import Recompute
from ..parallel.sharding import Groups, Unit
from ..status import Status
from ..trainer import DTYPES


def single_group() -> Group:
    """The group of one rank, along any axis."""
    return Group("world", [0], 0, None, Status())


def single_context(dtype: torch.dtype, device: torch.device, numerics: Numerics | None = None) -> Context:
    """The context that its blocks share."""
    group = single_group()
    experts = ExpertGroup(group, group)
    return Context(group, experts, dtype, device, numerics or Numerics(), fused=device.type == "cuda")


def build_chunk(
    spec: ModelSpec, part: Chunk, seq_len: int, dtype: str, device: torch.device, recompute: Recompute | None = None,
    cp: ContextParallel | None = None, experts: ExpertGroup | None = None,
) -> DecoderChunk:  # fmt: skip
    """A chunk with the weights and gradient sums of a rank."""
    plain = single_context(DTYPES[dtype], device, Numerics.of(spec))
    context = replace(plain, recompute=recompute or plain.recompute, cp=cp, experts=experts or plain.experts)
    chunk = DecoderChunk(context, spec, part, seq_len)
    materialise(chunk, 0)
    chunk.run = Gatherer({module: [_unit(module, device)] for _, module in chunk.parts()})
    return chunk


def _unit(part: torch.nn.Module, device: torch.device) -> Unit:
    group = single_group()
    return Unit("", list(part.parameters()), Groups(group, group, None, None, 1), 0, device, lambda: None)


def free_memory(chunk: DecoderChunk) -> None:
    """Frees weights and gradients (half a gigabyte for many experts), which hooks of autograd keep reachable."""
    gatherer = chunk.run
    parts = gatherer.units_of.values() if isinstance(gatherer, Gatherer) else ()
    units = [unit for part in parts for unit in part]
    resident = [parameter.grad for parameter in chunk.parameters()] + [unit.flat for unit in units]
    for tensor in (*resident, *(unit.gradient for unit in units if isinstance(unit, Unit))):
        if tensor is not None:
            tensor.untyped_storage().resize_(0)
