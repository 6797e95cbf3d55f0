"""Published schemes beside a plan: one row each, on the batches of the plan; what cannot train them is a warning."""

from __future__ import annotations

from pathlib import Path

import pytest
from meshwright.cli.screens.mixed_lengths import layout_lines, policy_cells
from meshwright.planner import api
from meshwright.planner.batches.schemes.registry import SCHEMES
from meshwright.planner.document.lengths_plan import load_lengths_plan
from meshwright.planner.drivers.length_schemes import schemes_of

from meshwright.errors import InputError

from ...snapshots import run_here

SMALL = {"model": "llama-3.2-1b", "gpu": "a100-sxm-80gb", "gpus": 4, "global_batch": 16, "num_batches": 1,
         "lengths": "512:60,2048:30,4096:8,16384:2", "max_len": "16K"}  # fmt: skip
WORDS = ("--model", "llama-3.2-1b", "--gpu", "a100-sxm-80gb", "--gpus", "4", "--global-batch", "12", "--lengths",
         "512:60,2048:30,4096:8,16384:2")  # fmt: skip


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """The screen of a plan with all schemes, and its file."""
    folder = tmp_path_factory.mktemp("plan")
    result = run_here("plan", *WORDS, "--max-len", "16K", "--lengths-scheme", "all", "-o", "plan.json", cwd=folder)
    assert result.code == 0, result.err
    return result.out, folder / "plan.json"


@pytest.mark.slow
def test_every_scheme_has_a_row_with_its_own_prices(shown: tuple[str, Path]) -> None:
    screen, path = shown
    plan = load_lengths_plan(path)
    assert plan is not None
    assert [scheme.name for scheme in plan.schemes] == list(SCHEMES)
    for scheme in plan.schemes:
        assert 0 < scheme.mean_s <= scheme.p95_s
        assert f"{scheme.name} " in screen
        assert (f"({scheme.source}, simplified)" in screen) is (scheme.basis == "summary")
        assert scheme.source in screen
        assert scheme.layout
    assert len({scheme.mean_s for scheme in plan.schemes}) == len(plan.schemes)


def test_explain_and_report_keep_them(shown: tuple[str, Path], tmp_path: Path) -> None:
    explained = run_here("explain", str(shown[1]), cwd=tmp_path)
    assert explained.code == 0, explained.err
    assert "zeppelin" in explained.out
    reported = run_here("report", str(shown[1]), "-o", "page.html", cwd=tmp_path)
    assert reported.code == 0, reported.err
    assert "zeppelin" in (tmp_path / "page.html").read_text(encoding="utf-8")


def test_schemes_come_in_the_order_of_the_registry() -> None:
    assert [scheme.name for scheme in schemes_of(["wlb-llm", "zeppelin"])] == ["zeppelin", "wlb-llm"]


def test_steps_take_as_long_as_the_megatron_target_plans_them() -> None:
    alone = api.plan_documents(**SMALL, target="megatron").document()  # type: ignore[arg-type]
    beside = api.plan_documents(**SMALL, target="megatron", schemes=["megatron-hybrid"]).document()  # type: ignore[arg-type]
    assert beside.schemes[0].mean_s == pytest.approx(alone.policy("per sequence").mean_s)


def test_a_scheme_that_cannot_train_the_batches_has_a_row_with_the_reason() -> None:
    plan = api.plan_documents(**{**SMALL, "gpus": 3},  # type: ignore[arg-type]
                              schemes=["megatron-hybrid", "bytescale"]).document()  # fmt: skip
    assert [scheme.name for scheme in plan.schemes] == ["bytescale"]
    assert [scheme.name for scheme in plan.refused_schemes] == ["megatron-hybrid"]
    _, rows = policy_cells(plan)
    assert rows[-1][:3] == ["megatron-hybrid", "one per document", "refused"]
    refused = "megatron-hybrid is refused: needs a power of two of GPUs"
    assert any(line.startswith(refused) for line in layout_lines(plan))


@pytest.mark.parametrize(("gpus", "refused"), [(3, ["megatron-hybrid", "megatron-dynamic", "flexsp", "zeppelin"]),
                                               (6, ["megatron-hybrid", "megatron-dynamic", "zeppelin"])])  # fmt: skip
def test_schemes_that_need_powers_of_two_leave_the_plans_of_the_others(gpus: int, refused: list[str]) -> None:
    plan = api.plan_documents(**{**SMALL, "gpus": gpus}, schemes=["all"]).document()  # type: ignore[arg-type]
    assert [scheme.name for scheme in plan.schemes] == [name for name in SCHEMES if name not in refused]
    assert [scheme.name for scheme in plan.refused_schemes] == refused
    assert all(scheme.reason.startswith("needs a") for scheme in plan.refused_schemes)


def test_an_empty_name_has_a_hint(tmp_path: Path) -> None:
    result = run_here("plan", *WORDS, "--max-len", "16K", "--lengths-scheme", ",", cwd=tmp_path)
    assert result.code == 2
    assert "give names, or `all`" in result.err


@pytest.mark.parametrize(("names", "message"), [
    (["zepelin"], "unknown scheme `zepelin`"), (["flexsp", "flexsp"], "is there twice"), ([""], "a name is empty"),
])  # fmt: skip
def test_wrong_names_are_refused_before_anything_is_planned(names: list[str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        api.plan_documents(**SMALL, schemes=names)  # type: ignore[arg-type]


def test_schemes_need_documents_with_a_degree_each(tmp_path: Path) -> None:
    result = run_here("plan", *WORDS, "--lengths-scheme", "all", cwd=tmp_path)
    assert result.code == 2
    assert "--max-len" in result.err
