"""The steps of a run of post-training: generate, score, train, move the new weights to the engine.

With a lag the engine generates answers of a later step while the trainer trains, and weights move between the two.
PPO also moves its critic to the copy that gives values; DPO generates nothing and moves nothing. Every rank runs the
same loop; a call does nothing on ranks that are not its own.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

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
from .experience import REWARD, last_targets, scored
from .job import SYNC, VALUED, Place, RlJob, Role
from .preferences import Preferences
from .replica import Replica, undefined
from .rollout import Rollout, answered, pairs, prompts, uniforms
from .trainer import CriticTrainer, PairTrainer, PolicyTrainer, RlTrainer

MEASURES, CRITIC_MEASURES = ("reward", "loss", "gradient_norm"), ("critic_loss", "critic_gradient_norm")


@dataclass(frozen=True)
class Outcome:
    """A step on the ranks of the trainer."""

    reward: float  # mean of the answers
    steps: Mapping[Role, Step]  # of the models that this rank trains


class Loop:
    """This rank of a run. All ranks must construct it at the same time."""

    def __init__(
        self, job: RlJob, factory: ProcessGroupFactory, device: torch.device, init_param: InitParam = init_param, *,
        goes_on: bool = False,
    ) -> None:  # fmt: skip
        """goes_on: a longer run may resume from this one, so that its last steps generate answers of later ones.
        Raises RuntimeError for a rank outside of the run, InputError for wrong files of pairs."""
        self.job, self.device, self.goes_on = job, device, goes_on
        self.world = _group(factory, "world", range(job.world_size))
        self.init_param = init_param
        self.trainers = {place.role: self._trainer(place, factory) for place in job.trains}
        copies = [place for place in job.places if place not in job.trains]
        self.replicas = {place.name: self._replica(place, factory) for place in copies}
        scoring = {rank for place in job.places if place != job.engine for rank in place.ranks}
        self.side = factory.group("trainer", [sorted(scoring)])  # shares scores while the engine generates
        self.transfers = {place.name: Transfer(self._held(place.role), self._needed(place.name), self.world, device)
                          for place in copies if place.role != "reward"}  # fmt: skip
        for transfer in self.transfers.values():
            transfer.run()
        self.given = None if job.data == "synthetic" else Preferences(job)
        self.waiting = deque[Rollout]()
        self.seconds: dict[str, float] = {}

    @property
    def trainer(self) -> RlTrainer | None:
        """The trainer of the policy; None on ranks that do not train it."""
        return self.trainers["policy"]

    def _trainer(self, place: Place, factory: ProcessGroupFactory) -> RlTrainer | None:
        job = self.job.training(place)
        mesh = mesh_from(place.first, job.layout, factory)
        kind = CriticTrainer if place.role == "critic" else PairTrainer if job.algorithm == "dpo" else PolicyTrainer
        return None if mesh is None else kind(job, mesh, self.device, self.init_param)

    def _replica(self, place: Place, factory: ProcessGroupFactory) -> Replica | None:
        job = self.job.replica(place)
        mesh = mesh_from(place.first, job.layout, factory)
        init_param = self.init_param if place.role == "reward" else undefined
        return None if mesh is None else Replica(job, mesh, self.device, init_param, values=place.role in VALUED)

    def _held(self, role: Role) -> list[Piece]:
        """The weights that copies of a model get; the frozen copy has those of the policy."""
        trainer = self.trainers["critic" if role == "critic" else "policy"]
        return [] if trainer is None else list(weights(trainer))

    def _needed(self, name: str) -> list[Piece]:
        replica = self.replicas[name]
        return [] if replica is None else list(weights_of(replica.chunks))

    def step(self, index: int, *, stop: bool = False) -> tuple[Event, bool]:
        """Step 0, 1, ...: its event, and whether a rank is to stop. stop: this one is."""
        job, later = self.job, index + self.job.lag
        ahead = later if self.goes_on else min(later, job.steps)
        for step in range(index + len(self.waiting), ahead):  # before the first step
            self.waiting.append(self._shared(self._generate(step)))
        started, self.seconds, self.world.status.step = time.perf_counter(), {}, index
        needed = job.engine is not None and (later < job.steps or self.goes_on)
        generated = self._generate(later) if needed else None
        if generated is not None and not job.lag:
            self.waiting.append(self._shared(generated))
        rollout = self.waiting.popleft() if job.engine is not None else self._pairs(index)
        trained = self._train(index, rollout)
        if generated is not None and job.lag:
            self.waiting.append(self._shared(generated))
        self.world.all_reduce(torch.zeros(1, device=self.device))  # ranks that wait for others do not move weights yet
        with self._timed(SYNC):
            self.send_weights()
        return self._event(index, rollout, trained, time.perf_counter() - started, stop)

    def send_weights(self) -> None:
        """New weights to all copies that follow a trained model. All ranks must call it."""
        for name, transfer in self.transfers.items():
            if name != "reference":  # stays as the policy was before its first step
                transfer.run()

    def received_bytes(self) -> dict[str, list[int]]:
        """Call -> bytes of weights that each rank receives from others when they move to it. All ranks must call it."""
        rank, out = self.world.rank, dict[str, list[int]]()
        for name, transfer in self.transfers.items():
            of_ranks = torch.zeros(self.world.size, dtype=torch.int64, device=self.device)
            of_ranks[rank] = transfer.received_bytes
            out[name] = self.world.all_reduce(of_ranks).tolist()
        return out

    # ---- calls

    @contextmanager
    def _timed(self, name: str) -> Iterator[None]:
        started = time.perf_counter()
        yield
        self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - started

    def _generate(self, step: int) -> tuple[Tensor, Tensor]:
        """This rank's part of the tokens and log-probabilities of a step, in tensors of all answers; else zeros."""
        job, engine = self.job, self.replicas["generate"]
        tokens = torch.zeros(job.answers, job.seq_len + 1, dtype=torch.int64, device=self.device)
        log_probs = torch.zeros(job.answers, job.seq_len, dtype=torch.float64, device=self.device)
        if engine is not None:
            with self._timed("generate"):
                made, of_made = engine.generate(prompts(job, step), uniforms(job, step))
            if engine.reports:
                tokens[engine.rows], log_probs[engine.rows, job.prompt_len - 1 :] = made, of_made
        return tokens, log_probs

    def _pairs(self, step: int) -> Rollout:
        """Pairs of files, or random ones."""
        return pairs(self.job, step) if self.given is None else self.given.step(step)

    def _shared(self, generated: tuple[Tensor, Tensor]) -> Rollout:
        """The answers of all ranks."""
        tokens, log_probs = (self.world.all_reduce(part) for part in generated)
        return Rollout(tokens, answered(tokens, self.job.prompt_len), log_probs)

    def _train(self, index: int, rollout: Rollout) -> Outcome | None:
        """Scores and trains; None on ranks that do neither."""
        if self.side is None:
            return None
        scores = {place.name: self._score(place.name, rollout, self.side) for place in self.job.scores}
        answers, reward = scored(self.job, rollout, scores)
        steps = dict[Role, Step]()
        for place in self.job.trains:
            trainer = self.trainers[place.role]
            if trainer is not None:
                with self._timed(place.name):
                    steps[place.role] = trainer.train(index, answers)
        return Outcome(reward, steps)

    def _score(self, name: str, rollout: Rollout, side: Group) -> Tensor:
        replica = self.replicas[name]
        scores = torch.zeros(self.job.answers, self.job.seq_len, dtype=torch.float64, device=self.device)
        if replica is not None:
            with self._timed(name):
                mine = (replica.judge(rollout.tokens, last_targets(rollout.counted)) if name == REWARD
                        else replica.score(rollout.tokens))  # fmt: skip
            if replica.reports:
                scores[replica.rows] = mine
        return side.all_reduce(scores)

    # ---- reports

    def _event(
        self, index: int, rollout: Rollout, trained: Outcome | None, step_s: float, stop: bool
    ) -> tuple[Event, bool]:  # fmt: skip
        names = [place.name for place in self.job.places] + [SYNC] * (self.job.engine is not None)
        longest = torch.tensor([*(self.seconds.get(name, 0.0) for name in names), step_s, float(stop)],
                               dtype=torch.float64, device=self.device)  # fmt: skip
        *seconds, step_s, stops = self.world.all_reduce(longest, dist.ReduceOp.MAX).tolist()
        # With lag the last steps generate nothing: their answers are there.
        calls = {name: taken for name, taken in zip(names, seconds, strict=True) if taken}
        return {"event": "step", "step": index + 1, **self._results(trained), "answer_len": rollout.mean_len,
                "learning_rate": self.job.rate(index), "step_s": step_s, "calls": calls}, stops > 0  # fmt: skip

    def _results(self, trained: Outcome | None) -> Event:
        """Reward, loss and gradient norm of the policy, those of the critic and the margin of DPO, of all ranks."""
        names = [*MEASURES, *(CRITIC_MEASURES if "critic" in self.trainers else ())]
        mine = torch.zeros(len(names), dtype=torch.float64, device=self.device)
        for place in self.job.trains:
            trainer = self.trainers[place.role]
            if trained is None or trainer is None or trainer.mesh.rank != place.first:
                continue
            step, at = trained.steps[place.role], names.index("loss" if place.role == "policy" else CRITIC_MEASURES[0])
            mine[at], mine[at + 1] = step.loss, step.gradient_norm
            if place.role == "policy":
                mine[0] = trainer.margin if isinstance(trainer, PairTrainer) else trained.reward
        values = dict(zip(names, self.world.all_reduce(mine).tolist(), strict=True))
        return {"margin": values.pop("reward"), **values} if self.job.algorithm == "dpo" else values


def _group(factory: ProcessGroupFactory, axis: str, ranks: range) -> Group:
    group = factory.group(axis, [list(ranks)])
    if group is None:
        raise RuntimeError(f"rank {factory.rank} is none of ranks {ranks.start} to {ranks[-1]}")
    return group
