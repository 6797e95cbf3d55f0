"""The steps of a run of post-training: generate, score, train, move the new weights to the engine.

With a lag the engine generates answers of a later step while the trainer trains, and weights move between the two.
Every rank runs the same loop; a call does nothing on ranks that are not its own.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import Tensor

from ..checkpoint.slices import Piece
from ..checkpoint.states import weights, weights_of
from ..checkpoint.transfer import Transfer
from ..model.initial_weights import InitParam, init_param
from ..parallel.comm import Group
from ..parallel.mesh import ProcessGroupFactory, mesh_from
from ..report import Event
from ..trainer import Step
from .job import SYNC, Place, RlJob
from .replica import Replica
from .rollout import Rollout, advantages, answered, prompts, rewards, uniforms
from .trainer import RlTrainer, Scored


class Loop:
    """This rank of a run. All ranks must construct it at the same time."""

    def __init__(
        self, job: RlJob, factory: ProcessGroupFactory, device: torch.device, init_param: InitParam = init_param
    ) -> None:  # fmt: skip
        """Raises RuntimeError for a rank outside of the run."""
        self.job, self.device = job, device
        self.world = _group(factory, "world", range(job.world_size))
        mesh = mesh_from(job.train.first, job.layout, factory)
        self.trainer = None if mesh is None else RlTrainer(job, mesh, device, init_param)
        self.replicas = {place.name: self._replica(place, factory) for place in (job.engine, *job.scores)}
        scoring = {rank for place in (job.train, *job.scores) for rank in place.ranks}
        self.side = factory.group("trainer", [sorted(scoring)])  # shares scores while the engine generates
        held = [] if self.trainer is None else list(weights(self.trainer))
        self.transfers = {name: Transfer(held, self._needed(name), self.world, device) for name in self.replicas}
        for transfer in self.transfers.values():
            transfer.run()
        self.waiting = deque[Rollout]()
        self.seconds: dict[str, float] = {}
        for step in range(job.lag):
            self.waiting.append(self._shared(self._generate(step)))

    def _replica(self, place: Place, factory: ProcessGroupFactory) -> Replica | None:
        job = self.job.replica(place)
        mesh = mesh_from(place.first, job.layout, factory)
        return None if mesh is None else Replica(job, mesh, self.device)

    def _needed(self, name: str) -> list[Piece]:
        replica = self.replicas[name]
        return [] if replica is None else list(weights_of(replica.chunks))

    def step(self, index: int, *, stop: bool = False) -> tuple[Event, bool]:
        """Step 0, 1, ...: its event, and whether a rank is to stop. stop: this one is."""
        started, self.seconds, job = time.perf_counter(), {}, self.job
        self.world.status.step, later = index, index + job.lag
        generated = self._generate(later) if later < job.steps else None
        if generated is not None and not job.lag:
            self.waiting.append(self._shared(generated))
        rollout = self.waiting.popleft()
        reward = rewards(job, rollout)
        trained = self._train(index, rollout, advantages(job, reward))
        if generated is not None and job.lag:
            self.waiting.append(self._shared(generated))
        self.world.all_reduce(torch.zeros(1, device=self.device))  # ranks that wait for others do not move weights yet
        with self._timed(SYNC):
            for name, transfer in self.transfers.items():
                if name != "reference":  # stays as the policy was before its first step
                    transfer.run()
        return self._event(index, rollout, reward, trained, time.perf_counter() - started, stop)

    # ---- calls

    @contextmanager
    def _timed(self, name: str) -> Iterator[None]:
        started = time.perf_counter()
        yield
        self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - started

    def _generate(self, step: int) -> tuple[Tensor, Tensor]:
        """This rank's part of the tokens and log-probabilities of a step, in tensors of all answers; else zeros."""
        job, engine = self.job, self.replicas[self.job.engine.name]
        tokens = torch.zeros(job.answers, job.seq_len + 1, dtype=torch.int64, device=self.device)
        log_probs = torch.zeros(job.answers, job.seq_len, dtype=torch.float64, device=self.device)
        if engine is not None:
            with self._timed("generate"):
                made, of_made = engine.generate(prompts(job, step), uniforms(job, step))
            if engine.reports:
                tokens[engine.rows], log_probs[engine.rows, job.prompt_len - 1 :] = made, of_made
        return tokens, log_probs

    def _shared(self, generated: tuple[Tensor, Tensor]) -> Rollout:
        """The answers of all ranks."""
        tokens, log_probs = (self.world.all_reduce(part) for part in generated)
        return Rollout(tokens, answered(tokens, self.job.prompt_len), log_probs)

    def _train(self, index: int, rollout: Rollout, advantage: Tensor) -> Step | None:
        """Scores and trains; None on ranks that do not train."""
        scores = {place.name: self._score(place.name, rollout, self.side)
                  for place in self.job.scores if self.side is not None}  # fmt: skip
        if self.trainer is None:
            return None
        old, reference = scores.get("logprobs", rollout.log_probs), scores.get("reference")
        with self._timed("train"):
            return self.trainer.train(index, Scored(rollout.tokens, rollout.counted, advantage, old, reference))

    def _score(self, name: str, rollout: Rollout, side: Group) -> Tensor:
        replica = self.replicas[name]
        scores = torch.zeros(self.job.answers, self.job.seq_len, dtype=torch.float64, device=self.device)
        if replica is not None:
            with self._timed(name):
                mine = replica.score(rollout.tokens)
            if replica.reports:
                scores[replica.rows] = mine
        return side.all_reduce(scores)

    # ---- reports

    def _event(
        self, index: int, rollout: Rollout, reward: Tensor, trained: Step | None, step_s: float, stop: bool
    ) -> tuple[Event, bool]:  # fmt: skip
        names = [place.name for place in self.job.places] + [SYNC]
        first = self.trainer is not None and self.trainer.mesh.rank == self.job.train.first
        mine = torch.zeros(2, dtype=torch.float64, device=self.device)
        if trained is not None and first:
            mine = torch.tensor([trained.loss, trained.gradient_norm], dtype=torch.float64, device=self.device)
        loss, norm = self.world.all_reduce(mine).tolist()
        longest = torch.tensor([*(self.seconds.get(name, 0.0) for name in names), step_s, float(stop)],
                               dtype=torch.float64, device=self.device)  # fmt: skip
        *seconds, step_s, stops = self.world.all_reduce(longest, dist.ReduceOp.MAX).tolist()
        # With lag the last steps generate nothing: their answers are there.
        calls = {name: taken for name, taken in zip(names, seconds, strict=True) if taken}
        return {"event": "step", "step": index + 1, "reward": float(reward.mean()), "answer_len": rollout.mean_len,
                "loss": loss, "gradient_norm": norm, "learning_rate": self.job.rate(index), "step_s": step_s,
                "calls": calls}, stops > 0  # fmt: skip


def _group(factory: ProcessGroupFactory, axis: str, ranks: range) -> Group:
    group = factory.group(axis, [list(ranks)])
    if group is None:
        raise RuntimeError(f"rank {factory.rank} is none of ranks {ranks.start} to {ranks[-1]}")
    return group
