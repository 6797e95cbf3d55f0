"""Plans of documents of mixed lengths: policies in order, memory, the sampler plan, and documents that do not fit."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from meshwright.cost_models import build_ledger
from meshwright.cost_models.layouts import Layouts
from meshwright.cost_models.quantities import tables
from meshwright.cost_models.step import step
from meshwright.planner import api
from meshwright.planner.batches.batch_plan import peak_tokens
from meshwright.planner.batches.ledger_costs import Family, families, ledger_costs
from meshwright.planner.batches.one_degree import adaptive, static_degree, with_degree
from meshwright.planner.document.lengths_plan import load_lengths_plan
from meshwright.planner.document.sampler_plan import read_sampler, sampler_path
from meshwright.planner.drivers.mixed_lengths import MixedLengthsPlan
from meshwright.planner.request.load import load_request
from meshwright.planner.request.resolve import resolve

from meshwright.errors import InputError, NoFeasibleLayoutError

SMALL = {"model": "llama-2-7b", "cluster": "dgx-a100-40gb:2", "global_batch": 48, "num_batches": 2}


@cache
def planned() -> MixedLengthsPlan:
    return api.plan_documents(**SMALL, lengths="512:60,2048:30,4096:8,16384:2", max_len="16K")  # type: ignore[arg-type]


def test_every_policy_is_no_slower_than_the_one_before() -> None:
    result = planned()
    assert result.per_sequence.mean_s <= result.adaptive.mean_s <= result.static.mean_s
    assert result.per_sequence.mean_s < result.static.mean_s
    for lengths, unlike in zip(result.batches, result.per_sequence.plans, strict=True):
        assert unlike.step_s <= adaptive(lengths, result.costs).step_s
    assert len(result.static.degrees) == 1


def test_one_degree_has_the_layouts_that_suit_it_best() -> None:
    """A baseline on the layouts of the per-sequence plans would be slower than it has to be."""
    result = planned()
    longest = 16_384
    priced = [costs for family in families(result.resolved) if (costs := ledger_costs(result.resolved, family))]
    assert len(priced) > 10
    for costs in (costs for costs in priced if costs.longest >= longest):
        degree = static_degree(result.batches, costs, longest)
        plans = [with_degree(lengths, costs, degree) for lengths in result.batches]
        assert result.static.mean_s <= np.mean([plan.step_s for plan in plans if plan]) * (1 + 1e-12)
    assert result.document().policy("static").layout_id == str(result.static.widest_layout)


def test_no_rank_holds_more_tokens_than_fit() -> None:
    result = planned()
    for policy in result.policies:
        for plan, lengths in zip(policy.plans, result.batches, strict=True):
            assert peak_tokens(plan, lengths) <= policy.costs.rank_tokens


def test_the_sampler_plan_places_every_document_once() -> None:
    header, *lines = map(json.loads, planned().sampler_lines())
    assert (header["global_batch"], header["seed"], header["ranks"]) == (48, 0, planned().costs.num_ranks)
    for line in lines:
        groups = [group for micro_batch in line["microbatches"] for group in micro_batch]
        assert sorted(k for group in groups for k in group["seqs"]) == list(range(48))
        assert all(group["ranks"][0] % group["cp"] == 0 and len(group["ranks"]) == group["cp"] for group in groups)
        for micro_batch in line["microbatches"]:
            ranks = [rank for group in micro_batch for rank in group["ranks"]]
            assert len(set(ranks)) == len(ranks)
            assert max(ranks) < header["ranks"]


def test_documents_of_one_length_get_the_static_plan() -> None:
    result = api.plan_documents(**SMALL, lengths="4096:1", max_len="4K")  # type: ignore[arg-type]
    assert result.per_sequence.plans == result.static.plans


@pytest.mark.slow
def test_a_document_beyond_all_gpus_is_refused_with_the_number_that_holds_it() -> None:
    with pytest.raises(NoFeasibleLayoutError, match="a document of 1,000,000 tokens does not fit: 16 GPUs") as error:
        api.plan_documents(**SMALL, lengths="512:9,1000000:1", max_len="1024K")  # type: ignore[arg-type]
    assert "32 GPUs hold it" in error.value.hint


def test_a_plan_of_one_layout_refuses_max_len() -> None:
    with pytest.raises(InputError, match="have no single layout"):
        api.plan(model="llama-2-7b", cluster="dgx-a100-40gb:2", lengths="512:1", max_len="1K")


def test_costs_are_those_of_the_ledger() -> None:
    """Full micro-batches of documents of one length cost what the ledger's closed form says of the static layout."""
    fields = {name: value for name, value in SMALL.items() if name != "num_batches"}
    resolved = resolve(load_request(None, {**fields, "lengths": "4096:1", "max_len": "4K"}))
    family = Family(1, "ulysses", "none")
    costs = ledger_costs(resolved, family)
    assert costs is not None
    layout = family.layout(4, 16)
    problem = resolved.problem
    # The layout has 4 sequences of 4,096 tokens in a group of 4 ranks, 3 micro-batches of 16 in a step of 48.
    columns = Layouts.of([layout])
    keys, index = tables.index_keys(columns)
    ledger = build_ledger.build(problem, tables.build(problem, keys), columns, index)
    priced = float(step.price(ledger, resolved.rates).step_s[0])
    group_s = 4 * costs.seconds(np.array([4096.0]))[0, 2]
    assert costs.once_s + 3 * (costs.micro_batch_s + group_s) == pytest.approx(priced, rel=0.01)


def test_the_files_of_a_plan_are_read_back(tmp_path: Path) -> None:
    result, path = planned(), tmp_path / "plan.json"
    path.write_text(result.document().model_dump_json(), encoding="utf-8")
    sampler_path(path).write_text("\n".join(result.sampler_lines()), encoding="utf-8")
    document = load_lengths_plan(path)
    assert document == result.document()
    batches = read_sampler(sampler_path(path), result.document().header)
    assert [batch.lengths for batch in batches] == [tuple(map(int, lengths)) for lengths in result.batches]


def test_batches_of_another_plan_are_refused_with_each_field(tmp_path: Path) -> None:
    path = tmp_path / "plan.batches.jsonl"
    path.write_text("\n".join(planned().sampler_lines()), encoding="utf-8")
    other = planned().document().header.model_copy(update={"seed": 7, "global_batch": 64})
    with pytest.raises(InputError) as error:
        read_sampler(path, other)
    text = str(error.value)
    assert "seed: is 0, the plan has 7" in text
    assert "global_batch: is 48, the plan has 64" in text


@pytest.mark.parametrize(("damage", "message"), [
    (lambda line: line["lengths"].pop(), "47 documents, the plan has 48"),
    (lambda line: line["microbatches"][0][-1]["seqs"].pop(), "do not hold every document once"),
    (lambda line: line["microbatches"][0][0].update(ranks=[1, 2]), "consecutive ranks from a multiple"),
    (lambda line: line["microbatches"][0].append({"cp": 1, "ranks": [99], "seqs": []}), "at least 1 item"),
    (lambda line: line["lengths"].__setitem__(0, 10**9), "tokens, "),
])  # fmt: skip
def test_a_damaged_batch_is_refused(damage: Callable[[dict[str, Any]], None], message: str, tmp_path: Path) -> None:
    header, first, *rest = planned().sampler_lines()
    line = json.loads(first)
    damage(line)
    path = tmp_path / "plan.batches.jsonl"
    path.write_text("\n".join([header, json.dumps(line), *rest]), encoding="utf-8")
    with pytest.raises(InputError, match="line 2") as error:
        read_sampler(path, planned().document().header)
    assert message in str(error.value)
