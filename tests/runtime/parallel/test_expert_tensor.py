"""Experts split over etp ranks train what one process trains, alone and with every other axis, send what the planner
counts and hold what it predicts; planted faults are noticed; what does not divide is refused.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from meshwright.cost_models.layouts import Layouts, parse
from meshwright.cost_models.quantities.tables import index_keys
from meshwright.cost_models.specs.model import MixtureOfExperts, ModelSpec
from meshwright.cost_models.specs.workload import Workload
from meshwright.planner import api
from meshwright.planner.request.load import request_from_dict
from meshwright.planner.request.resolve import resolve
from meshwright.planner.targets.registry import TARGETS
from meshwright.runtime import reference
from meshwright.runtime.job import Job, job_of, unsupported
from meshwright.runtime.model import dispatch, experts
from meshwright.runtime.parallel.comm import Group
from meshwright.runtime.parallel.mesh import build_mesh, rank_lists
from meshwright.runtime.rehearsal import dry_run
from meshwright.runtime.rehearsal.parity import LEAST_CHANGE, compare_memory
from meshwright.runtime.rehearsal.pricing import predicted_bytes, problem_of, tables_of
from meshwright.runtime.status import Status
from meshwright.runtime.trainer import Trainer
from torch import Tensor

from ..fork import TIMEOUT_S, Break, fork, peak_bytes
from ..jobs import STACK, job, moe
from ..rehearsal.test_memory import rehearsal
from ..rehearsal.test_parity import layer_of, model_for, no_expert_reduction, parity_of
from ..rehearsal.test_scale import large, small

ALONE = ["moe:dp2-etp2-mbs1-z0-rnone", "moe:dp4-etp4-mbs1-z1-rnone", "biased:dp2-etp2-mbs2-z0-rnone"]
PAIRS = [
    "moe:dp4-ep2-etp2-mbs1-z0-rnone", "moe:tp2-dp1-etp2-mbs1-z0-rnone", "moe:pp2-dp2-etp2-mbs1-z0-rnone",
    "moe:dp2-etp2-mbs1-z1-rnone", "moe:dp2-etp2-mbs1-z2-rnone", "moe:dp2-etp2-mbs1-z3-rnone",
    "moe:dp4-etp2-mbs1-z0-rnone", "moe:dp4-sh2-etp2-mbs1-z3-rnone", "moe:cp2r-dp1-etp2-mbs1-z0-rnone",
    "moe:cp2u-dp1-etp2-mbs1-z1-rnone", "moe:cp2g-dp1-etp2-mbs1-z3-rnone", "moe:dp2-etp2-mbs1-z1-rfull",
    "moe:dp2-etp2-mbs1-z3-rsel(act+moe)", "moe:pp2-vpp2-dp2-etp2-mbs1-z0-rnone", "moe:pp2-zbh1-dp2-etp2-mbs1-z1-rnone",
    "moe:pp2-dpv-vpp2-dp2-etp2-mbs1-z0-rsel(act)", "deepseek:dp2-etp2-mbs1-z2-rnone",
]  # fmt: skip
EIGHT = [
    "moe:tp2-dp2-ep2-etp2-mbs1-z1-rnone", "shared:tp2-pp2-dp2-ep2-etp2-mbs1-z3-rsel(moe)",
    "biased:tp2-dp2-ep2-etp2-mbs1-z3-rnone", "deepseek:tp2-pp2-zbv-vpp2-dp2-ep2-etp2-mbs1-z1-rnone",
]  # fmt: skip


def biased(layers: int = 4) -> ModelSpec:
    """As `moe`, whose experts have biases, as GPT-OSS's have."""
    model = moe(layers)
    kind = model.kinds[0]
    assert isinstance(kind.feed_forward, MixtureOfExperts)
    return replace(model, kinds=(replace(kind, feed_forward=replace(kind.feed_forward, expert_bias=True)),))


def wanted_by(text: str, **changes: Any) -> Job:
    name, _, layout_id = text.partition(":")
    stack = {"sharded_states": "zero", **changes.pop("stack_changes", {})}
    model = biased() if name == "biased" else model_for(name, layout_id)
    return job(layout_id, model, stack_changes=stack, **changes)


@pytest.mark.parametrize("text", [*ALONE, *PAIRS, *(pytest.param(text, marks=pytest.mark.slow) for text in EIGHT)])
def test_trains_the_same_model(text: str) -> None:
    verdict = parity_of(wanted_by(text))
    assert verdict.agrees, verdict.as_dict()
    assert verdict.least_change > LEAST_CHANGE


# ---- planted faults


def sums_stay_apart(trainer: Trainer, rank: int) -> None:
    """Each rank takes its part of the results for the whole of them."""

    def own(rows: Tensor, etp: Group, shares: list[int]) -> Tensor:
        return torch.split(rows, shares)[etp.rank]

    dispatch._summed = own  # type: ignore[assignment]


