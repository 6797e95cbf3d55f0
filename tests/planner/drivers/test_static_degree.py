"""Plans of mixed lengths for frameworks of one degree: packs of the same tokens, files that check, and the reason."""

from __future__ import annotations

from pathlib import Path

import pytest
from meshwright.planner import api
from meshwright.planner.drivers.static_degree import packed
from meshwright.planner.request.load import load_request
from meshwright.planner.request.resolve import resolve

from ...snapshots import run_here

ASKED = {"model": "llama-3.1-8b", "cluster": "dgx-h100:1", "global_batch": 64}


@pytest.mark.parametrize(("lengths", "packs", "seq_len"), [
    ("4096:1", 64, 4096),  # as many sequences as documents
    ("1024:3,13312:1", 16, 16384),  # 64 x 4,096 tokens; 13,312 of the longest fit 16 times
    ("1000:63,100000:1", 1, 163072),  # fewer tokens than two of the longest
])  # fmt: skip
def test_packs_hold_the_longest_document_and_the_tokens_of_a_step(lengths: str, packs: int, seq_len: int) -> None:
    longest = max(int(part.split(":")[0]) for part in lengths.split(","))
    resolved = resolve(load_request(None, {**ASKED, "lengths": lengths, "max_len": longest}))
    workload = packed(resolved, longest).workload
    assert (workload.global_batch, workload.seq_len) == (packs, seq_len)
    assert workload.seq_len >= longest
    tokens = 64 * (resolved.workload.mean_len or 0.0)
    assert tokens <= packs * seq_len < tokens + packs * 256


def test_torchtitan_gets_the_fastest_layout_of_one_degree_and_the_reason(tmp_path: Path) -> None:
    planned = api.plan_documents(**ASKED, lengths="1024:3,13312:1", max_len=13312, num_batches=1)  # type: ignore[arg-type]
    (tmp_path / "plan.json").write_text(planned.document().model_dump_json(), encoding="utf-8")
    written = run_here("emit", "plan.json", "--to", "torchtitan", "-d", "run", cwd=tmp_path)
    assert written.code == 0, written.err
    shown = " ".join(written.err.split())
    assert "torchtitan has one context-parallel degree for all documents of a run" in shown
    assert f"{planned.per_sequence.mean_s:.3g} s with a degree for each document" in shown
    text = (tmp_path / "run" / "torchtitan_plan.py").read_text(encoding="utf-8")
    assert "seq_len=16384" in text
    assert "global_batch_size=16" in text
    checked = run_here("check", "run", cwd=tmp_path)
    assert checked.code == 0, checked.out + checked.err
    kept = run_here("emit", "plan.json", cwd=tmp_path)
    assert kept.code == 2
    assert "`meshwright launch` trains it" in " ".join(kept.err.split())
