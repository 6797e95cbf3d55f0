"""The layouts that a plan lists: each is the best at what it is listed for, by the definition applied to all."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from meshwright.cli.main import main
from meshwright.cost_models.layouts import Layouts, parse
from meshwright.planner.accuracy.recipes import DEGREES, published_meshes
from meshwright.planner.drivers.alternatives import FAMILIES, listed_rows
from meshwright.planner.drivers.families import best_of_families
from meshwright.planner.drivers.preference import complexity
from meshwright.planner.drivers.watch import Watch
from meshwright.planner.evaluation import intervals
from meshwright.planner.request.load import load_request
from meshwright.planner.request.resolve import resolve
from meshwright.planner.search.executors import Here
from meshwright.planner.search.pricing import price_layouts
from meshwright.profiles.model.load import load_model

from meshwright import plan

REQUESTS: dict[str, dict[str, Any]] = {
    "published": {"model": "llama-3.1-8b", "cluster": "dgx-h100:2", "global_batch": 512, "top": 6},
    "not published": {"model": "llama-3.2-3b", "gpu": "l40s", "gpus": 4, "seq_len": 4096, "global_batch": 16},
    "one": {"model": "llama-3.2-1b", "gpu": "h100-sxm-80gb", "gpus": 1, "seq_len": 2048, "global_batch": 8},
}  # fmt: skip


@pytest.mark.parametrize("name", REQUESTS)
def test_each_layout_is_the_best_at_its_merits(name: str) -> None:
    resolved = resolve(load_request(None, REQUESTS[name]))
    rows = best_of_families(resolved, Watch(None, None, Here()), FAMILIES).top.rows
    listed = listed_rows(resolved, rows[-1], rows)
    assert listed[0].row == rows[-1]  # the choice is first, whatever it is
    assert len({one.row[1] for one in listed}) == len(listed) <= resolved.request.top
    near = [row for row in rows if row[0] <= rows[0][0] * (1 + intervals.ranking_lead())]
    _, estimate = price_layouts(resolved.problem, resolved.rates, Layouts.of([row[2] for row in near]))
    meshes = published_meshes(resolved.model)
    apart = [min((mesh.distance(row[2]) for mesh in meshes), default=0.0) for row in near]
    values: dict[str, list[Any]] = {
        "fastest": [row[0] for row in near], "roomiest": estimate.device_bytes.tolist(),
        "simplest": [complexity(row[2]) for row in near], "published": apart,
    }  # fmt: skip
    merits = {merit: one for one in listed for merit in one.merits}
    assert set(merits) <= {"fastest", "roomiest", "simplest", *(["published"] if meshes else [])}
    for merit, one in merits.items():
        at = [row[1] for row in near].index(one.row[1])
        assert values[merit][at] == min(values[merit]), merit
    if "published" in merits:
        one = merits["published"]
        assert one.near is not None
        assert one.near.distance(one.row[2]) == min(apart)
        assert one.near.run in (one.near_run or "")


def test_published_meshes_are_those_of_runs_of_the_same_shape() -> None:
    meshes = published_meshes(load_model("llama-3.1-8b")[0])
    assert meshes
    assert all(tuple(mesh.degrees) == DEGREES for mesh in meshes)
    assert not published_meshes(load_model("llama-3.2-3b")[0])
    first = meshes[0]
    assert first.distance(replace(parse("dp8-mbs1-z1-rnone"), **first.degrees)) == 0
    assert first.distance(parse(f"tp{2 * first.degrees['tp']}-dp8-mbs1-z1-rnone")) >= 1
    experts = {mesh.degrees["ep"] for mesh in published_meshes(load_model("deepseek-v3")[0])}
    assert max(experts) > 1


def test_a_plan_lists_distinct_layouts_with_their_reasons(capsys: pytest.CaptureFixture[str]) -> None:
    asked = REQUESTS["published"]
    found = plan(**asked)
    ids = [candidate.layout_id for candidate in found.candidates]
    assert len(set(ids)) == len(ids) == 6
    merits = [merit for candidate in found.candidates for merit in candidate.merits]
    assert sorted(merits) == ["fastest", "published", "roomiest", "simplest"]
    with_merit = [bool(candidate.merits) for candidate in found.candidates[1:]]
    assert with_merit == sorted(with_merit, reverse=True)  # the others follow, fastest first
    rest = [candidate.step_s for candidate in found.candidates[1:] if not candidate.merits]
    assert np.all(np.diff(rest) >= 0)
    words = ["plan", "--model", asked["model"], "--cluster", asked["cluster"], "--global-batch", "512"]
    assert main(words) == 0
    said = capsys.readouterr().out
    assert "Listed as" in said
    assert "the fastest" in said
    assert "is nearest to a published run of the model" in " ".join(said.split())


def test_bytes_are_listed_by_bytes() -> None:
    """With `--objective memory` the choice is the roomiest, and no reasons are given."""
    found = plan(**REQUESTS["not published"], objective="memory")
    assert not any(candidate.merits for candidate in found.candidates)
