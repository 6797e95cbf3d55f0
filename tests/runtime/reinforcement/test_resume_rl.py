"""Runs of post-training that resume: the same weights and answers, to the bit, as a run that never stopped."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from meshwright.runtime.checkpoint.checkpoint import Checkpoints
from meshwright.runtime.reinforcement.job import RlJob
from meshwright.runtime.reinforcement.loop import Loop
from meshwright.runtime.reinforcement.states import LoopStates
from meshwright.runtime.report import Event
from torch import Tensor
from torch.distributed.checkpoint.filesystem import FileSystemReader

from meshwright.errors import InputError

from ..fork import fork
from ..jobs import llama
from .rl_jobs import loop_of, rl_job
from .test_transfer import Box, boxes, wholes

SCORES = {"reference": "dp2-mbs1-z0-rnone", "values": "tp2-dp1-mbs1-z0-rnone", "logprobs": "dp2-mbs1-z0-rnone"}
CRITIC = {"critic": ("pp2-dp1-mbs4-z0-rnone", 2), "scores": SCORES}
RUNS: dict[str, dict[str, Any]] = {
    "grpo": {"train": "tp2-dp2-mbs2-z1-rnone", "engine": "dp4-mbs1-z0-rnone", "updates": 2,
             "scores": {"reference": "dp2-mbs1-z0-rnone"}},
    "grpo-lag": {"train": "dp2-mbs2-z3-rnone", "engine": "tp2-dp1-mbs1-z0-rnone", "engine_at": 2, "lag": 2, "steps": 5},
    "ppo": {"train": "cp2r-dp1-mbs2-z2-rnone", "engine": "tp2-dp2-mbs1-z0-rnone", "algorithm": "ppo", "updates": 2,
            **CRITIC},
    "dpo": {"train": "pp2-dp1-mbs2-z1-rnone", "engine": None, "algorithm": "dpo", "samples": 2, "prompts": 8,
            "scores": {"reference": "dp2-mbs1-z0-rnone"}},
}  # fmt: skip
DONE = 2  # steps before the end of the first life


def job_of(name: str, **changes: Any) -> RlJob:
    return rl_job(**{"steps": 4, "dtype": "bf16", **RUNS[name], **changes})


def states(loop: Loop) -> list[Box]:
    """Weights and states of the optimizers of this rank, and the answers that wait."""
    held = boxes(list(LoopStates(loop).pieces()))
    return [(name, shape, offsets, box if box.is_floating_point() else box.double())
            for name, shape, offsets, box in held]  # fmt: skip


Ran = tuple[list[Event], list[Box]]


def lives(job: RlJob, folder: Path, first: int, *, resume: bool, saves: bool = True) -> tuple[Event, dict[str, Tensor]]:
    """Runs to step `first`, or from a checkpoint to the end. The last event, and all states."""

    def one(rank: int) -> Ran:
        loop = loop_of(job, rank, goes_on=saves)
        checkpoints = Checkpoints(LoopStates(loop), folder, keep=2)
        checkpoints.prepare(resume=resume)
        done = checkpoints.resume().step if resume else 0
        events = [loop.step(index)[0] for index in range(done, first)]
        if saves:
            checkpoints.save(first)
        return events, states(loop)

    every: list[Ran] = fork(job.world_size, one)
    return every[0][0][-1], wholes([each[1] for each in every])


def measures(event: Event) -> dict[str, Any]:
    """All but seconds."""
    return {name: value for name, value in event.items() if name not in ("event", "step_s", "calls")}


@pytest.mark.parametrize("name", RUNS)
def test_a_resumed_run_has_the_bits_of_one_that_never_stopped(name: str, tmp_path: Path) -> None:
    job = job_of(name)
    whole, expected = lives(job, tmp_path / "whole", job.steps, resume=False, saves=True)
    lives(replace(job, steps=DONE), tmp_path / "cut", DONE, resume=False)
    resumed, found = lives(job, tmp_path / "cut", job.steps, resume=True)
    assert measures(resumed) == measures(whole)
    assert found.keys() == expected.keys()
    assert {key.partition(".")[0] for key in found} == {
        "weights", "exp_avg", "exp_avg_sq", *(("critic",) if name == "ppo" else ()),
        *(f"answers-{number}" for number in range(job.lag))}  # fmt: skip
    assert all(torch.equal(found[key], value) for key, value in expected.items())


def test_another_layout_goes_on_with_the_same_steps(tmp_path: Path) -> None:
    """In float64, since another layout sums in another order."""
    job = job_of("ppo", dtype="fp64")
    whole, _ = lives(job, tmp_path / "whole", job.steps, resume=False)
    lives(job, tmp_path / "cut", DONE, resume=False)
    changed = {"train": "tp2-dp2-mbs1-z1-rnone", "critic": ("dp4-mbs1-z3-rnone", 0)}
    resumed, _ = lives(job_of("ppo", dtype="fp64", **changed), tmp_path / "cut", job.steps, resume=True)
    assert measures(resumed) == pytest.approx(measures(whole), rel=1e-9)


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("dpo", {"train": "pp2-dp2-mbs2-z1-rnone"}, "algorithm: grpo in the checkpoint, dpo now"),
    ("ppo", {}, "algorithm: grpo in the checkpoint, ppo now"),
    ("grpo", {"seed": 7}, "seed: 0 in the checkpoint, 7 now"),
    ("grpo", {"model": llama(3)}, "another model"),
    ("grpo", {"updates": 1}, "updates: 2 in the checkpoint, 1 now"),
    ("grpo", {"scores": {}}, "calls: generate, reference, train in the checkpoint, generate, train now"),
]  # fmt: skip


def test_a_checkpoint_of_another_run_is_refused(grpo_saved: Path) -> None:
    def one(rank: int) -> list[str]:
        messages = list[str]()
        for name, changes, _ in REFUSED:
            checkpoints = Checkpoints(LoopStates(loop_of(job_of(name, **changes), rank)), grpo_saved, keep=2)
            with pytest.raises(InputError) as caught:
                checkpoints.resume()
            messages.append(caught.value.message)
        return messages

    for (*_, expected), message in zip(REFUSED, fork(4, one)[0], strict=True):
        assert expected in message


@pytest.fixture(scope="module")
def grpo_saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("grpo")
    lives(job_of("grpo"), folder, 1, resume=False)
    return folder


def test_a_checkpoint_without_the_critic_is_refused(tmp_path: Path) -> None:
    """One whose manifest is of PPO all the same."""
    job = job_of("ppo", steps=1)

    def one(rank: int) -> str:
        loop = loop_of(job, rank)
        loop.step(0)
        all_states = LoopStates(loop)
        checkpoints = Checkpoints(all_states, tmp_path, keep=2)
        checkpoints.store(1, [piece for piece in all_states.pieces() if not piece.name.startswith("critic.")])
        with pytest.raises(InputError) as caught:
            checkpoints.resume()
        return caught.value.message

    assert all("critic." in text for text in fork(job.world_size, one))


def test_weights_of_the_policy_have_the_names_of_training(grpo_saved: Path) -> None:
    """So that `launch export` finds them."""
    names = FileSystemReader(grpo_saved / "step-00000001").read_metadata().state_dict_metadata
    assert "weights.embedding.tokens" in names
