"""The top of the screen of `plan`: the verdict, what a run takes, the legend; and screens of 60 columns."""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any

import pytest
from meshwright.cli import text
from meshwright.cli.console import make_console, print_part
from meshwright.cli.screens.legend import explained, legend
from meshwright.cli.screens.plan import plan_screen, terms_table
from meshwright.cli.screens.tradeoffs import shown_rows
from meshwright.cli.screens.verdict import outlook_lines, verdict
from meshwright.cost_models.layouts import FIELDS, FLAGS, Layout
from meshwright.planner.document.candidate import Term
from meshwright.planner.document.plan import Plan
from meshwright.planner.explain.outlook import outlook
from meshwright.planner.studies.gpu_curve import Tried

from ..sample_plan import sample_document, sample_plan

GROUP = {"price_usd_per_node_hour": 24.0}
RENT = {"rent": {"usd_per_gpu_hour": 5.0, "source": "assumed: the median of 3 nodes"}}


def plan_with(group: Mapping[str, Any], total_tokens: float | None = None) -> Plan:
    document = sample_document()
    group_there = document["resolved"]["cluster"]["groups"][0]
    group_there |= group
    group_there["gpu"]["tdp_w"] = 700.0
    document["resolved"]["workload"]["total_tokens"] = total_tokens
    return Plan.model_validate(document)


def test_days_hours_energy_and_money_by_hand() -> None:
    """1,024 x 8,192 tokens in 33.4 s are 2.17e10 a day; 256 GPUs of 700 W take 4.3 MWh in 24 h."""
    day = outlook(plan_with(GROUP), plan_with(GROUP).best)
    assert day.tokens == pytest.approx(1024 * 8192 / 33.4 * 86_400)
    assert (day.days, day.gpu_hours) == (1.0, 256 * 24.0)
    assert day.mwh == pytest.approx(256 * 700 * 24 / 1e6)
    assert day.usd == pytest.approx(32 * 24.0 * 24)

    run = plan_with(GROUP, total_tokens=15e12)
    whole = outlook(run, run.best)
    assert whole.days == pytest.approx(15e12 / day.tokens)
    assert whole.usd == pytest.approx(32 * 24.0 * 24 * whole.days)


@pytest.mark.parametrize(
    ("group", "words"),
    [
        (GROUP, "18,432 USD, at 3.00 USD per GPU-hour (price of dgx-h100)"),
        ({**GROUP, "unconfirmed": ["price"]}, "(price of dgx-h100, unconfirmed)"),
        (RENT, "30,720 USD, at 5.00 USD per GPU-hour (assumed: the median of 3 nodes)"),
        ({}, "no price of these GPUs is known"),
    ],
)
def test_the_cost_says_whose_price_it_is(group: dict[str, Any], words: str) -> None:
    plan = plan_with(group)
    assert words in " ".join(" ".join(outlook_lines(plan, plan.best)).split())


def test_a_power_that_is_not_known_is_no_zero() -> None:
    plan = sample_plan()
    assert outlook(plan, plan.best).mwh is None
    assert "not known" in outlook_lines(plan, plan.best)[-1]


def test_the_verdict_is_one_sentence() -> None:
    plan = plan_with(GROUP, total_tokens=15e12)
    said = " ".join(verdict(plan, plan.best).split())
    assert said.startswith("Run tp8-pp4-vpp5-dp8-mbs1-z1-rsel: 42.0 % MFU, 691 days for 15 trillion tokens, fits with")
    assert said.count(". ") == 0
    assert said.endswith(".")


def test_the_verdict_names_what_does_not_fit_and_a_search_that_was_stopped() -> None:
    document = sample_document()
    document["resolved"]["memory_bytes"] = 20 * 2**30
    document["certificate"]["stopped"] = "time limit"
    plan = Plan.model_validate(document)
    said = " ".join(verdict(plan, plan.best).split())
    assert said.startswith("Best so far: run tp8")
    assert "GiB more than there are" in said


