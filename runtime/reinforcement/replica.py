"""A copy of a model in a layout of its own, which generates answers or scores them.

Generation runs the whole prefix for each token. It needs no cache, and every kind of attention generates as it trains.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ..job import Job
from ..model.block import ParamShard, named_splits
from ..model.decoder import DecoderChunk, ValueChunk
from ..model.initial_weights import InitParam
from ..parallel.comm import Group
from ..parallel.layerwise import Parts
from ..parallel.mesh import Mesh
from ..parallel.pipeline import Pipeline
from ..parallel.schedules import actions
from ..parallel.strategies import EMBEDDING
from ..trainer import DTYPES
from .job import END
from .rollout import sampled

Objective = Callable[[Tensor, Tensor], Tensor]  # of logits and targets


class Replica:
    """This rank's part of a copy. All ranks of its mesh must construct it at the same time."""

    def __init__(self, job: Job, mesh: Mesh, device: torch.device, init_param: InitParam, *, values: bool) -> None:
        """job: with one micro-batch where it generates. init_param: of weights that no trainer sends. values: the model
        gives these in place of logits."""
        self.job, self.mesh, self.device = job, mesh, device
        parts = Parts(job, mesh, device, DTYPES[job.dtype], fused=device.type == "cuda")
        self.chunks, kind = list[DecoderChunk](), ValueChunk if values else DecoderChunk
        for layers in (chunk for chunk in job.chunks if chunk.stage == mesh.coords.stage):
            embedding = self.chunks[0].embedding if self.chunks else None
            chunk = kind(parts.context(EMBEDDING), job.model, layers, job.seq_len, embedding, parts.context)
            for part, module in chunk.parts():
                for name, parameter, split in named_splits(module, part):
                    parameter.untyped_storage().resize_(parameter.numel() * parameter.element_size())
                    init_param(parameter, name, split, job.seed, tied=job.model.tied_embeddings)
            for name, buffer in chunk.named_buffers():
                init_param(buffer, name, ParamShard(tuple(buffer.shape), start=0.0), job.seed, tied=False)
            self.chunks.append(chunk)
        self.pipeline = Pipeline(mesh, self.chunks, job.devices, actions(job.order, mesh.coords.stage),
                                 job.num_micro_batches, parts.shapes(), 1, {})  # fmt: skip
        self._shapes, self.num_rows = self.pipeline.shapes, job.global_batch // job.layout.dp

    @property
    def rows(self) -> slice:
        """The answers of a step that are this rank's."""
        return slice(self.mesh.coords.dp * self.num_rows, (self.mesh.coords.dp + 1) * self.num_rows)

    @property
    def reports(self) -> bool:
        """Whether this rank adds its rows to the answers of all ranks: one of those that have them."""
        return self.mesh.coords.tp == self.mesh.coords.stage == 0

    def generate(self, prompts: Tensor, uniform: Tensor) -> tuple[Tensor, Tensor]:
        """Answers to all prompts [n, p] by uniform numbers [n, a]: tokens of this rank's rows [rows, p + a], and their
        log-probabilities [rows, a] in float64."""
        tokens, mine = prompts[self.rows].to(self.device), uniform[self.rows].to(self.device)
        log_probs = list[Tensor]()
        done = torch.zeros(len(tokens), dtype=torch.bool, device=self.device)
        for number in range(mine.shape[1]):
            following, log_prob = self._next(tokens, mine[:, number])
            tokens = torch.cat([tokens, following.masked_fill(done, END)[:, None]], 1)
            log_probs.append(log_prob.masked_fill(done, 0.0))
            done |= following == END
        return tokens, torch.stack(log_probs, 1)

    def _next(self, tokens: Tensor, uniform: Tensor) -> tuple[Tensor, Tensor]:
        """The next token of each row and its log-probability."""
        tp, length, seen = self.mesh["tp"].size, tokens.shape[1], list[Tensor]()
        padded = torch.nn.functional.pad(tokens, (0, -length % tp))

        def last(logits: Tensor, targets: Tensor) -> Tensor:
            seen.append(self._whole(logits[:, length - 1]))
            return logits.new_zeros(())

        self._run(padded, padded, last)
        drawn = sampled(seen[0], uniform) if seen else (torch.zeros_like(tokens[:, 0]), torch.zeros_like(uniform))
        # Only the last stage has drawn, so that the sum over stages is what it drew.
        return self.mesh["pp"].all_reduce(drawn[0]), self.mesh["pp"].all_reduce(drawn[1])

    def _whole(self, logits: Tensor) -> Tensor:
        """Logits [rows, vocab] from this rank's [rows, vocab / tp]."""
        group, softcap = self.mesh["tp"], self.job.model.logit_softcap
        columns = group.all_gather_rows(logits.t().contiguous(), _parts(self.job.model.vocab, group)).t()
        return columns if softcap is None else softcap * (columns / softcap).tanh()

    def score(self, tokens: Tensor) -> Tensor:
        """Log-probabilities or values [rows, s] in float64 of the targets of this rank's rows of tokens [n, s + 1]."""
        mine = tokens[self.rows].to(self.device)
        return self._scores(mine[:, :-1], mine[:, 1:])

    def judge(self, tokens: Tensor, last: Tensor) -> Tensor:
        """Rewards [rows, s] in float64: at the last target of an answer the value after all of its tokens, else 0.
        last: targets [n]."""
        mine, at = tokens[self.rows].to(self.device), last[self.rows].to(self.device)[:, None]
        padded = torch.nn.functional.pad(mine, (0, -mine.shape[1] % self.mesh["tp"].size))
        values = self._scores(padded, padded)
        return torch.zeros_like(values[:, : mine.shape[1] - 1]).scatter(1, at, values.gather(1, at + 1))

    def _scores(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """Scores of targets [rows, s] in float64."""
        seen = list[Tensor]()

        def kept(logits: Tensor, targets: Tensor) -> Tensor:
            head = self.chunks[-1].head
            if head is None:
                raise RuntimeError("logits of a chunk without the head")
            seen.append(head.scores(logits, targets).double())
            return logits.new_zeros(())

        self._run(inputs, targets, kept)
        scores = torch.cat(seen) if seen else torch.zeros(targets.shape, dtype=torch.float64, device=self.device)
        return self.mesh["pp"].all_reduce(scores)

    def _run(self, inputs: Tensor, targets: Tensor, objective: Objective) -> None:
        """One forward pass."""
        length = inputs.shape[1]
        self.pipeline.shapes = [(rows, length // self.mesh["tp"].size, width) for rows, _, width in self._shapes]
        for chunk in self.chunks:
            chunk.seq_len = length
            if chunk.head is not None:
                chunk.head.objective = objective
        size = self.job.layout.micro_batch
        self.pipeline.evaluate(lambda number: tuple(each[number * size : (number + 1) * size]
                                                    for each in (inputs, targets)))  # fmt: skip


def undefined(parameter: Tensor, name: str, split: ParamShard, seed: int, *, tied: bool) -> None:
    """Weights that arrive from a trainer are not numbers before."""
    if parameter.is_floating_point():
        parameter.detach().fill_(torch.nan)


def _parts(vocab: int, group: Group) -> list[int]:
    """Rows of the token table on each rank of a group, as `Context.part` splits them."""
    base, extra = divmod(vocab, group.size)
    return [base + (rank < extra) for rank in range(group.size)]
