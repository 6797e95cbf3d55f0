"""Collectives that run beside compute: which, and how many at a time, so that planned memory holds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from meshwright.runtime.job import Job
from meshwright.runtime.model import flash
from meshwright.runtime.model.block import Block
from meshwright.runtime.model.layer import DecoderLayer
from meshwright.runtime.parallel.comm import Group, Pending
from meshwright.runtime.parallel.mesh import build_mesh
from meshwright.runtime.parallel.reductions import Reductions
from meshwright.runtime.status import Status
from meshwright.runtime.trainer import Trainer
from torch import Tensor

from ..fork import TIMEOUT_S, fork
from ..jobs import job, llama

LAYERS, MICRO_BATCHES = 4, 3  # of `job`


class Watch:
    """Collectives of a rank that were under way while a layer ran forward, or gradients of weights were added up."""

    def __init__(self) -> None:
        self.running: dict[int, str] = {}  # by the id of what is pending
        self.beside: set[int] = set()
        self.overlapped: Counter[str] = Counter()  # by name
        self.most: Counter[str] = Counter()  # at a time, by name

    def started(self, pending: Pending) -> None:
        self.running[id(pending)] = pending.what
        for name, number in Counter(self.running.values()).items():
            self.most[name] = max(self.most[name], number)

    def computes(self) -> None:
        self.beside.update(self.running)

    def waited(self, pending: Pending) -> None:
        name = self.running.pop(id(pending), None)
        if name is not None and id(pending) in self.beside:
            self.overlapped[name] += 1
        self.beside.discard(id(pending))


def watched(wanted: Job) -> Watch:
    """The second step of rank 0."""

    def one(rank: int) -> Watch:
        mesh = build_mesh(wanted.layout, rank, Status(), TIMEOUT_S)
        trainer, watch = Trainer(wanted, mesh, torch.device("cpu")), Watch()
        trainer.step(0)
        trainer.settle()
        start, wait, forward = Group._start, Pending.wait, DecoderLayer.forward

        def starts(*arguments: Any) -> Pending:
            pending = start(*arguments)
            watch.started(pending)
            return pending

        def waits(pending: Pending) -> None:
            watch.waited(pending)
            wait(pending)

        def runs(layer: DecoderLayer, *arguments: Any) -> Any:
            watch.computes()
            return forward(layer, *arguments)

        Group._start, Pending.wait, DecoderLayer.forward = starts, waits, runs  # type: ignore[method-assign, assignment]
        for unit in trainer.units:
            unit.parameters[0].register_hook(lambda grad: watch.computes())  # type: ignore[no-untyped-call]
        trainer.step(1)
        return watch

    result: Watch = fork(wanted.world_size, one)[0]
    return result


@pytest.mark.parametrize(
    ("layout_id", "gathers", "scatters", "reductions"),
    [
        ("dp2-mbs1-z0-rnone", 0, 0, LAYERS + 1),
        ("dp2-mbs1-z1-rnone", 0, LAYERS + 1, 0),
        ("dp2-mbs1-z2-rnone", 0, MICRO_BATCHES * LAYERS, 0),
        ("dp2-mbs1-z3-rfull", 2 * MICRO_BATCHES * (LAYERS - 1), MICRO_BATCHES * LAYERS, 0),
    ],
)
def test_collectives_run_beside_layers(layout_id: str, gathers: int, scatters: int, reductions: int) -> None:
    watch = watched(job(layout_id))
    found = {name: watch.overlapped[name] for name in ("all_gather", "reduce_scatter", "all_reduce")}
    assert found == {"all_gather": gathers, "reduce_scatter": scatters, "all_reduce": reductions}
    if "z1" not in layout_id and "z2" not in layout_id:  # these gather all updated weights at once
        assert watch.most["all_gather"] <= 1
    # A scatter of the head or the embedding blocks beside one of a layer.
    assert max(watch.most["reduce_scatter"], watch.most["all_reduce"]) <= 2


def reductions_and_sends(wanted: Job) -> list[str]:
    """Collectives of gradients, and messages to the stage before, that a rank of the last stage starts in a step."""

    def one(rank: int) -> list[str]:
        mesh = build_mesh(wanted.layout, rank, Status(), TIMEOUT_S)
        trainer, events = Trainer(wanted, mesh, torch.device("cpu")), list[str]()
        trainer.step(0)
        trainer.settle()
        start, send = Group._start, Group.send

        def starts(group: Group, what: str, *arguments: Any) -> Pending:
            events.extend([what] * (what != "all_gather"))
            return start(group, what, *arguments)

        def sends(*arguments: Any) -> Any:
            events.append("send")
            return send(*arguments)

        Group._start, Group.send = starts, sends  # type: ignore[method-assign, assignment]
        trainer.step(1)
        return events

    result: list[str] = fork(wanted.world_size, one)[-1]
    return result


@pytest.mark.parametrize(
    ("layout_id", "reduction", "sends"),
    [("pp2-dp2-mbs1-z0-rnone", "all_reduce", [4]), ("pp2-vpp2-dp2-mbs1-z1-rnone", "reduce_scatter", [10, 1, 1])],
)
def test_a_stage_sends_what_another_waits_for_before_it_reduces_its_gradients(
    layout_id: str, reduction: str, sends: list[int]
) -> None:
    """sends: messages before the first reduction, and between reductions. The last passes of this stage are those of
    the last two micro-batches: of its second chunk, and then of its first."""
    found = reductions_and_sends(job(layout_id))
    wanted = [event for number in sends for event in [*["send"] * number, reduction]]
    assert found[: len(wanted)] == wanted
    assert "send" not in found[len(wanted) :]
    assert found.count(reduction) >= LAYERS // 2


def test_reductions_that_were_put_off_start_one_by_one() -> None:
    started: list[str] = []

    def reduction(name: str) -> Iterator[Pending]:
        started.append(name)
        yield from ()

    all_of_them = Reductions()
    with all_of_them.put_off():
        for name in ("a", "b", "c"):
            all_of_them.add(reduction(name))
        all_of_them.add(reduction("frees memory"), frees=True)
    assert started == ["frees memory"]
    all_of_them.after_pass()
    assert started == ["frees memory", "a"]
    all_of_them.finish()
    assert started == ["frees memory", "a", "b", "c"]


def order_of(wanted: Job) -> list[str]:
    """Messages over cp, attention and products of queries on rank 0, in the first micro-batch of a step."""

    def one(rank: int) -> list[str]:
        mesh = build_mesh(wanted.layout, rank, Status(), TIMEOUT_S)
        trainer, events = Trainer(wanted, mesh, torch.device("cpu")), list[str]()
        start, wait, pass_on, columns = Group._start, Pending.wait, Group.pass_on, Block.columns
        forward, backward = flash.CPU.forward, flash.CPU.backward

        def noting(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
            def noted(*arguments: Any) -> Any:
                events.append(name)
                return function(*arguments)

            return noted

        def starts(group: Group, what: str, *arguments: Any) -> Pending:
            events.extend([f"start {what}"] * (group.axis == "cp"))
            return start(group, what, *arguments)

        def waits(pending: Pending) -> None:
            events.extend([f"wait {pending.what}"] * (pending.group.axis == "cp" and pending.work is not None))
            wait(pending)

        def passes(group: Group, tensor: Tensor) -> Callable[[], Tensor]:
            events.append("start pass")
            return noting("wait pass", pass_on(group, tensor))

        def projects(block: Block, x: Tensor, *names: str) -> list[Tensor]:
            events.extend(["project q"] * ("q" in names))
            return columns(block, x, *names)

        Group._start, Pending.wait, Group.pass_on = starts, waits, passes  # type: ignore[method-assign, assignment]
        Block.columns = projects  # type: ignore[method-assign, assignment]
        object.__setattr__(flash.CPU, "forward", noting("attend", forward))
        object.__setattr__(flash.CPU, "backward", noting("attend back", backward))
        for name, parameter in trainer.chunks[0].named_parameters():
            if name.endswith(("attention.q", "attention.o")):
                parameter.register_hook(noting(f"gradient of {name[-1]}", lambda grad: None))  # type: ignore[no-untyped-call]
        trainer.step(0)
        return events[: len(events) // wanted.num_micro_batches]

    result: list[str] = fork(wanted.world_size, one)[0]
    return result


@pytest.mark.parametrize(
    ("algorithm", "message", "gradients"), [("g", "all_gather", "reduce_scatter"), ("r", "pass", "pass")]
)
def test_keys_travel_beside_queries_and_attention(algorithm: str, message: str, gradients: str) -> None:
    found = order_of(job(f"cp2{algorithm}-dp1-mbs1-z0-rnone", llama(1)))
    assert found == [
        f"start {message}", "project q", "attend", f"wait {message}", "attend",
        f"start {message}", "gradient of o", "attend back", f"wait {message}", "attend back",
        f"start {gradients}", "gradient of q", f"wait {gradients}",
    ]  # fmt: skip
