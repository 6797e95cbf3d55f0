"""The reference for every layout: one process, the whole model without wrappers, torch's own optimizer.

It shares only the blocks of `model` with the parallel run; tests compare those with transformers' models. Parts without
a counterpart in transformers are implemented here again: optimizer, clipping, capacity of experts, adapters, balancing
loss.
The capacity of an expert applies to the tokens of a rank's micro-batch. Experts therefore process one rank's part of
the sequences at a time, so that the same tokens are dropped.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from ..cost_models.layouts import CP_ALGORITHMS
from ..cost_models.specs.model import ModelSpec
from ..planner.document.candidate import Chunk
from .job import Job
from .model.adapters import Adapters, of_input, of_output
from .model.block import Block, Context, Numerics
from .model.decoder import DecoderChunk
from .model.dispatch import ExpertGroup
from .model.embedding import Embedding
from .model.experts import Experts
from .model.initial_weights import materialise
from .model.two_stacks import chunk_type
from .model.vision_tower import Tower
from .parallel.comm import Group
from .parallel.context_parallel import ContextParallel
from .preparation import prepare
from .reference_data import batches, num_targets, shifted_rows
from .rehearsal.run_states import RunStates
from .settings import Settings
from .status import Status
from .trainer import DTYPES, Step, images_of


def whole_model(job: Job) -> DecoderChunk:
    """The model in one CPU process."""
    alone = Group("world", [0], 0, None, Status())
    context = Context(alone, ExpertGroup(alone, alone), DTYPES[job.dtype], torch.device("cpu"),
                      Numerics.of(job.model), adapters=_adapters(job))  # fmt: skip
    everything = Chunk(stage=0, chunk=0, layers=(0, job.model.num_layers - 1), embedding=True, head=True, gpu="",
                       recompute_layers=0)  # fmt: skip
    model = chunk_type(job.model)(context, job.model, everything, job.seq_len, seen=images_of(job),
                                  source_len=job.source_len)  # fmt: skip
    materialise(model, job.seed)
    if context.adapters is not None:
        for adapted in [module for module in model.modules() if isinstance(module, Block)]:
            _adapt(adapted, context.adapters.scale)
    if job.model.capacity_factor is not None:
        places = _places(job)
        for block in [module for module in model.modules() if isinstance(module, Experts)]:
            _limit(block)
            block.forward = _part_by_part(block.forward, places)  # type: ignore[method-assign, assignment]
    return model


def _adapt(block: Block, scale: float) -> None:
    """A block with products W x + bias + scale B (A x), without B (A x) for products without an adapter."""

    def product(x: Tensor, name: str) -> Tensor:
        out = F.linear(x, block.tensor(name), block.maybe(f"{name}_bias"))
        if of_input(name) not in block.splits:
            return out
        return out + scale * F.linear(F.linear(x, block.tensor(of_input(name))), block.tensor(of_output(name)))

    block.columns = lambda x, *names: [product(x, name) for name in names]  # type: ignore[method-assign]
    block.row = product  # type: ignore[method-assign]


def _limit(block: Experts) -> None:
    """Experts that process every token, with weight 0 for tokens over their capacity."""
    spec, routed = block.spec, block._routed
    block.spec = replace(spec, capacity_factor=None)

    def within(tokens: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
        taken = _taken(weights.detach().float(), chosen, spec.experts, int(spec.capacity(len(tokens))))
        return routed(tokens, weights * taken, chosen)

    block._routed = within  # type: ignore[method-assign]


@dataclass
class _BalancingLoss:
    """The balancing loss of one block of experts, added to the loss of the model."""

    block: Experts  # the observed block
    model: ModelSpec  # holds the coefficient
    rows: int  # sequences per count of loads
    seen: list[tuple[Tensor, Tensor]] = field(default_factory=list)  # inputs and chosen experts of a micro-batch

    def __post_init__(self) -> None:
        routed = self.block._routed

        def seeing(tokens: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
            self.seen.append((tokens, chosen))
            return routed(tokens, weights, chosen)

        self.block._routed = seeing  # type: ignore[method-assign]

    def of_micro_batch(self, num_sequences: int) -> Tensor:
        """The loss times its tokens, so that the sum over all micro-batches covers the tokens of the step."""
        inputs, chosen = (torch.cat([part.unflatten(0, (num_sequences, -1)) for part in parts], 1)
                          for parts in zip(*self.seen, strict=True))  # fmt: skip
        self.seen.clear()
        spec, block, total = self.block.spec, self.block, inputs.new_zeros((), dtype=torch.float64)
        for rows, experts in zip(torch.split(inputs, self.rows), torch.split(chosen, self.rows), strict=True):
            tokens = rows.flatten(0, 1)
            logits = F.linear(tokens, block.tensor("router"), block.maybe("router_bias")).double()
            scores = logits.exp() if spec.router_scores == "softmax" else 1 / (1 + (-logits).exp())
            mean_share = (scores / scores.sum(1, keepdim=True)).mean(0)
            fraction = torch.stack([(experts == expert).double().mean() for expert in range(spec.experts)])
            total = total + len(tokens) * spec.experts * (fraction * mean_share).sum()
        return self.model.moe_aux_loss_coeff * total


def _balancing_losses(model: DecoderChunk, job: Job) -> list[_BalancingLoss]:
    """The balancing losses of all blocks of experts."""
    if not job.model.moe_aux_loss_coeff:
        return []
    losses = []
    for name, part in model.parts():
        rows = 1 if job.model.moe_aux_loss_per_sequence else job.strategy(name).micro_batch
        losses += [_BalancingLoss(block, job.model, rows) for block in part.modules() if isinstance(block, Experts)]
    return losses


def _taken(weights: Tensor, chosen: Tensor, experts: int, capacity: int) -> Tensor:
    """[n, k] whether an expert keeps a token: those with the largest weights, ties by position."""
    taken = torch.zeros_like(chosen, dtype=torch.bool)
    for expert in range(experts):
        rows, columns = (chosen == expert).nonzero(as_tuple=True)
        first = weights[rows, columns].argsort(descending=True, stable=True)[:capacity]
        taken[rows[first], columns[first]] = True
    return taken


def _places(job: Job) -> list[Tensor]:
    """Positions in a sequence for each rank that shares a micro-batch: split over cp, then over tp."""
    layout, ranks = job.layout, range(job.layout.cp)
    shares = [torch.arange(job.seq_len)]
    if layout.cp > 1:
        groups = [Group("cp", ranks, rank, None, Status()) for rank in ranks]
        algorithm = CP_ALGORITHMS[layout.cp_algorithm]
        shares = [ContextParallel(group, algorithm).positions(job.seq_len) for group in groups]
    return [part for share in shares for part in share.chunk(layout.tp)]


def _part_by_part(function: Callable[[Tensor], Tensor], places: Sequence[Tensor]) -> Callable[[Tensor], Tensor]:
    """Applies `function` to the tokens of each rank separately: [b, s, h] -> [b, s, h]."""
    home = torch.cat(list(places)).argsort()
    return lambda x: torch.cat([function(x[:, positions]) for positions in places], 1)[:, home]


def train(job: Job, run: RunStates | None = None) -> list[Step]:
    """Losses and gradient norms of all steps, on one core and without a process group.

    For bf16 weights the optimizer has fp32 copies, and gradients are summed in fp32. run: each step starts from the
    states that this run had before it; None: from its own.
    """
    model = whole_model(job)
    if model.head is not None:
        model.head.ignores = job.end_token is not None or job.images is not None
    balancing = _balancing_losses(model, job)
    names, parameters = zip(*[pair for pair in model.named_parameters() if pair[1].requires_grad], strict=True)
    wide = torch.float64 if job.dtype == "fp64" else torch.float32
    masters = [parameter.detach().to(wide, copy=True) for parameter in parameters]
    optimizer = _optimizer(job, masters, _undecayed(model, job.no_decay))
    further = 1 + job.model.mtp_layers
    batch_of = batches(job, further)
    steps = []
    for step in range(job.steps):
        batch, total = batch_of(step), 0.0
        number = num_targets(batch, job, further)
        sums = [torch.zeros_like(master) for master in masters]
        for rows in batch:
            model.seq_len = rows.shape[1] - further - (job.source_len or 0)
            shifted = shifted_rows(rows, model.seq_len, further, job)
            loss = model(*shifted) / number
            uneven = sum(block.of_micro_batch(len(rows)) for block in balancing) / job.tokens_per_step
            (loss + uneven).backward()
            total += float(loss.detach())
            for gradient, parameter in zip(sums, parameters, strict=True):
                gradient.add_(0.0 if parameter.grad is None else parameter.grad)
                parameter.grad = None
        before = [master.clone() for master in masters]
        norm = _update(optimizer, masters, sums, job.clip)
        if run is not None:
            _follow(run, step, names, masters, before, optimizer)
        with torch.no_grad():
            for parameter, master in zip(parameters, masters, strict=True):
                parameter.copy_(master)
        steps.append(Step(total, norm))
    return steps


def _follow(
    run: RunStates, step: int, names: Sequence[str], masters: Sequence[Tensor], before: Sequence[Tensor],
    optimizer: torch.optim.Optimizer,
) -> None:  # fmt: skip
    """Compares weights and optimizer states after step `step` (0, 1, ...) with the run's, and goes on from those."""
    states: dict[str, Tensor] = {}
    for name, master in zip(names, masters, strict=True):
        states[f"weights.{name}"] = master
        states |= {f"{kind}.{name}": state for kind, state in optimizer.state[master].items() if kind != "step"}
    moved = {f"weights.{name}": master - old for name, master, old in zip(names, masters, before, strict=True)}
    run.follow(step + 1, states, moved)


