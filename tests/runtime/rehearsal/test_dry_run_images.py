"""The traced peak of a model with a vision tower is that of a real run to the byte, and near that of the planner."""

from __future__ import annotations

from typing import Any

import pytest
from meshwright.planner import api
from meshwright.runtime.job import job_of
from meshwright.runtime.rehearsal import dry_run
from meshwright.runtime.rehearsal.traced import Comparison, distinct_stages

from ..fork import peak_bytes
from ..jobs import vision, with_images


@pytest.mark.parametrize(
    ("layout_id", "frozen"),
    [("dp2-mbs1-z3-rnone", False), ("tp2-dp1-mbs2-z1-rsel(norm+act)", True), ("pp2-dp1-mbs1-z0-rfull", False)],
)
def test_equals_a_real_run(layout_id: str, frozen: bool) -> None:
    wanted = with_images(layout_id, vision(), dtype="fp32", steps=2, freezes_tower=frozen)
    layout = wanted.layout
    others = 8 * (wanted.global_batch - wanted.global_batch // layout.dp) * (wanted.seq_len + 1)
    early = 4 * layout.micro_batch * wanted.seq_len * wanted.model.hidden if layout.pp > 1 else 0
    traced = [dry_run.trace(wanted, stage, gpu=False).allocated_bytes for stage in range(layout.pp)]
    peaks = peak_bytes(wanted)
    more = [peaks[stage * wanted.world_size // layout.pp] - planned - others for stage, planned in enumerate(traced)]
    assert set(more) <= {0, early}, "bytes that a real run has and the trace has not, by stage"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("layout_id", "how"),
    [
        ("tp4-dp2-mbs1-z1-rfull", {"images": "2@512x512"}), ("dp8-mbs1-z3-rfull", {"images": "4@1024x1024"}),
        ("tp4-dp2-mbs1-z1-rsel", {"images": "4@1024x1024"}),
        ("tp4-dp2-mbs1-z1-rsel", {"images": "4@1024x1024", "freeze_tower": True}),
        ("tp2-pp4-dp1-mbs1-z1-rnone", {"images": "8@768x1024"}),
        ("tp4-pp2-zbh1-dp1-mbs1-z1-rnone", {"images": "2@1024x1024"}),
        ("dp8-mbs1-z1-rsel", {"images": "2@1024x1024", "lora": 16}),
    ],
)  # fmt: skip
def test_agrees_with_the_planner(layout_id: str, how: dict[str, Any]) -> None:
    """Qwen3-VL-8B, on every distinct stage."""
    plan = api.evaluate(None, layout_id, model="qwen3-vl-8b", cluster="dgx-h100:1", seq_len=8192, global_batch=64,
                        target="meshwright", **how)  # fmt: skip
    job = job_of(plan, 1)
    for stage in distinct_stages(job):
        compared = Comparison.of(dry_run.trace(job, stage), plan.best.memory[stage].model_dump())
        assert abs(compared.difference) < 0.02, (stage, compared.difference, compared.terms[:3])
