"""Small runs of post-training on 4 ranks."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from meshwright.cost_models.layouts import parse
from meshwright.runtime.model.initial_weights import InitParam, init_param
from meshwright.runtime.parallel.mesh import ProcessGroupFactory
from meshwright.runtime.reinforcement.job import Place, RlJob, Role, chunks_of
from meshwright.runtime.reinforcement.loop import Loop
from meshwright.runtime.report import Event
from meshwright.runtime.status import Status

from ..fork import fork
from ..jobs import job, llama

PROMPTS, SAMPLES, ANSWER_LEN = 4, 4, 8
ROLES: dict[str, Role] = {"reference": "reference", "values": "critic", "reward": "reward", "logprobs": "policy"}


def rl_job(train: str, engine: str | None, *, at: int = 0, engine_at: int = 0, scores: dict[str, str] | None = None,
           model: Any = None, critic: tuple[str, int] | None = None, **changes: Any) -> RlJob:  # fmt: skip
    """Layouts of training and generation by their ids; the first rank of each. scores: those on the trainer's ranks.
    critic: its layout and first rank; its model is as large as the policy."""
    layout, model = parse(train), model or llama(2)
    small = job(train, model)
    fields = {name: getattr(small, name) for name in type(small).__dataclass_fields__}
    updates = changes.pop("updates", 1)
    how: dict[str, Any] = {
        "layout": layout, "chunks": chunks_of(layout, model), "seq_len": 16, "optimizer": "adamw", "dtype": "fp64",
        "steps": 3, "learning_rate": 3e-3, "clip": 1.0, "global_batch": PROMPTS * SAMPLES // updates,
        "updates": updates, "algorithm": "grpo", "prompts": PROMPTS, "samples": SAMPLES, "answer_len": ANSWER_LEN,
        "lag": 0, "train": Place("train", at, layout),
        "engine": None if engine is None else Place("generate", engine_at, parse(engine)),
        "scores": tuple(Place(name, at, parse(each), ROLES[name]) for name, each in (scores or {}).items()),
        "train_critic": None if critic is None else Place("train-critic", critic[1], parse(critic[0]), "critic"),
        "models": {"critic": model, "reward": model},
    }  # fmt: skip
    return RlJob(**{**fields, **how, **changes})


def loop_of(job: RlJob, rank: int, init_param: InitParam = init_param, *, goes_on: bool = False) -> Loop:
    factory = ProcessGroupFactory(job.world_size, rank, Status(), 60.0)
    return Loop(job, factory, torch.device("cpu"), init_param, goes_on=goes_on)


def run(job: RlJob, init_param: InitParam = init_param, timeout_s: float = 60.0) -> list[Event]:
    """The events of all steps."""

    def one(rank: int) -> list[Event]:
        loop = loop_of(job, rank, init_param)
        events = [loop.step(index)[0] for index in range(job.steps)]
        dist.barrier()
        return events

    events: list[Event] = fork(job.world_size, one, timeout_s)[0]
    return events
