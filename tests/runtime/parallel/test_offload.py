"""Activations in host memory: the same training, and of one layer at a time on the device."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

import pytest
import torch
from meshwright.cost_models.specs.workload import Lora, Workload
from meshwright.planner import api
from meshwright.runtime.job import job_of, unsupported
from meshwright.runtime.parallel import host, offload
from meshwright.runtime.parallel.mesh import build_mesh
from meshwright.runtime.parallel.schedules import custom_order
from meshwright.runtime.rehearsal import dry_run
from meshwright.runtime.rehearsal.pricing import predicted_bytes
from meshwright.runtime.status import Status
from meshwright.runtime.trainer import Trainer

from meshwright.errors import UnsupportedError

from ..fork import TIMEOUT_S, fork, peak_bytes
from ..jobs import job
from ..rehearsal.test_memory import rehearsal
from ..rehearsal.test_parity import model_for, parity_of


@pytest.mark.parametrize(
    "text",
    [
        "llama:dp1-mbs1-z0-rnone-oact", "llama:pp2-dp1-mbs1-z0-rnone-oact", "llama:pp2-vpp2-dp1-mbs1-z0-rnone-oact",
        "gpt:pp2-gpipe-dp1-mbs1-z0-rfull1-oact", "llama:tp2-dp2-mbs1-z3-rnone-oopt+act", "llama:dp2-mbs1-z3-rfull-oact",
        "llama:dp2-mbs1-z2-rsel(norm+act)-oact", "llama:cp2r-dp1-mbs1-z0-rsel-oact",
        "gpt:tp2-cp2u-dp1-mbs1-z1-rsel(attn)-oact", "moe:tp2-dp2-ep2-mbs1-z3-rsel(act+moe)-oopt+act",
        "deepseek:tp2-dp1-ep2-mbs1-z0-rsel(attn+mla)-oact", "deepseek:dp2-mbs1-z3-rsel(norm+mla)-oact",
        "shared:tp2-pp2-dp1-ep2-mbs1-z0-rnone-oact",
    ],
)  # fmt: skip
def test_trains_the_same_model(text: str) -> None:
    name, _, layout_id = text.partition(":")
    verdict = parity_of(job(layout_id, model_for(name, layout_id), stack_changes={"sharded_states": "zero"}))
    assert verdict.agrees, verdict.as_dict()


def test_with_adapters() -> None:
    wanted = job("tp2-pp2-dp1-mbs1-z0-rnone-oact", lora=Lora(rank=4, targets=("q", "down")), learning_rate=1.0)
    assert parity_of(wanted).agrees


@pytest.mark.parametrize("kept", ["half", "nothing"])
def test_what_does_not_come_back_whole_is_noticed(kept: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fetch = offload._Piece.fetch

    def worse(piece: offload._Piece) -> torch.Tensor:
        away = piece.here is None
        found = fetch(piece)
        if away and found.is_floating_point():
            found.mul_(0.5 if kept == "half" else 0.0)
        return found

    monkeypatch.setattr(offload._Piece, "fetch", worse)
    assert not parity_of(job("dp1-mbs1-z0-rnone-oact")).agrees


@pytest.mark.parametrize(
    "text",
    [
        "dp1-mbs1-z0-rnone-oact", "dp2-mbs1-z2-rsel(norm)-oact", "dp4-sh2-mbs1-z3-rnone-oact", "dp2-mbs1-z3-rfull-oact",
        "pp2-dp1-mbs1-z0-rnone-oact", "pp2-gpipe-dp1-mbs1-z0-rnone-oact", "pp2-vpp2-dp1-mbs1-z0-rnone-oact",
        "tp2-pp2-dp1-mbs2-z1-rfull1-oact", "dp1-mbs1-z0-rsel(attn+norm+act)-oopt+act",
        "tp2-cp2u-dp1-mbs1-z0-rnone-oact",
        "moe:dp2-ep2-mbs1-z1-rsel(act+moe)-oact",
    ],
)  # fmt: skip
def test_memory_within_five_percent(text: str) -> None:
    """Traced, with the kernels of a GPU."""
    kind, _, layout_id = text.rpartition(":")
    wanted = rehearsal(layout_id, kind or "llama")
    for stage, planned in enumerate(predicted_bytes(wanted)):
        traced = dry_run.trace(wanted, stage)
        assert planned["allocated"] == pytest.approx(traced.allocated_bytes, rel=0.05), traced


@pytest.mark.parametrize("layout_id", ["dp1-mbs1-z0-rnone-oact", "tp2-dp1-mbs1-z0-rnone-oact"])
def test_a_run_holds_what_was_predicted(layout_id: str) -> None:
    """And less than without, by three of four layers."""
    wanted = rehearsal(layout_id)
    kept = replace(wanted, layout=replace(wanted.layout, offload=0))
    peaks, without = peak_bytes(wanted), peak_bytes(kept)
    (planned,) = predicted_bytes(wanted)
    assert planned["allocated"] == pytest.approx(max(peaks), rel=0.05)
    (all_layers,) = predicted_bytes(kept)
    saved = all_layers["activations"] - planned["activations"]
    assert max(without) - max(peaks) == pytest.approx(saved, rel=0.1)


def test_a_split_backward_pass_is_refused() -> None:
    """What waits for the gradients of weights would not go to the host."""
    wanted = job("pp2-zbh1-dp1-mbs1-z0-rnone")
    layout = replace(wanted.layout, offload=2)
    found = unsupported(layout, wanted.model, Workload(seq_len=16, global_batch=8), wanted.stack)
    assert "zb-h1: what waits" in (found or "")
    plain = job("pp2-dp1-mbs1-z0-rnone-oact")
    with pytest.raises(UnsupportedError, match="splits the backward pass"):
        replace(plain, custom_order=custom_order("zb-h2", plain)).check_states()


def test_plans_of_both_kinds() -> None:
    """The target takes what the runtime runs, and nothing more."""
    asked: dict[str, Any] = {"model": "llama-3.2-1b", "cluster": "8xrtx-4090", "seq_len": 2048, "global_batch": 64,
                             "target": "meshwright"}  # fmt: skip
    plan = api.plan(**asked, fix={"offload": "act", "pp": 2})
    assert {candidate.to_layout().schedule for candidate in plan.candidates} <= {0, 1, 2}
    assert job_of(plan, 1).offloads_activations


# ---- threads of the optimizer on the host


@pytest.mark.parametrize(
    ("cores", "ranks", "threads"), [(8, "2", 4), (8, "3", 2), (2, "4", 1), (8, None, 1)]
)
def test_a_rank_has_its_share_of_the_cores(
    cores: int, ranks: str | None, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(cores)))
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    if ranks is not None:
        monkeypatch.setenv("LOCAL_WORLD_SIZE", ranks)
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with host.threads(wanted=False):
            assert torch.get_num_threads() == 1
        with host.threads():
            assert torch.get_num_threads() == threads
        assert torch.get_num_threads() == 1
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize(("layout_id", "threads"), [("dp1-mbs1-z0-rnone-oopt", 3), ("dp1-mbs1-z0-rnone", 1)])
def test_the_optimizer_on_the_host_runs_with_them(
    layout_id: str, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host, "core_share", lambda: 3)
    wanted = job(layout_id)

    def one(rank: int) -> int:
        mesh = build_mesh(wanted.layout, rank, Status(), TIMEOUT_S)
        trainer, seen = Trainer(wanted, mesh, torch.device("cpu")), list[int]()
        monkeypatch.setattr(trainer.optimizer, "step", lambda: seen.append(torch.get_num_threads()))
        trainer.step(0)
        return seen[0]

    assert fork(1, one) == [threads]
