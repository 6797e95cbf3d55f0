"""Stages as even as possible where some layers stay with the layer before them."""

from __future__ import annotations

from itertools import combinations_with_replacement, pairwise

import pytest
from meshwright.cost_models.quantities.even_stages import first_cut, group_sizes, groups_of, joined_kinds
from meshwright.planner.request.load import request_from_dict
from meshwright.planner.request.resolve import resolve
from meshwright.profiles.model.load import load_model

from meshwright.errors import InputError

GLM: dict[str, object] = {"model": "glm-5.2", "cluster": "gb200-nvl72:48", "target": "any",
                          "workload": {"seq_len": 8192, "global_batch": 512}}  # fmt: skip
GROUPS = [(1, 1, 4, 4, 4, 4), (3, 1, 2), (5,), (1,) * 6, (2, 7, 1, 1, 3)]


def test_a_kind_joins_the_group_before_it() -> None:
    assert groups_of((0, 0, 1, 1, 0, 1), (1,)) == (1, 3, 2)
    assert groups_of((0, 1, 0), ()) == (1, 1, 1)


@pytest.mark.parametrize("groups", GROUPS)
def test_sizes_have_the_least_sum_of_squares(groups: tuple[int, ...]) -> None:
    """Beside every split of the groups: inner chunks hold one or more, the ends may hold none; more chunks than that
    needs may all hold none."""
    for chunks in range(1, len(groups) + 4):
        sizes = group_sizes(groups, chunks)
        least = None
        for cuts in combinations_with_replacement(range(len(groups) + 1), chunks - 1):
            ends = [0, *cuts, len(groups)]
            inner = list(pairwise(ends))[1:-1]
            if chunks <= len(groups) + 2 and any(end == start for start, end in inner):
                continue
            squares = sum(sum(groups[start:end]) ** 2 for start, end in pairwise(ends))
            least = squares if least is None else min(least, squares)
        assert (sum(sizes), len(sizes)) == (sum(groups), chunks)
        assert sum(size**2 for size in sizes) == least


def test_layers_that_share_an_index_stay_together() -> None:
    """Megatron Core d98e8a64, _validate_dsa_index_share_pipeline_split: "Cross-layer top-k sharing does not cross PP
    boundaries". The recipes of Megatron-Bridge cut GLM-5.2 so (perf_recipes/glm_moe_dsa)."""
    model, _ = load_model("glm-5.2")
    joined = joined_kinds(model)
    assert groups_of(model.pattern, joined) == (1, 1, *[4] * 19)
    assert first_cut(model.pattern, joined, (14, 12, 12, 12, 12, 16)) is None
    assert first_cut(model.pattern, joined, (13, 13, 13, 13, 13, 13)) == 14
    problem = resolve(request_from_dict(GLM)).problem
    assert problem.most_chunks == 23
    for chunks in range(1, 24):
        assert first_cut(model.pattern, joined, problem.chunk_sizes(chunks)) is None
    assert joined_kinds(load_model("glm-5.1")[0]) == ()


@pytest.mark.parametrize("stages", [[26, 26, 26], "Et*39|t*39mL"])
def test_given_stages_that_cut_a_group_are_refused(stages: object) -> None:
    with pytest.raises(InputError, match=r"stages cut glm-5.2 before layer \d+, which sees the tokens that"):
        resolve(request_from_dict({**GLM, "stages": stages}))
    resolve(request_from_dict({**GLM, "stages": [26, 28, 24]}))
