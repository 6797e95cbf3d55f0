"""The traced peak of an encoder and its decoder is that of a real run to the byte, and near that of the planner."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from meshwright.planner import api
from meshwright.runtime.job import job_of
from meshwright.runtime.rehearsal import dry_run
from meshwright.runtime.rehearsal.traced import Comparison, distinct_stages

from ...snapshots import ROOT
from ..fork import peak_bytes
from ..jobs import t5, with_source


@pytest.mark.parametrize("layout_id", ["dp2-mbs1-z3-rnone", "tp2-dp1-mbs2-z1-rsel(norm+act)", "pp2-dp1-mbs1-z0-rfull"])
def test_equals_a_real_run(layout_id: str) -> None:
    wanted = with_source(layout_id, t5(tied_embeddings=True), dtype="fp32", steps=2)
    layout = wanted.layout
    others = 8 * (wanted.global_batch - wanted.global_batch // layout.dp) * (wanted.row_len + 1)
    early = 4 * layout.micro_batch * 24 * wanted.model.hidden if layout.pp > 1 else 0
    traced = [dry_run.trace(wanted, stage, gpu=False).allocated_bytes for stage in range(layout.pp)]
    peaks = peak_bytes(wanted)
    more = [peaks[stage * wanted.world_size // layout.pp] - planned - others for stage, planned in enumerate(traced)]
    assert set(more) <= {0, early}, "bytes that a real run has and the trace has not, by stage"


@pytest.mark.slow
@pytest.mark.parametrize("layout_id", ["tp8-dp1-mbs16-z0-rnone", "tp2-pp4-dp1-mbs4-z1-rnone",
                                       "tp2-pp4-dp1-mbs4-z1-rfull", "tp4-pp2-zbh1-dp1-mbs4-z1-rnone"])  # fmt: skip
def test_agrees_with_the_planner(layout_id: str, tmp_path: Path) -> None:
    """Layers of T5-11B, four of each stack, on every distinct stage."""
    config = json.loads((ROOT / "tests" / "data" / "configs" / "t5-11b.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "num_layers": 4}))
    plan = api.evaluate(None, layout_id, model=str(tmp_path), cluster="dgx-h100:1", source_len=512, seq_len=128,
                        global_batch=32, target="meshwright")  # fmt: skip
    job = job_of(plan, 1)
    for stage in distinct_stages(job):
        compared = Comparison.of(dry_run.trace(job, stage), plan.best.memory[stage].model_dump())
        assert compared.agrees, (stage, compared.difference, compared.terms[:3])
