"""Experts that drop what is beyond their capacity train what one process trains that drops the same, send what the
planner counts and hold what it predicts, and ask no rank how many tokens it sends; what makes no sense is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import ceil
from typing import Any

import pytest
import torch
from meshwright.cost_models.layouts import Layouts
from meshwright.cost_models.quantities import flops
from meshwright.cost_models.quantities.tables import index_keys
from meshwright.cost_models.specs.model import MixtureOfExperts
from meshwright.cost_models.specs.variants import with_capacity
from meshwright.planner import api
from meshwright.planner.document.plan import Plan
from meshwright.planner.request.load import load_request, request_to_dict
from meshwright.runtime import reference
from meshwright.runtime.checkpoint.manifest import Manifest, check_run, run_of
from meshwright.runtime.job import Job, job_of
from meshwright.runtime.model import dispatch, experts
from meshwright.runtime.model.router import within_capacity
from meshwright.runtime.rehearsal import dry_run
from meshwright.runtime.rehearsal.parity import LEAST_CHANGE, compare, compare_memory
from meshwright.runtime.rehearsal.pricing import predicted_bytes, problem_of, tables_of
from meshwright.runtime.rehearsal.scale import scale_down
from meshwright.runtime.trainer import Trainer
from torch import Tensor

from meshwright.errors import InputError

from ..fork import Break, peak_bytes
from ..jobs import job, moe
from ..parallel.test_expert_tensor import planned_exchanges, sent_exchanges
from ..rehearsal.parity_all import middling
from ..rehearsal.test_memory import rehearsal
from ..rehearsal.test_parity import model_for, parity_of

LAYOUTS = [
    "moe:dp1-mbs2-z0-rnone", "moe:dp2-mbs1-z0-rnone", "moe:tp2-dp1-mbs2-z0-rnone", "moe:dp2-ep2-mbs1-z0-rnone",
    "moe:dp2-etp2-mbs1-z1-rnone", "moe:cp2r-dp1-ep2-mbs2-z1-rnone", "moe:cp2u-dp2-ep4-mbs1-z3-rnone",
    "moe:pp2-dp2-ep2-mbs1-z2-rfull", "moe:pp2-zbh1-dp1-mbs1-z0-rsel(act)", "shared:tp2-dp2-ep2-mbs1-z3-rsel(act+moe)",
    "moe:tp2-dp2-ep2-etp2-mbs1-z1-rnone", "deepseek:tp2-cp2u-dp1-ep4-mbs2-z1-rsel(mla+moe)",
]  # fmt: skip


def wanted_by(text: str, factor: float | None, **changes: Any) -> Job:
    name, _, layout_id = text.partition(":")
    model = with_capacity(model_for(name, layout_id), factor)
    return job(layout_id, model, stack_changes={"sharded_states": "zero"}, **changes)


@pytest.mark.parametrize("factor", [0.6, 1.25])
@pytest.mark.parametrize("text", LAYOUTS)
def test_trains_the_same_model(text: str, factor: float) -> None:
    verdict = parity_of(wanted_by(text, factor))
    assert verdict.agrees, verdict.as_dict()
    assert verdict.least_change > LEAST_CHANGE


def test_room_for_every_token_is_what_drops_none() -> None:
    one, other = (reference.train(wanted_by("moe:tp2-dp1-mbs2-z0-rnone", factor)) for factor in (2.0, None))
    assert compare([(s.loss, s.gradient_norm) for s in one], [(s.loss, s.gradient_norm) for s in other]).agrees


def test_what_is_dropped_follows_the_layout() -> None:
    one, other = (reference.train(wanted_by(f"moe:{layout_id}-z0-rnone", 0.6, global_batch=4))
                  for layout_id in ("tp2-dp1-mbs2", "dp1-mbs2"))  # fmt: skip
    assert not compare([(s.loss, s.gradient_norm) for s in one], [(s.loss, s.gradient_norm) for s in other]).agrees


@pytest.mark.parametrize("capacity", [1, 3, 8])
def test_the_largest_weights_stay(capacity: int) -> None:
    """Restated token by token; two tokens have the same weights, and the first of them is taken first."""
    generator = torch.Generator().manual_seed(capacity)
    chosen = torch.stack([torch.randperm(5, generator=generator)[:2] for _ in range(8)])
    weights = torch.rand(8, 2, generator=generator, dtype=torch.float64)
    chosen[6], weights[6] = chosen[1], weights[1]
    weights.requires_grad_()
    found, source = within_capacity(weights, chosen, 5, capacity)
    values = weights.tolist()
    kept = torch.zeros_like(weights)
    for expert in range(5):
        rivals = [(-values[n][k], n, k) for n in range(8) for k in range(2) if chosen[n, k] == expert]
        for _, n, k in sorted(rivals)[:capacity]:
            kept[n, k] = 1
        mine = slice(expert * capacity, (expert + 1) * capacity)
        expected = {n: -w for w, n, _ in sorted(rivals)[:capacity]}
        assert {n: w for n, w in zip(source[mine].tolist(), found[mine].tolist(), strict=True) if w > 0} == expected
        assert len(set(source[mine].tolist())) == capacity
    (grad,) = torch.autograd.grad(found.sum(), weights)
    assert torch.equal(grad, kept)


# ---- planted faults


def the_smallest_stay(trainer: Trainer, rank: int) -> None:
    """One rank drops the tokens with the largest weights."""

    def other(weights: Tensor, chosen: Tensor, experts: int, capacity: int) -> tuple[Tensor, Tensor]:
        _, source = within_capacity((2.0 - weights).detach(), chosen, experts, capacity)
        table = weights.new_zeros(len(weights), experts).scatter(1, chosen, weights).t()
        return table.gather(1, source.view(experts, capacity)).flatten(), source

    if rank == 0:
        experts.within_capacity = other  # type: ignore[attr-defined]


def fillers_count(trainer: Trainer, rank: int) -> None:
    """Tokens that fill an expert up have a small weight in place of none."""
    experts.within_capacity = lambda *args: (  # type: ignore[attr-defined]
        (found := within_capacity(*args))[0].clamp(min=1e-3), found[1]
    )


def one_less(trainer: Trainer, rank: int) -> None:
    """The capacity is rounded down on the ranks."""
    before = MixtureOfExperts.capacity
    MixtureOfExperts.capacity = lambda self, tokens: before(self, tokens) - 1  # type: ignore[method-assign]


@pytest.mark.parametrize("broken", [the_smallest_stay, fillers_count, one_less])
def test_planted_faults_are_noticed(broken: Break) -> None:
    assert not parity_of(wanted_by("moe:dp2-ep2-mbs1-z0-rnone", 0.6), broken).agrees


# ---- bytes


@pytest.mark.parametrize("layout_id", ["dp2-ep2-mbs1-z0-rnone", "tp2-dp2-ep2-etp2-mbs1-z1-rsel(moe)"])
def test_sends_what_the_planner_counts(layout_id: str) -> None:
    """On every rank the same, whatever the tokens chose and whatever imbalance the stack has."""
    wanted = wanted_by(f"moe:{layout_id}", 0.6)
    expected = planned_exchanges(wanted)
    assert expected["all_to_all", "bytes"] > 0
    assert all(each == expected for each in sent_exchanges(wanted))


def test_no_rank_is_asked_how_many_tokens_it_sends() -> None:
    def never(self: dispatch.Dispatch, counts: Sequence[int], tokens: Tensor) -> Any:
        raise AssertionError("the host waits for the device")

    def plant(trainer: Trainer, rank: int) -> None:
        dispatch.Dispatch._table = never  # type: ignore[method-assign]

    assert parity_of(wanted_by("moe:dp2-ep2-mbs1-z0-rnone", 1.25), plant).agrees
    with pytest.raises(RuntimeError, match="the host waits"):
        parity_of(wanted_by("moe:dp2-ep2-mbs1-z0-rnone", None), plant)


@pytest.mark.parametrize(("layout_id", "factor"), [("dp2-ep2-mbs1-z1-rnone", 1.5), ("dp1-mbs1-z0-rnone", 1.5),
                                                   ("tp2-dp2-ep2-etp2-mbs1-z1-rnone", 0.75)])  # fmt: skip
def test_peak_memory_is_within_five_percent(layout_id: str, factor: float) -> None:
    wanted = rehearsal(layout_id, "moe")
    wanted = replace(wanted, model=with_capacity(wanted.model, factor))
    peaks = peak_bytes(wanted)
    (row,) = compare_memory(peaks, [stage["allocated"] for stage in predicted_bytes(wanted)])
    assert abs(row.difference) < 0.05, f"{row.measured_bytes:,} measured, {row.difference:+.1%}"


@pytest.mark.parametrize("factor", [0.75, 1.5])
@pytest.mark.parametrize("layout_id", [
    "dp2-ep2-mbs1-z1-rnone", "dp2-ep2-mbs1-z3-rsel(act+moe)",
    pytest.param("tp2-pp2-dp2-ep2-mbs1-z1-rfull", marks=pytest.mark.slow),
])  # fmt: skip
def test_traced_memory_is_within_five_percent(layout_id: str, factor: float) -> None:
    model = with_capacity(middling(moe()), factor)
    wanted = job(layout_id, model, seq_len=4096, dtype="bf16", optimizer="adamw",
                 stack_changes={"sharded_states": "zero"})  # fmt: skip
    for stage, planned in enumerate(predicted_bytes(wanted)):
        traced = dry_run.trace(wanted, stage).allocated_bytes
        assert planned["allocated"] == pytest.approx(traced, rel=0.05), f"stage {stage}"


def test_the_ledger_counts_full_experts_and_the_model_none_of_it() -> None:
    """Products of ceil(top_k x tokens / experts x factor) rows an expert and rank; MFU knows no capacity."""
    wanted = wanted_by("moe:tp2-dp2-ep2-mbs1-z1-rnone", 0.7, seq_len=24)
    plain = wanted_by("moe:tp2-dp2-ep2-mbs1-z1-rnone", None, seq_len=24)
    keys, _ = index_keys(Layouts.of([wanted.layout]))
    (operations, other) = (tables_of(problem_of(each), keys).operations[0] for each in (wanted, plain))
    (up,) = (gemm for gemm in operations.gemms if gemm.name == "experts up")
    rows = ceil(2 * (24 / 2) / 4 * 0.7)
    assert (up.m.item(), up.count.item()) == (2 * rows, 2)  # of two ranks, for two experts of this one
    assert (operations.host_waits, other.host_waits) == (False, True)
    assert flops.model_flops(problem_of(wanted)) == flops.model_flops(problem_of(plain))


# ---- from the request to the run, and what is refused


ASKED: dict[str, Any] = {"cluster": "dgx-h100:1", "seq_len": 4096, "global_batch": 64}


def planned(model: str, factor: Any, layout_id: str = "dp8-ep4-mbs1-z1-rfull") -> Plan:
    return api.evaluate(None, layout_id, model=model, expert_capacity_factor=factor, **ASKED)


def test_the_plan_says_it_and_the_job_has_it() -> None:
    plan = planned("mixtral-8x7b", 1.25)
    assert plan.request["workload"]["expert_capacity_factor"] == 1.25
    wanted = job_of(plan, 1)
    assert wanted.model.capacity_factor == 1.25
    assert scale_down(wanted)[0].model.capacity_factor == 1.25
    plain = planned("mixtral-8x7b", None)
    assert "capacity_factor" not in plain.resolved["model"]["kinds"][0]["feed_forward"]
    assert planned("mixtral-8x7b", 1.5).candidates[0].step_s > plan.candidates[0].step_s


def test_requests_of_before_keep_their_digest() -> None:
    data = request_to_dict(load_request(None, {"model": "mixtral-8x7b", "cluster": "dgx-h100:1"}))
    assert "expert_capacity_factor" not in data["workload"]


def test_a_rehearsal_with_fewer_experts_has_room_for_all_at_most() -> None:
    found = scale_down(job_of(planned("deepseek-v3", 20, "tp2-dp4-ep8-mbs1-z1-rfull"), 1))[0].model
    block = found.kinds[1].feed_forward
    assert isinstance(block, MixtureOfExperts)
    assert block.capacity_factor == block.experts / block.top_k < 20


@pytest.mark.parametrize(
    ("model", "factor", "message"),
    [("llama-3.1-8b", 1.0, "llama-3.1-8b has no experts"), ("mixtral-8x7b", 4.5, "8 experts, 2 per token, 4 has room"),
     ("mixtral-8x7b", 0, "must be more than 0"), ("mixtral-8x7b", "lots", "`lots` is not a number"),
     ("mixtral-8x7b", True, "must be more than 0")],
)  # fmt: skip
def test_what_makes_no_sense_is_refused(model: str, factor: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        planned(model, factor)


@pytest.mark.parametrize("factor", [-1.0, 5.0, "1", True])
def test_an_edited_plan_is_refused_by_field(factor: Any) -> None:
    plan = planned("mixtral-8x7b", 1.25)
    plan.resolved["model"]["kinds"][0]["feed_forward"]["capacity_factor"] = factor
    with pytest.raises(InputError, match=r"resolved\.model\.kinds\.0\.feed_forward\.capacity_factor"):
        job_of(plan, 1)


def test_a_checkpoint_of_another_capacity_is_another_model(tmp_path: Any) -> None:
    saved, now = (wanted_by("moe:dp2-mbs1-z0-rnone", factor) for factor in (1.0, None))
    fields = {name: "" for name in Manifest.__dataclass_fields__}
    manifest = Manifest(**{**fields, "run": run_of(saved), "model": "tiny"})  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"capacity_factor: 1.0 in the checkpoint, none now"):
        check_run(manifest, now, tmp_path)
