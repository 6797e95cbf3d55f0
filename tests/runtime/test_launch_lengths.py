"""`launch` with a plan for documents of mixed lengths: parity in a rehearsal, and the refusals."""

from __future__ import annotations

from pathlib import Path

import pytest
from meshwright.planner import api
from meshwright.planner.document.sampler_plan import sampler_path

from ..snapshots import run_here
from .launched import finish, start

pytestmark = pytest.mark.slow  # for the plan that they share


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Path:
    planned = api.plan_documents(model="llama-2-7b", cluster="dgx-a100-40gb:2", global_batch=48, num_batches=2,
                                 lengths="512:60,2048:30,4096:8,16384:2", max_len="16K")  # fmt: skip
    path = tmp_path_factory.mktemp("plan") / "plan.json"
    path.write_text(planned.document().model_dump_json(), encoding="utf-8")
    sampler_path(path).write_text("\n".join(planned.sampler_lines()), encoding="utf-8")
    return path


def test_a_rehearsal_trains_what_one_process_trains_in_the_planned_memory(plan: Path) -> None:
    code, out, err = finish(start(str(plan), "--scale-down", "--check-parity", "--steps", "2"))
    assert code == 0, out + err
    assert "agree with the single-process run" in out
    assert "GPUs 16 -> 4" in out  # 4 ranks of cp


@pytest.mark.parametrize(("words", "message"), [
    (("--keep", "cp=2"), "is shrunk to 4 ranks only"), (("--eval-data", "."), "--eval-data: not with a plan for"),
])  # fmt: skip
def test_flags_of_one_length_are_refused(words: tuple[str, ...], message: str, plan: Path) -> None:
    refused = run_here("launch", str(plan), "--scale-down", *words)
    assert refused.code != 0
    assert message in " ".join((refused.out + refused.err).split())


def test_a_plan_without_its_batches_is_refused(plan: Path, tmp_path: Path) -> None:
    alone = tmp_path / "alone.json"
    alone.write_bytes(plan.read_bytes())
    refused = run_here("launch", str(alone), "--scale-down")
    assert refused.code == 2
    assert "alone.batches.jsonl" in refused.out + refused.err
