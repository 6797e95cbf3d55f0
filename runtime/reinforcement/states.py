"""The state of a run of post-training: of each model that trains, and the answers that wait under a lag.

Prompts and random numbers follow from the seed and the step, the frozen copy and the reward model from the seed. Copies
that generate or score get their weights anew.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

import torch

from ..checkpoint.slices import Piece
from ..checkpoint.states import States, go_on, make_states, pieces
from .job import Role
from .loop import Loop
from .rollout import Rollout, answered


class LoopStates(States):
    """The states of a loop on this rank. The critic's names begin with `critic.`; the policy's are as in training, so
    that an export finds them."""

    def __init__(self, loop: Loop) -> None:
        self.loop, self.job, self.device, self.status = loop, loop.job, loop.device, loop.world.status

    def pieces(self) -> Iterator[Piece]:
        for role, trainer in self.loop.trainers.items():
            for piece in () if trainer is None else pieces(trainer):
                yield replace(piece, name=_prefix(role) + piece.name)
        for number, rollout in enumerate(self.loop.waiting):
            for name in ("tokens", "log_probs"):
                tensor = getattr(rollout, name)
                yield Piece(f"answers-{number}.{name}", tuple(tensor.shape), (0,) * tensor.dim(), tensor)

    def make(self, step: int) -> None:
        for trainer in self.loop.trainers.values():
            if trainer is not None:
                make_states(trainer)
        self.loop.waiting.extend(self._empty() for _ in range(self.loop.job.lag))

    def _empty(self) -> Rollout:
        job = self.loop.job
        tokens = torch.zeros(job.answers, job.seq_len + 1, dtype=torch.int64, device=self.device)
        log_probs = torch.zeros(job.answers, job.seq_len, dtype=torch.float64, device=self.device)
        return Rollout(tokens, answered(tokens, job.prompt_len), log_probs)

    def loaded(self, step: int) -> None:
        for number, rollout in enumerate(self.loop.waiting):
            self.loop.waiting[number] = replace(rollout, counted=answered(rollout.tokens, self.loop.job.prompt_len))
        for trainer in self.loop.trainers.values():
            if trainer is not None:
                go_on(trainer, step * self.loop.job.updates)
        self.loop.send_weights()

    def digests(self) -> Mapping[str, str]:
        return {} if self.loop.given is None else self.loop.given.digests


def _prefix(role: Role) -> str:
    return "" if role == "policy" else f"{role}."