def gradients_stay_apart(trainer: Trainer, rank: int) -> None:
    """What the other ranks made of a token has no part in its gradient: only gradients are wrong."""

    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        (inverse,) = ctx.saved_tensors
        return torch.split(grads[0][inverse], ctx.shares)[ctx.etp.rank], None, None, None, None

    dispatch._GatherOverEtp.backward = staticmethod(backward)  # type: ignore[method-assign]


def neighbours_rows(trainer: Trainer, rank: int) -> None:
    """Every result goes to the token after its own."""
    before = dispatch._ReduceOverEtp.forward

    def forward(ctx: Any, out: Tensor, etp: Group, shares: Sequence[int], order: Tensor, inverse: Tensor) -> Tensor:
        return before(ctx, out, etp, shares, order, inverse.roll(1))

    dispatch._ReduceOverEtp.forward = staticmethod(forward)  # type: ignore[method-assign]


def swapped_parts(trainer: Trainer, rank: int) -> None:
    """Of one weight, the two ranks hold each other's part of the inner width."""
    block = layer_of(trainer).feed_forward
    assert block is not None
    down = block.tensor("down")
    whole = reference.whole_model(trainer.job).get_submodule("layers.0.feed_forward").get_parameter("down").detach()
    width, other = down.shape[2], 1 - trainer.mesh["etp"].rank
    with torch.no_grad():
        down.copy_(whole[:, :, other * width : (other + 1) * width])


def bias_twice(trainer: Trainer, rank: int) -> None:
    """One rank adds its part of the bias of the last product twice."""
    before = experts.Experts._down_bias
    if rank == 0:
        experts.Experts._down_bias = (  # type: ignore[method-assign]
            lambda self: None if (bias := before(self)) is None else 2 * bias
        )


@pytest.mark.parametrize(
    ("text", "broken"),
    [
        ("moe:dp2-etp2-mbs1-z0-rnone", sums_stay_apart),
        ("moe:tp2-dp1-etp2-mbs1-z0-rnone", gradients_stay_apart),
        ("moe:dp4-ep2-etp2-mbs1-z1-rnone", neighbours_rows),
        ("moe:dp2-etp2-mbs1-z0-rnone", swapped_parts),
        ("biased:dp2-etp2-mbs1-z0-rnone", bias_twice),
        ("moe:dp4-etp2-mbs1-z0-rnone", no_expert_reduction),
    ],
)
def test_planted_faults_are_noticed(text: str, broken: Break) -> None:
    assert not parity_of(wanted_by(text), broken).agrees


# ---- bytes


@pytest.mark.parametrize(
    "layout_id",
    ["dp2-etp2-mbs1-z1-rnone", "tp2-dp1-etp2-mbs1-z0-rnone", "dp4-ep2-etp2-mbs1-z1-rnone",
     "dp2-etp2-mbs1-z3-rsel(act+moe)", "tp2-dp2-ep2-etp2-mbs1-z1-rnone"],
)  # fmt: skip
def test_peak_memory_is_within_five_percent(layout_id: str) -> None:
    wanted = rehearsal(layout_id, "moe")
    peaks = peak_bytes(wanted)
    (row,) = compare_memory(peaks, [stage["allocated"] for stage in predicted_bytes(wanted)])
    assert abs(row.difference) < 0.05, f"{row.measured_bytes:,} measured, {row.difference:+.1%}"


@pytest.mark.parametrize("recompute", ["rnone", "rfull"])
def test_traced_memory_of_a_pipeline_is_within_five_percent(recompute: str) -> None:
    """Traced, with the kernels of a GPU."""
    wanted = rehearsal(f"tp2-pp2-dp2-ep2-etp2-mbs1-z1-{recompute}", "moe")
    for stage, planned in enumerate(predicted_bytes(wanted)):
        assert planned["allocated"] == pytest.approx(dry_run.trace(wanted, stage).allocated_bytes, rel=0.05), stage


def _counted(group: Group, found: Counter[tuple[str, str]]) -> None:
    """Calls and bytes that go through `group` from now on, as `operations.Exchange` counts them: tokens, and before
    them their numbers."""

    def count(name: str, op: str, num_bytes: Any) -> None:
        before = getattr(group, name)

        def counted(*args: Any) -> Any:
            out = before(*args)
            if group.size > 1 and (name != "all_gather" or not out.is_floating_point()):
                found[op, "calls"] += 1
                found[op, "bytes"] += num_bytes(args, out)
            return out

        setattr(group, name, counted)

    count("all_to_all", "all_to_all", lambda args, out: args[1].nbytes)
    count("all_gather", "all_gather", lambda args, out: out.nbytes)  # of numbers; rows of tokens may go through it, too
    count("all_gather_rows", "all_gather", lambda args, out: out.nbytes)
    count("reduce_scatter_rows", "reduce_scatter", lambda args, out: args[0].nbytes)


def sent_exchanges(wanted: Job) -> list[dict[tuple[str, str], float]]:
    """Of one step over ep and etp, by rank."""

    def one(rank: int) -> Counter[tuple[str, str]]:
        mesh = build_mesh(wanted.layout, rank, Status(), TIMEOUT_S)
        trainer, found = Trainer(wanted, mesh, torch.device("cpu")), Counter[tuple[str, str]]()
        for axis in ("ep", "etp"):
            _counted(mesh[axis], found)
        trainer.step(0)
        return found

    return [dict(each) for each in fork(wanted.world_size, one)]


