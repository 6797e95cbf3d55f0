"""Multi-token prediction by modules of several layers, and by modules that share weights."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest
from meshwright.cost_models.layouts import parse
from meshwright.cost_models.quantities.flops import model_flops
from meshwright.cost_models.quantities.stages import MTP
from meshwright.planner.evaluation.staged import Staged
from meshwright.planner.request.load import request_from_dict
from meshwright.planner.request.resolve import resolve
from meshwright.profiles.model.load import load_model

from ..mtp_parameters import mtp_parameters

SHARED = load_model("nemotron-3.5-lightning-30b-a3b")[0]
APART, NONE = replace(SHARED, mtp_shared=False), replace(SHARED, mtp_layers=0)
REQUEST = {"model": "nemotron-3.5-lightning-30b-a3b", "cluster": "dgx-h100:2", "target": "megatron",
           "workload": {"seq_len": 8192, "global_batch": 512}}  # fmt: skip


@cache
def staged(name: str, layout: str = "pp2-dp8-ep8-mbs1-z1-rfull") -> Staged:
    model = {"shared": SHARED, "apart": APART, "none": NONE}[name]
    return Staged.of(replace(resolve(request_from_dict(REQUEST)), model=model), parse(layout))


def test_shared_weights_compute_as_much_as_others() -> None:
    """Two modules: each two layers (attention, experts), a projection 2h -> h, and a run of the head."""
    problems = {name: staged(name).resolved.problem for name in ("shared", "apart", "none")}
    flops = {name: model_flops(problem) for name, problem in problems.items()}
    assert flops["shared"] == pytest.approx(flops["apart"], rel=1e-12)
    per_sequence = problems["apart"].flops.sum(axis=0)
    kinds = [problems["apart"].pattern.index(index) for index in SHARED.mtp_pattern]
    module = sum(per_sequence[problems["apart"].pattern[place]] for place in kinds)
    edges = len(problems["apart"].variants)
    added = 2 * 512 * (module + per_sequence[edges:][MTP])
    assert flops["apart"] - flops["none"] == pytest.approx(added, rel=1e-9)


def test_the_last_stage_holds_them_and_shared_weights_count_once() -> None:
    """Parameters over all stages, with the copy of the embedding that the modules take their tokens from."""
    held = {name: staged(name).ledger for name in ("shared", "apart", "none")}
    totals = {}
    for name, ledger in held.items():
        parameters = ledger.problem.parameters
        counts = ledger.splits.total[0]
        totals[name] = sum(n * (p.sharded + p.replicated + p.experts) for n, p in zip(counts, parameters, strict=True))
    copy = SHARED.vocab * SHARED.hidden  # of the embedding, on the last stage
    assert totals["shared"] - totals["none"] == pytest.approx(mtp_parameters(SHARED) + copy)
    assert totals["apart"] - totals["none"] == pytest.approx(2 * mtp_parameters(SHARED) + copy)
    last = held["shared"].splits.counts[0][held["shared"].splits.first[0].argmax()]
    assert last[MTP] == 2
    assert held["apart"].splits.layers.sum() == SHARED.num_layers + 4


def test_shared_weights_take_less_memory_and_the_same_time() -> None:
    assert staged("none").device_bytes < staged("shared").device_bytes < staged("apart").device_bytes
    assert staged("none").closed_s < staged("shared").closed_s <= staged("apart").closed_s
