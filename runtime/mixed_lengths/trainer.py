"""Steps on documents of mixed lengths: in each micro-batch the ranks form groups of unlike degrees.

A rank trains the documents of its group as one row, in one pass per micro-batch. All ranks make the same number of
passes, because they gather and reduce the weights together; a rank without a group passes padding.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ...cost_models.layouts import CP_ALGORITHMS
from ..job import Job
from ..model.initial_weights import InitParam, init_param
from ..parallel.comm import Group
from ..parallel.context_parallel import ContextParallel
from ..parallel.documents import Documents
from ..parallel.mesh import Mesh
from ..parallel.pipeline import Batch
from ..parallel.schedules import Action
from ..trainer import Trainer
from .job import LengthsJob
from .tokens import DocumentTokens


class LengthsTrainer(Trainer):
    """This rank of a run. All ranks must construct it at the same time."""

    def __init__(
        self, job: LengthsJob, mesh: Mesh, device: torch.device, init_param: InitParam = init_param
    ) -> None:
        self.tokens = DocumentTokens(job)
        super().__init__(job, mesh, device, self.tokens, init_param=init_param)
        self.lengths_job, tp = job, job.layout.tp
        self.rank = mesh.rank // tp  # among those that groups divide among themselves
        self.groups = {degree: self._group(degree) for degree in (1, *job.degrees)}
        for chunk in self.chunks:
            if chunk.head is not None:
                chunk.head.ignores = True  # padding has no target

    def _group(self, degree: int) -> Group:
        """This rank's group of a degree. All ranks must call it, in one order."""
        tp = self.job.layout.tp
        ranks = [[(first + member) * tp + part for member in range(degree)]
                 for first in range(0, self.job.world_size // tp, degree) for part in range(tp)]  # fmt: skip
        group = self.mesh.factory.group("cp", ranks)
        if group is None:
            raise RuntimeError(f"no group of {degree} ranks has rank {self.mesh.rank}")
        return group

    def batch(self, index: int) -> Batch:
        """The passes of step `index`: their number and the tokens of a step differ from step to step."""
        batch, documents = self.lengths_job.batch(index), self.tokens.documents(index)
        number = len(batch.microbatches)
        self.pipeline.actions = [Action(kind, 0, i) for i in range(number) for kind in ("F", "B")]
        self.pipeline.tokens_per_step = batch.num_tokens
        for unit in self.units:
            unit.num_passes = number

        def micro_batch(number: int) -> tuple[Tensor, ...]:
            group = batch.group_of(number, self.rank)
            mine = [] if group is None else [documents[seq] for seq in group.seqs]
            return self._row(1 if group is None else group.cp, mine)

        return micro_batch

    def _row(self, degree: int, documents: list[Tensor]) -> tuple[Tensor, ...]:
        """Inputs and targets [1, s/cp] of this rank, after the model is set to their split."""
        algorithm = CP_ALGORITHMS[self.job.layout.cp_algorithm]
        row = Documents.of([len(document) - 1 for document in documents], degree, algorithm, self.job.layout.tp)
        cp = ContextParallel(self.groups[degree], algorithm, self.chunks[0].context.fused, row)
        for chunk in self.chunks:
            chunk.split(cp)
        rows = cp.rows()
        inputs, targets = row.row(documents)
        return inputs[:, rows].to(self.device), targets[:, rows].to(self.device)


def trainer_of(job: Job, mesh: Mesh, device: torch.device, init_param: InitParam = init_param) -> Trainer:
    """The trainer of any job. All ranks must call it at the same time."""
    if isinstance(job, LengthsJob):
        return LengthsTrainer(job, mesh, device, init_param)
    return Trainer(job, mesh, device, init_param=init_param)
