"""`explain` and `report` of a plan for documents of mixed lengths: seconds, waiting, and the two commands."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from meshwright.planner import api
from meshwright.planner.document.lengths_plan import CostsPart, LengthsPlan
from meshwright.planner.document.sampler_plan import SamplerBatch, SamplerGroup, sampler_path
from meshwright.planner.drivers.mixed_lengths import MixedLengthsPlan
from meshwright.planner.explain.mixed_lengths import LengthsExplanation, explain_lengths

from meshwright.errors import InputError

from ...snapshots import run_here


@cache
def planned() -> MixedLengthsPlan:
    return api.plan_documents(model="llama-2-7b", cluster="dgx-a100-40gb:2", global_batch=48, num_batches=2,
                              lengths="512:60,2048:30,4096:8,16384:2", max_len="16K")  # fmt: skip


def batches() -> list[SamplerBatch]:
    _, *lines = planned().sampler_lines()
    return list(map(SamplerBatch.model_validate_json, lines))


def explained(step: int = 1) -> LengthsExplanation:
    return explain_lengths(planned().document(), batches(), step)


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    path = tmp_path / "plan.json"
    path.write_text(planned().document().model_dump_json(), encoding="utf-8")
    sampler_path(path).write_text("\n".join(planned().sampler_lines()), encoding="utf-8")
    return path


def by_hand() -> tuple[LengthsPlan, SamplerBatch]:
    """Two ranks, a second per token on one and half of it on both: a micro-batch of 4 and 2 s, one of 1 s."""
    costs = CostsPart(degrees=(1, 2), grid=(1.0, 8.0), token_s=((1.0, 0.5), (1.0, 0.5)), micro_batch_s=0.25, once_s=3.0)
    plan = planned().document().model_copy(update={"costs": costs, "ranks": 2, "rank_tokens": 100})
    one, other = (SamplerGroup(cp=1, ranks=(rank,), seqs=(rank,)) for rank in (0, 1))
    both = SamplerGroup(cp=2, ranks=(0, 1), seqs=(2,))
    degrees = ((2,), *(policy.degrees for policy in plan.policies[1:]))
    policies = tuple(policy.model_copy(update={"degrees": own, "costs": None})
                     for policy, own in zip(plan.policies, degrees, strict=True))  # fmt: skip
    plan = plan.model_copy(update={"policies": policies})
    return plan, SamplerBatch(batch=0, lengths=(4, 2, 2), microbatches=((one, other), (both,)))


def test_groups_wait_for_the_slowest_of_their_micro_batch() -> None:
    plan, batch = by_hand()
    result = explain_lengths(plan, [batch])
    first, second = result.step.micro_batches
    assert [(group.busy_s, group.waits_s) for group in first.groups] == [(4.0, 0.0), (2.0, 2.0)]
    assert [(group.busy_s, group.waits_s) for group in second.groups] == [(1.0, 0.0)]
    assert result.step.seconds == 4.0 + 1.0 + 2 * 0.25 + 3.0
    idle = {policy.name: policy for policy in result.policies}
    assert idle["per sequence"].idle == pytest.approx(2.0 / (2 * 4.0 + 2 * 1.0))
    assert idle["per sequence"].waits_s == pytest.approx(2.0 / 2)
    assert idle["static"].idle == 0.0  # groups of all ranks
    single, pair = result.degrees
    assert (single.degree, single.groups, single.documents, single.tokens) == (1, 2.0, 2.0, 0.75)
    assert (single.busy_s, single.waits_s, single.slowest) == (3.0, 1.0, 0.5)
    assert (pair.degree, pair.busy_s, pair.waits_s, pair.slowest) == (2, 1.0, 0.0, 0.5)


def test_steps_take_the_seconds_of_the_plan() -> None:
    seconds = [explained(step).step.seconds for step in (1, 2)]
    assert np.mean(seconds) == pytest.approx(planned().per_sequence.mean_s)
    assert seconds == pytest.approx([plan.step_s for plan in planned().per_sequence.plans])


def test_all_documents_and_tokens_are_in_the_tables() -> None:
    result = explained()
    for rows in (result.lengths, result.degrees):
        assert sum(row.tokens for row in rows) == pytest.approx(1.0)
    assert sum(row.documents for row in result.lengths) == pytest.approx(1.0)
    assert sum(row.documents for row in result.degrees) == pytest.approx(48)
    assert [row.longest for row in result.lengths] == [1024, 2048, 4096, 16384]
    assert {degree for row in result.lengths for degree in row.degrees} == set(planned().per_sequence.degrees)


def test_a_step_that_is_not_there_is_refused() -> None:
    with pytest.raises(InputError, match="the plan has no step 3") as error:
        explained(3)
    assert error.value.hint == "it has 1 to 2"


def test_explain_shows_lengths_degrees_and_waiting(saved: Path) -> None:
    result = run_here("explain", saved.name, "2", cwd=saved.parent)
    assert result.code == 0, result.err
    for words in ("ranks wait %", "tokens up to", "slowest in %", "Step 2: ", "waits s"):
        assert words in result.out
    document = json.loads(run_here("explain", saved.name, "--json", cwd=saved.parent).out)
    assert (document["kind"], document["step"]["number"]) == ("lengths-explanation", 1)
    assert [policy["name"] for policy in document["policies"]] == ["static", "adaptive", "per sequence"]


def test_report_draws_every_group_of_the_step(saved: Path) -> None:
    result = run_here("report", saved.name, "-o", "page.html", "--json", cwd=saved.parent)
    assert result.code == 0, result.err
    page = (saved.parent / "page.html").read_text(encoding="utf-8")
    micro_batches = json.loads(result.out)["step"]["micro_batches"]
    assert page.count("<rect") == sum(len(micro_batch["groups"]) for micro_batch in micro_batches)
    assert "Where every number comes from" in page
    assert "per sequence" in page


def test_flags_of_one_layout_and_lost_batches_are_refused(saved: Path) -> None:
    refused = run_here("explain", saved.name, "--plot", cwd=saved.parent)
    assert refused.code == 2
    assert "--plot goes with a plan of one layout" in refused.err
    sampler_path(saved).unlink()
    lost = run_here("explain", saved.name, cwd=saved.parent)
    assert lost.code == 2
    assert "plan.batches.jsonl" in lost.err
    emitted = run_here("emit", saved.name, cwd=saved.parent)
    assert emitted.code == 2
    assert "only our runtime trains by it" in emitted.err
    compared = run_here("diff", saved.name, saved.name, cwd=saved.parent)
    assert compared.code == 2
    assert "a plan of documents with a degree each" in compared.err