def _layouts() -> list[Layout]:
    base: dict[str, int] = {"tp": 2, "pp": 2, "dp": 2, "cp": 2}
    values = [(field.name, code) for field in FIELDS for code in range(1, len(field.choices) or 4)
              if field.name not in FLAGS or code == 1]  # fmt: skip
    return [Layout(**{**base, name: code}) for name, code in values]


def test_the_legend_knows_every_token_of_an_id() -> None:
    unknown = {token for layout in _layouts() for token in str(layout).split("-") if not explained(token)}
    assert not unknown


def test_the_legend_has_the_tokens_shown_and_no_others() -> None:
    said = " ".join(legend(["tp8-pp4-vpp5-dp8-mbs1-z1-rsel", "dp256-mbs1-z3-rfull"]).split())
    assert all(f"{name} " in said for name in ("tp", "pp", "vpp", "dp", "mbs", "z", "rsel", "rfull"))
    assert "cp " not in said
    assert "fp8" not in said


@pytest.mark.parametrize("columns", [60, 80])
def test_lines_keep_to_the_columns(monkeypatch: pytest.MonkeyPatch, columns: int) -> None:
    """All but ids and tables of ids, which are never broken."""
    monkeypatch.setenv("COLUMNS", str(columns))
    stream = io.StringIO()
    console = make_console("never", stream)
    for part in plan_screen(plan_with(RENT), unicode=True):
        print_part(console, part)
    lines = stream.getvalue().splitlines()
    assert max(len(line) for line in lines) <= columns
    assert not any("…" in line for line in lines)


@pytest.mark.parametrize(("columns", "seen"), [("20", 40), ("60", 60), ("200", 80)])
def test_prose_has_between_40_and_80_columns(monkeypatch: pytest.MonkeyPatch, columns: str, seen: int) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    assert text.columns() == seen


@pytest.mark.parametrize(("lead", "named"), [(0.2, True), (0.02, False)])
def test_a_roomier_layout_is_named_where_the_model_does_not_tell_its_time_apart(lead: float, named: bool) -> None:
    plan = plan_with(GROUP).model_copy(update={"ranking_lead": lead})
    said = " ".join(verdict(plan, plan.best).split())
    assert ("; layout 4 needs 14.8 GiB less and takes 11.4 % longer." in said) == named


def test_round_numbers_of_gpus_are_shown_where_they_are_as_good() -> None:
    """61 to 127 GPUs: 64 is 1 % less efficient than its neighbours, 96 5 %."""
    less = {64: 0.99, 96: 0.95}
    points = [Tried(num_gpus=n, status="searched", efficiency=less.get(n, 1.0)) for n in range(61, 128)]
    shown = [points[index].num_gpus for index in shown_rows(points, 5, None, 0.02)]
    assert 64 in shown
    assert 96 not in shown
    assert (shown[0], shown[-1]) == (61, 127)
    assert 64 not in [points[index].num_gpus for index in shown_rows(points, 5, None, 0.0)]


@pytest.mark.parametrize(("columns", "sources"), [("60", "4 kinds"), ("80", "assumed, fitted, formula and measured")])
def test_short_terms_of_many_sources_fit(columns: str, sources: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    best = sample_plan().best
    long, *_ = best.terms
    short = [Term.model_validate({"name": source, "seconds": 0.04, "exposed": True, "source": source})
             for source in ("assumed", "fitted", "formula", "measured")]  # fmt: skip
    table = terms_table(best.model_copy(update={"terms": (long, *short)}), unicode=False)
    assert list(table.columns[3].cells)[-1] == sources


def test_a_layout_that_needs_as_much_to_the_digits_that_are_shown_is_not_roomier() -> None:
    plan = plan_with(GROUP)
    fullest = max(plan.best.memory, key=lambda stage: stage.device_bytes)
    near = [fullest.model_copy(update={"device_bytes": fullest.device_bytes - 2**25})]  # 0.03 GiB
    close = [each if each == plan.best else each.model_copy(update={"memory": near}) for each in plan.candidates]
    said = verdict(plan.model_copy(update={"ranking_lead": 0.5, "candidates": close}), plan.best)
    assert "GiB less" not in said
