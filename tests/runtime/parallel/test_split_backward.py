"""I computes no gradient of a weight, W nothing else; nothing is computed twice, and no more is kept than W needs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from meshwright.cost_models.specs.model import ModelSpec
from meshwright.runtime import reference
from meshwright.runtime.model.decoder import DecoderChunk
from meshwright.runtime.parallel import split_backward
from meshwright.runtime.parallel.pipeline import Pipeline
from meshwright.runtime.parallel.recompute import Recompute
from meshwright.runtime.parallel.schedules import Action
from meshwright.runtime.rehearsal.memory import PeakMemory
from meshwright.runtime.trainer import Trainer
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from ..fork import run
from ..jobs import gpt, job, llama, moe

BATCH, LENGTH, HIDDEN, INNER, VOCAB = 1, 16, 32, 64, 61


def whole(model: ModelSpec, modules: tuple[str, ...] = (), *, full: bool = False) -> DecoderChunk:
    chunk = reference.whole_model(job("dp1-mbs1-z0-rnone", model))
    for block in chunk.modules():
        if hasattr(block, "context"):
            object.__setattr__(block.context, "recompute", Recompute(modules))
    chunk.recomputed = frozenset(chunk.layers.keys()) if full else frozenset()
    return chunk


def loss_of(chunk: DecoderChunk) -> Tensor:
    tokens = torch.arange(BATCH * (LENGTH + 1)).view(BATCH, -1) * 7 % VOCAB
    loss: Tensor = chunk(tokens[:, :-1], tokens[:, 1:])
    return loss


def backward(loss: Tensor) -> None:
    torch.autograd.backward([loss])


@contextmanager
def products() -> Iterator[list[int]]:
    """FLOPs of the matrix products inside."""
    found: list[int] = []
    with FlopCounterMode(display=False) as counter:
        yield found
    counts: dict[Any, int] = counter.get_flop_counts()["Global"]
    found.append(sum(flops for op, flops in counts.items() if "mm" in str(op)))


def gradients(chunk: DecoderChunk) -> dict[str, Tensor]:
    return {name: each.grad.clone() for name, each in chunk.named_parameters() if each.grad is not None}


@pytest.mark.parametrize("model", [llama(1), gpt(1), moe(1)], ids=["llama", "gpt", "moe"])
@pytest.mark.parametrize(("modules", "full"), [((), False), (("norm", "act"), False), (("mlp",), False), ((), True)])
def test_the_two_parts_are_the_whole(model: ModelSpec, modules: tuple[str, ...], full: bool) -> None:
    chunk = whole(model, modules, full=full)
    backward(loss_of(chunk))
    expected = gradients(chunk)
    chunk.zero_grad()
    with split_backward.splitting(True):
        loss = loss_of(chunk)
        with split_backward.put_off() as roots:
            backward(loss)
        split_backward.make(roots)
    found = gradients(chunk)
    assert found.keys() == expected.keys()
    for name, gradient in expected.items():
        torch.testing.assert_close(found[name], gradient, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("full", [False, True])
def test_each_part_does_its_own_products_only(full: bool) -> None:
    """A layer's weights cost W what they cost F; I costs as much again, and the products that it recomputes."""
    layers = 2
    chunk = whole(llama(layers), full=full)
    head = 2 * BATCH * LENGTH * HIDDEN * VOCAB
    with split_backward.splitting(True):
        with products() as forward:
            loss = loss_of(chunk)
        with split_backward.put_off() as roots, products() as inputs:
            backward(loss)
        with products() as weights:
            split_backward.make(roots)
    of_layers = forward[0] - head
    # A recomputed layer stops before its last product, the feed-forward block's.
    redone = of_layers - layers * 2 * BATCH * LENGTH * INNER * HIDDEN if full else 0
    assert weights[0] == of_layers
    assert inputs[0] == of_layers + 2 * head + redone


@pytest.mark.parametrize("full", [False, True])
def test_what_waits_is_what_the_products_of_the_weights_need(full: bool) -> None:
    """Inputs and gradients of the outputs: two norm outputs, two gradients of the residual stream, the core's output;
    gradients of q, k, v and of gate and up; the activation. Recomputed or not."""
    chunk = whole(llama(2), full=full)
    memory = PeakMemory(chunk.parameters())
    before = memory.current
    with memory.following(), split_backward.splitting(True):
        loss = loss_of(chunk)
        with split_backward.put_off() as roots:
            backward(loss)
        of_gradients = sum(each.grad.numel() for each in chunk.parameters() if each.grad is not None)
        kept = memory.current - before - 8 * of_gradients
        split_backward.make(roots)
    per_token = 2 * (5 * HIDDEN + (HIDDEN + 2 * HIDDEN // 2) + 3 * INNER)
    tables = 2 * 8 * LENGTH * 4  # of the rotary positions, and the loss itself
    assert kept == pytest.approx(8 * BATCH * LENGTH * per_token, abs=tables + 8 * 64)


# ---- planted faults


def twice(actions: list[Action]) -> list[Action]:
    found = next(each for each in actions if each.kind == "W")
    return [*actions, found]


def dropped(actions: list[Action]) -> list[Action]:
    found = next(each for each in actions if each.kind == "W")
    return [each for each in actions if each != found]


def too_early(actions: list[Action]) -> list[Action]:
    found = next(each for each in actions if each.kind == "W")
    return [found, *dropped(actions)]


@pytest.mark.parametrize(("broken", "message"), [
    (twice, "weights of micro-batch 0, chunk 0: nothing waits for it"),
    (dropped, "no gradients of weights for micro-batch 0 of chunk 0"),
    (too_early, "twice or too early"),
])  # fmt: skip
def test_a_schedule_that_forgets_or_repeats_weights_is_reported(broken: Any, message: str) -> None:
    def plant(trainer: Trainer, rank: int) -> None:
        trainer.pipeline.actions = broken(list(trainer.pipeline.actions))

    with pytest.raises(RuntimeError, match=message):
        run(job("pp2-zbh1-dp1-mbs1-z0-rnone", steps=1), plant)


def test_weights_after_the_optimizer_are_reported() -> None:
    """The last W of every step is done at the start of the next one."""

    def plant(trainer: Trainer, rank: int) -> None:
        trainer.pipeline.actions = [trainer.pipeline.actions[-1], *trainer.pipeline.actions[:-1]]

    with pytest.raises(RuntimeError, match="nothing waits for it"):
        run(job("pp2-zbh1-dp1-mbs1-z0-rnone", steps=2), plant)


def test_only_schedules_that_split_pay_for_it() -> None:
    assert not Pipeline.splits.fget(_WithActions("FB"))  # type: ignore[attr-defined]
    assert Pipeline.splits.fget(_WithActions("FIW"))  # type: ignore[attr-defined]


class _WithActions:
    def __init__(self, kinds: str) -> None:
        self.actions = [Action(kind, 0, 0) for kind in kinds]  # type: ignore[arg-type]