def _update(
    optimizer: torch.optim.Optimizer, masters: Sequence[Tensor], gradients: Sequence[Tensor], clip: float | None
) -> float:
    """Runs a step of the optimizer. Returns the norm of all gradients before clipping."""
    norm = float(torch.stack([gradient.double().square().sum() for gradient in gradients]).sum().sqrt())
    for master, gradient in zip(masters, gradients, strict=True):
        master.grad = gradient.mul_(clip / norm) if clip is not None and norm > clip else gradient
    optimizer.step()
    return norm


def _undecayed(model: DecoderChunk, kinds: frozenset[str]) -> list[bool]:
    """Whether each trained parameter has no weight decay, by the module that it is in."""
    out = []
    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=False):
            is_bias = name.endswith("bias")
            is_table = isinstance(module, Embedding) or (isinstance(module, Tower) and name == "positions")
            kind = "biases" if is_bias else "embeddings" if is_table else "norms" if parameter.dim() < 2 else ""
            out += [kind in kinds] * parameter.requires_grad
    return out


def _optimizer(job: Job, parameters: Sequence[Tensor], undecayed: Sequence[bool]) -> torch.optim.Optimizer:
    """The optimizer of docs/reference/runtime.md, one parameter at a time."""
    if job.optimizer == "sgd":
        return torch.optim.SGD(parameters, lr=job.learning_rate, momentum=0.9, foreach=False)
    groups = [{"params": [each for each, left_out in zip(parameters, undecayed, strict=True) if left_out == without],
               "weight_decay": 0.0 if without else job.weight_decay} for without in (False, True)]  # fmt: skip
    return torch.optim.AdamW(groups, lr=job.learning_rate, betas=(0.9, 0.95), eps=1e-8, foreach=False)


def _adapters(job: Job) -> Adapters | None:
    """The adapters of the job, which add (alpha / r) B A x. The default of alpha is r."""
    if job.lora is None:
        return None
    rank = job.lora.rank
    return Adapters(rank, (job.lora_alpha or rank) / rank, frozenset(job.lora.targets))


def main(argv: Sequence[str]) -> int:
    """Prints one JSON document: losses and gradient norms of the steps, and differences of states that were kept."""
    torch.set_num_threads(1)
    settings = Settings.parse(argv)
    job, _ = prepare(settings)
    run = RunStates(Path(settings.checkpoint)) if settings.planned_dtype and settings.checkpoint else None
    steps = train(job, run)
    document = {"steps": [[step.loss, step.gradient_norm] for step in steps],
                "states": run and [[state.name, state.relative] for state in run.differences]}  # fmt: skip
    sys.stdout.write(json.dumps(document) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
