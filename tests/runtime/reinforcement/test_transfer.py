"""Weights move between layouts exactly to the bit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from meshwright.cost_models.specs.model import ModelSpec
from meshwright.planner.request.reinforcement import RlRequest
from meshwright.planner.workflows.prices import Prices
from meshwright.planner.workflows.resolve import rl_problem_of
from meshwright.runtime.checkpoint.slices import Piece
from meshwright.runtime.checkpoint.states import weights, weights_of
from torch import Tensor

from ..fork import fork
from ..jobs import gemma, gpt, llama, moe
from .rl_jobs import loop_of, rl_job

Box = tuple[str, tuple[int, ...], tuple[int, ...], Tensor]  # name, shape of the whole, offsets, elements


def boxes(pieces: Sequence[Piece]) -> list[Box]:
    return [(piece.name, piece.shape, piece.offsets, piece.tensor.clone()) for piece in pieces]


def wholes(of_ranks: Sequence[Sequence[Box]]) -> dict[str, Tensor]:
    """Whole tensors from boxes. All boxes with an element hold the same bits of it."""
    made: dict[str, Tensor] = {}
    for name, shape, offsets, box in (each for of_rank in of_ranks for each in of_rank):
        whole = made.setdefault(name, torch.full(shape, torch.nan, dtype=box.dtype))
        place = whole[tuple(slice(at, at + size) for at, size in zip(offsets, box.shape, strict=True))]
        assert bool((place.isnan() | (place == box)).all()), name
        place.copy_(box)
    return made


@pytest.mark.parametrize(("train", "engine", "model"), [
    ("tp2-pp2-dp1-mbs2-z1-rnone", "dp4-mbs1-z0-rnone", llama(2)),
    ("dp4-mbs1-z3-rnone", "tp2-pp2-dp1-mbs1-z0-rnone", gemma(2)),
    ("pp2-vpp2-dp2-mbs1-z1-rnone", "tp2-dp2-mbs1-z0-rnone", gpt(4)),
    ("dp4-ep2-mbs1-z2-rnone", "tp2-dp2-ep4-mbs1-z0-rnone", moe(2)),
])  # fmt: skip
def test_all_weights_arrive_to_the_bit_after_a_step(train: str, engine: str, model: ModelSpec) -> None:
    wanted = rl_job(train, engine, model=model, dtype="bf16", steps=1)

    def one(rank: int) -> tuple[list[Box], list[Box], list[Box]]:
        loop = loop_of(wanted, rank)
        replica, trainer = loop.replicas["generate"], loop.trainer
        assert replica is not None
        assert trainer is not None
        before = boxes(list(weights_of(replica.chunks)))
        loop.step(0)
        trainer.settle()
        return boxes(list(weights(trainer))), boxes(list(weights_of(replica.chunks))), before

    held, arrived, before = (wholes(parts) for parts in zip(*fork(4, one), strict=True))
    assert set(arrived) == set(held)
    for name, whole in held.items():
        assert torch.equal(whole, arrived[name]), name
    assert not all(torch.equal(before[name], arrived[name]) for name in held)  # the step changed them


def priced_bytes(model: ModelSpec) -> float:
    """Bytes of the policy's weights as `Prices.moved_s` gets them, for another model."""
    request = RlRequest.model_validate({"model": "llama-3.2-1b", "cluster": "4xh100-sxm-80gb", "workload": {
        "kind": "rl", "algorithm": "grpo", "prompts": 16, "output": 300}})  # fmt: skip
    question = rl_problem_of(request)[0]
    return Prices(replace(question, models={"policy": model})).weights_bytes("policy")


def received_bytes(train: str, engine: str, model: ModelSpec) -> list[int]:
    """Of ranks 2 and 3, which generate beside the ranks that train."""
    wanted = rl_job(train, engine, engine_at=2, lag=1, model=model, dtype="bf16")

    def one(rank: int) -> list[int]:
        loop = loop_of(wanted, rank)
        sent = torch.tensor(loop.transfers["generate"].num_bytes)
        received = loop.received_bytes()["generate"]
        assert int(loop.world.all_reduce(sent)) == sum(received)
        return received

    ranks: list[int] = fork(4, one)[0]
    assert ranks[:2] == [0, 0]
    return ranks[2:]


@pytest.mark.parametrize("model", [llama(2), gemma(2), moe(2)])
def test_an_engine_receives_the_bytes_that_plans_price(model: ModelSpec) -> None:
    whole = priced_bytes(model)
    assert received_bytes("tp2-dp1-mbs2-z1-rnone", "dp2-mbs1-z0-rnone", model) == [whole, whole]


def test_ranks_that_share_a_model_receive_their_parts() -> None:
    """Plans price whole tensors for each GPU, as frameworks gather them. Here only norms reach both ranks."""
    model = llama(2)
    norms = 2 * (2 * 2 + 1) * 32  # bytes of a norm at each block of 2 layers and at the end, 32 wide
    parts = received_bytes("dp2-mbs2-z1-rnone", "tp2-dp1-mbs1-z0-rnone", model)
    assert sum(parts) == priced_bytes(model) + norms
