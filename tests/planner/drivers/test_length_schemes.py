"""Published schemes beside a plan: one row each, on the batches of the plan; what cannot train them is a warning."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import pytest
from meshwright.planner import api
from meshwright.planner.batches.schemes.registry import SCHEMES
from meshwright.planner.document.lengths_plan import LengthsPlan

from meshwright.errors import InputError

from ...snapshots import run_here

SMALL = {"model": "llama-2-7b", "cluster": "dgx-a100-40gb:1", "global_batch": 48, "num_batches": 2,
         "lengths": "512:60,2048:30,4096:8,16384:2", "max_len": "16K"}  # fmt: skip
WORDS = ("--model", "llama-2-7b", "--cluster", "dgx-a100-40gb:1", "--global-batch", "48", "--lengths",
         "512:60,2048:30,4096:8,16384:2")  # fmt: skip


@cache
def planned() -> LengthsPlan:
    return api.plan_documents(**SMALL, schemes=["all"]).document()  # type: ignore[arg-type]


def test_every_scheme_has_a_row_with_its_own_prices() -> None:
    schemes = {scheme.name: scheme for scheme in planned().schemes}
    assert list(schemes) == list(SCHEMES)
    for scheme in schemes.values():
        assert 0 < scheme.mean_s <= scheme.p95_s
        assert scheme.source
        assert scheme.layout
    assert len({scheme.mean_s for scheme in schemes.values()}) == len(schemes)


def test_steps_take_as_long_as_the_megatron_target_plans_them() -> None:
    alone = api.plan_documents(**SMALL, target="megatron").document()  # type: ignore[arg-type]
    beside = api.plan_documents(**SMALL, target="megatron", schemes=["megatron-hybrid"]).document()  # type: ignore[arg-type]
    assert beside.schemes[0].mean_s == pytest.approx(alone.policy("per sequence").mean_s)


def test_a_scheme_that_cannot_train_the_batches_is_a_warning() -> None:
    plan = api.plan_documents(**{**SMALL, "cluster": "dgx-a100-40gb:3", "num_batches": 1},  # type: ignore[arg-type]
                              schemes=["megatron-hybrid", "bytescale"]).document()  # fmt: skip
    assert [scheme.name for scheme in plan.schemes] == ["bytescale"]
    assert any(warning.startswith("megatron-hybrid: needs a power of two of GPUs") for warning in plan.warnings)


@pytest.mark.parametrize(("names", "message"), [
    (["zepelin"], "unknown scheme `zepelin`"), (["flexsp", "flexsp"], "is there twice"), ([""], "unknown scheme ``"),
])  # fmt: skip
def test_wrong_names_are_refused_before_anything_is_planned(names: list[str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        api.plan_documents(**SMALL, schemes=names)  # type: ignore[arg-type]


def test_the_command_shows_and_writes_them(tmp_path: Path) -> None:
    result = run_here("plan", *WORDS, "--max-len", "16K", "--lengths-scheme", "zeppelin, wlb-llm", "-o", "plan.json",
                      cwd=tmp_path)  # fmt: skip
    assert result.code == 0, result.err
    for name in ("zeppelin", "wlb-llm", "arXiv:2509.21841"):
        assert name in result.out
    written = json.loads((tmp_path / "plan.json").read_text(encoding="utf-8"))
    assert [scheme["name"] for scheme in written["schemes"]] == ["zeppelin", "wlb-llm"]
    shown = run_here("explain", "plan.json", cwd=tmp_path)
    assert shown.code == 0, shown.err
    assert "zeppelin" in shown.out


def test_schemes_need_documents_with_a_degree_each(tmp_path: Path) -> None:
    result = run_here("plan", *WORDS, "--lengths-scheme", "all", cwd=tmp_path)
    assert result.code == 2
    assert "--max-len" in result.err
