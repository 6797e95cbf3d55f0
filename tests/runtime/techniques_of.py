"""Runs of a technique on ranks, and what its restatement in one process starts from: gradients of a plain model, and
AdamW written out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from meshwright.cost_models.techniques.registry import TECHNIQUES
from meshwright.runtime.data import Synthetic
from meshwright.runtime.job import Job
from meshwright.runtime.parallel.mesh import build_mesh
from meshwright.runtime.reference import whole_model
from meshwright.runtime.status import Status
from meshwright.runtime.trainer import Trainer
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from .fork import TIMEOUT_S, fork
from .jobs import job, llama

Weights = dict[str, Tensor]  # by the name of the parameter
# 8 times the ranks divide every part, so that signs fill their bytes.
MODEL = llama(2, vocab=64)
# Collective of c10d -> (the argument whose bytes count, how many times (n - 1) / n of them a rank sends).
_SENT = {"allreduce_": (0, 2), "_allgather_base_": (0, 1), "_reduce_scatter_base_": (1, 1), "alltoall_base_": (1, 1)}


def trained_by(name: str, layout_id: str, knobs: Mapping[str, float], **changes: Any) -> Job:
    """A job of a technique: 6 steps of AdamW in float64, clipped. changes: of the job."""
    how: dict[str, Any] = {"optimizer": "adamw", "learning_rate": 0.01, "clip": 0.5, "steps": 6, "extra": 1}
    technique = name, TECHNIQUES[name].settings(knobs)
    return job(layout_id, **{"model": MODEL, "technique": technique, **how, **changes})


@dataclass
class Ran:
    """One rank after a run."""

    losses: list[float]
    weights: list[Weights]  # after each step
    units: list[list[str]]  # names of the parameters of each flat buffer
    sent: tuple[float, float]  # bytes of all steps, as the exchange counts them
    given: dict[str, float]  # bytes that torch was given to send, by operation, without scales and the sum of losses
    extra: Any = None


def run(wanted: Job, watch: Callable[[Trainer, int], Any] | None = None) -> list[Ran]:
    """All ranks of a job. watch: called with trainer and rank before the first step; its result is called at the end,
    for `extra`."""

    def one(rank: int) -> Ran:
        mesh = build_mesh(wanted.layout, rank, Status(), TIMEOUT_S)
        trainer = Trainer(wanted, mesh, torch.device("cpu"))
        finish = watch(trainer, rank) if watch is not None else None
        losses, weights = [], []
        with _counted() as given:
            for index in range(wanted.steps):
                losses.append(trainer.step(index).loss)
                weights.append({name: parameter.detach().clone() for _, named in trainer.contents
                                for name, parameter, _ in named})  # fmt: skip
            trainer.settle()
        units = [[name for name, _, _ in named] for _, named in trainer.contents]
        return Ran(losses, weights, units, trainer.exchange.sent_bytes(), dict(given), finish() if finish else None)

    return fork(wanted.world_size, one)


@contextmanager
def _counted() -> Iterator[dict[str, float]]:
    sent: dict[str, float] = {}

    class Count(TorchDispatchMode):  # type: ignore[no-untyped-call]
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            space, _, name = str(func.name()).partition("::")
            if space == "c10d" and name in (*_SENT, "send"):
                which, times = _SENT.get(name, (0, 0))
                given = [args[which]] if isinstance(args[which], Tensor) else args[which]
                size = dist.get_world_size()
                share = times * (size - 1) / size if times else 1.0
                if given[0].numel() > dist.get_world_size():
                    sent[name] = sent.get(name, 0.0) + share * sum(tensor.nbytes for tensor in given)
            return func(*args, **(kwargs or {}))

    with Count():  # type: ignore[no-untyped-call]
        yield sent


class Model:
    """The whole model in one process."""

    def __init__(self, wanted: Job) -> None:
        self.job, self.module = wanted, whole_model(wanted)
        self.parameters = dict(self.module.named_parameters())
        self.source = Synthetic(wanted.model.vocab, wanted.seq_len, wanted.global_batch, wanted.seed, 1)

    @property
    def start(self) -> Weights:
        return {name: parameter.detach().clone() for name, parameter in self.parameters.items()}

    def gradients(self, weights: Weights, step: int, share: int, shares: int) -> tuple[Weights, float]:
        """Gradients of the mean loss over one of `shares` equal shares of the batch, and that loss."""
        rows = self.source.batch(step).chunk(shares)[share]
        with torch.no_grad():
            for name, parameter in self.parameters.items():
                parameter.copy_(weights[name])
                parameter.grad = None
        loss = self.module(rows[:, :-1], rows[:, 1:]) / rows[:, 1:].numel()
        loss.backward()
        return {name: p.grad.clone() for name, p in self.parameters.items() if p.grad is not None}, float(loss.detach())


class Adam:
    """AdamW of float64 weights (0.9, 0.95, eps 1e-8, weight decay 0.1), behind clipping by global norm."""

    def __init__(self, wanted: Job, like: Weights) -> None:
        self.rate, self.limit, self.time = wanted.learning_rate, wanted.clip or 0.0, 0
        self.m, self.v = ({name: torch.zeros_like(w) for name, w in like.items()} for _ in range(2))

    def step(self, weights: Weights, gradients: Weights) -> None:
        self.time += 1
        norm = float(sum(g.square().sum() for g in gradients.values())) ** 0.5
        for name, gradient in gradients.items():
            clipped = gradient * min(self.limit / norm, 1.0)
            self.m[name] = 0.9 * self.m[name] + 0.1 * clipped
            self.v[name] = 0.95 * self.v[name] + 0.05 * clipped**2
            m, v = self.m[name] / (1 - 0.9**self.time), self.v[name] / (1 - 0.95**self.time)
            weights[name] = weights[name] * (1 - 0.1 * self.rate) - self.rate * m / (v.sqrt() + 1e-8)


def differ(found: Weights, expected: Weights) -> float:
    """The largest difference of a weight."""
    return max(float((found[name] - expected[name]).abs().max()) for name in expected)
