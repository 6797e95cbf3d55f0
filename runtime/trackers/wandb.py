"""Weights & Biases: one run of a project. WANDB_MODE, WANDB_ENTITY and the others of its variables hold."""

from __future__ import annotations

from collections.abc import Mapping

from ...errors import InputError
from ..job import Job


class ProjectRun:
    """A run in the project `where`. A training that goes on is another run in the group of its plan."""

    def __init__(self, where: str, job: Job, done: int) -> None:
        import wandb

        config = {"model": job.model.name, "layout": job.layout_id, "num_gpus": job.world_size, "seed": job.seed,
                  "seq_len": job.seq_len, "global_batch": job.global_batch, "optimizer": job.optimizer,
                  "dtype": job.dtype, "data": job.data, "init_from": job.init_from, "first_step": done + 1}  # fmt: skip
        try:  # it would take over standard output, which the launcher reads
            self._run = wandb.init(project=where, group=job.plan_id, config=config,
                                   settings=wandb.Settings(console="off", silent=True))  # fmt: skip
        except wandb.errors.Error as error:
            raise InputError(f"--tracker wandb: {error}", hint="`wandb login`, or set WANDB_MODE=offline") from None

    def write(self, step: int, values: Mapping[str, float]) -> None:
        self._run.log(dict(values), step=step)

    def close(self) -> None:
        self._run.finish()
