"""The run that every layout must equal: one process, the whole model, no wrapper around it, torch's own optimizer.

It shares the blocks of `model` with the parallel run (tests compare those with Hugging Face's models) and nothing else.
An expert's capacity counts the tokens of a rank's micro-batch: so that the same ones are dropped, experts see here one
rank's part of the sequences after the other.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from ..cost_models.layouts import CP_ALGORITHMS
from ..planner.document.candidate import Chunk
from .data import open_source
from .job import Job
from .model.block import Context, Numerics
from .model.decoder import DecoderChunk
from .model.dispatch import ExpertGroup
from .model.experts import Experts
from .model.initial_weights import materialise
from .parallel.comm import Group
from .parallel.context_parallel import ContextParallel
from .settings import Settings, prepare
from .status import Status
from .trainer import DTYPES, Step, build_optimizer, clip_


def whole_model(job: Job) -> DecoderChunk:
    """The model on one CPU process."""
    alone = Group("world", [0], 0, None, Status())
    context = Context(alone, ExpertGroup(alone, alone), DTYPES[job.dtype], torch.device("cpu"),
                      Numerics.of(job.model), adapters=job.adapters)  # fmt: skip
    everything = Chunk(stage=0, chunk=0, layers=(0, job.model.num_layers - 1), embedding=True, head=True, gpu="",
                       recompute_layers=0)  # fmt: skip
    model = DecoderChunk(context, job.model, everything, job.seq_len)
    materialise(model, job.seed)
    if job.model.capacity_factor is not None:
        places = _places(job)
        for block in [module for module in model.modules() if isinstance(module, Experts)]:
            block.forward = _part_by_part(block.forward, places)  # type: ignore[method-assign, assignment]
    return model


def _places(job: Job) -> list[Tensor]:
    """Where the tokens of each rank that shares a micro-batch stand in a sequence: cut over cp, then over tp."""
    layout, ranks = job.layout, range(job.layout.cp)
    shares = [torch.arange(job.seq_len)]
    if layout.cp > 1:
        groups = [Group("cp", ranks, rank, None, Status()) for rank in ranks]
        algorithm = CP_ALGORITHMS[layout.cp_algorithm]
        shares = [ContextParallel(group, algorithm).positions(job.seq_len) for group in groups]
    return [part for share in shares for part in share.chunk(layout.tp)]


def _part_by_part(function: Callable[[Tensor], Tensor], places: Sequence[Tensor]) -> Callable[[Tensor], Tensor]:
    """`function` of the tokens of each place by themselves: [b, s, h] -> [b, s, h]."""
    home = torch.cat(list(places)).argsort()
    return lambda x: torch.cat([function(x[:, positions]) for positions in places], 1)[:, home]


def train(job: Job) -> list[Step]:
    """Losses and gradient norms of all steps, on one core and without a process group."""
    model = whole_model(job)
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = build_optimizer(job, parameters)
    further = 1 + job.model.mtp_layers
    source = open_source(job.data, job.model.vocab, job.seq_len, job.global_batch, job.seed, further)
    steps = []
    for step in range(job.steps):
        tokens = source.batch(step)
        optimizer.zero_grad()
        total = 0.0
        for rows in torch.split(tokens, job.layout.micro_batch):
            shifted = [rows[:, first : first + job.seq_len] for first in range(1 + further)]
            loss = model(*shifted) / job.tokens_per_step
            loss.backward()
            total += float(loss.detach())
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        norm = float(torch.stack([gradient.double().square().sum() for gradient in gradients]).sum().sqrt())
        clip_(gradients, norm, job.clip)
        optimizer.step()
        steps.append(Step(total, norm))
    return steps


def main(argv: Sequence[str]) -> int:
    """Prints one JSON document: losses and gradient norms of the steps."""
    torch.set_num_threads(1)
    job, _ = prepare(Settings.parse(argv))
    steps = train(job)
    sys.stdout.write(json.dumps({"steps": [[step.loss, step.gradient_norm] for step in steps]}) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