def planned_exchanges(wanted: Job) -> dict[tuple[str, str], float]:
    """The same by the planner's operations: activations of 2 bytes, which are fp32 here."""
    keys, _ = index_keys(Layouts.of([wanted.layout]))
    found: defaultdict[tuple[str, str], float] = defaultdict(float)
    again = wanted.layout.recompute > 0
    passes = wanted.num_micro_batches * wanted.model.num_layers / wanted.layout.pp
    for exchange in tables_of(problem_of(wanted), keys).operations[0].exchanges:
        calls = np.asarray(exchange.forward_calls) * (1 + (again and bool(exchange.tag))) + exchange.backward_calls
        if exchange.axis == "ep" and exchange.num_bytes.item() > 0:
            found[exchange.op, "calls"] += passes * calls.item()
            found[exchange.op, "bytes"] += passes * (1 if exchange.awaited else 2) * (exchange.num_bytes * calls).item()
    return dict(found)


@pytest.mark.parametrize(
    "layout_id",
    ["dp2-etp2-mbs1-z0-rnone", "tp2-dp1-etp2-mbs2-z0-rnone", "dp4-ep2-etp2-mbs1-z1-rnone", "dp4-etp4-mbs1-z1-rsel(moe)",
     "tp2-pp2-dp2-ep2-etp2-mbs1-z1-rsel(moe)", "dp2-ep2-mbs1-z0-rnone"],
)  # fmt: skip
def test_sends_what_the_planner_counts(layout_id: str) -> None:
    """The mean of all ranks, where the busiest has no more than the others: which expert a token chose is a matter of
    chance."""
    wanted = wanted_by(f"moe:{layout_id}", stack_changes={"moe_imbalance": 1.0})
    expected = planned_exchanges(wanted)
    assert set(expected) == {(op, what) for op, axis in (("all_to_all", "ep"), ("all_gather", "etp"),
                                                         ("reduce_scatter", "etp"))
                             for what in ("calls", "bytes") if getattr(wanted.layout, axis) > 1}  # fmt: skip
    every = sent_exchanges(wanted)
    assert {key: sum(each[key] for each in every) / len(every) for key in every[0]} == expected


# ---- where ranks stand, and what is refused


def test_etp_ranks_are_neighbours_and_ep_ranks_etp_apart() -> None:
    lists = rank_lists(job("tp2-dp4-sh2-ep2-etp2-mbs1-z1-rnone").layout)
    assert lists["etp"] == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert lists["ep"] == [[0, 2], [1, 3], [4, 6], [5, 7]]
    assert lists["expert_shard"] == [[rank] for rank in range(8)]
    assert lists["expert_replicate"] == [[0, 4], [1, 5], [2, 6], [3, 7]]


@pytest.mark.parametrize(
    ("layout_id", "reason"),
    [("dp2-etp2-mbs1-z0-rnone", None), ("dp5-etp5-mbs1-z0-rnone", "or etp 5 their width 48"),
     ("dp4-sh2-ep2-etp2-mbs1-z1-rnone", "is not a multiple of ep 2 x etp 2")],
)  # fmt: skip
def test_the_runtime_refuses_what_does_not_divide(layout_id: str, reason: str | None) -> None:
    found = unsupported(parse(layout_id), moe(), Workload(seq_len=16, global_batch=20), STACK)
    assert found == reason if reason is None else found is not None and reason in found


def test_the_target_supports_it_and_its_plans_are_jobs() -> None:
    asked = {"model": "mixtral-8x7b", "cluster": "dgx-h100:2", "target": "meshwright", "fix": {"etp": 2}, "top": 2,
             "workload": {"seq_len": 4096, "global_batch": 64}}  # fmt: skip
    plan = api.plan(request_from_dict(asked))
    resolved = resolve(request_from_dict(asked))
    for choice, candidate in enumerate(plan.candidates, 1):
        layout = candidate.to_layout()
        assert layout.etp == 2
        assert TARGETS["meshwright"].supports(Layouts.of([layout]), resolved.problem)[1] == [None]
        assert job_of(plan, choice).layout == layout


@pytest.mark.parametrize(
    ("layout_id", "shape"),
    [("tp4-dp8-ep4-etp4-mbs1-z1-rnone", (2, 2, 2, 2)), ("dp8-ep4-etp2-mbs1-z1-rnone", (1, 4, 2, 2)),
     ("tp8-dp1-ep2-etp4-mbs1-z0-rnone", (4, 1, 2, 2)), ("tp8-dp1-etp8-mbs1-z0-rnone", (2, 1, 1, 2))],
)  # fmt: skip
def test_a_rehearsal_keeps_both_axes(layout_id: str, shape: tuple[int, ...]) -> None:
    found = small(layout_id, large(moe(8))).layout
    assert (found.tp, found.dp, found.ep, found.etp) == shape
