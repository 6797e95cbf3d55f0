"""The screens, made from a plan written by hand: their text, their width, and nothing cut or coloured when piped."""

from __future__ import annotations

import io
import re
from collections.abc import Iterable
from typing import Any

import pytest
from meshwright.cli import text
from meshwright.cli.commands.diff import differences, summary
from meshwright.cli.commands.explain import origins_of
from meshwright.cli.console import make_console, print_part, table, to_json
from meshwright.cli.progress import bar
from meshwright.cli.screens import explain as explain_screen
from meshwright.cli.screens import listings as listings_screen
from meshwright.cli.screens import memory as memory_screen
from meshwright.cli.screens import plan as plan_screen
from meshwright.cli.screens.header import space_line
from meshwright.cli.screens.import_config import gain
from meshwright.cli.screens.serving_plan import whole_number
from meshwright.cli.screens.what_if import kilo_dollars
from meshwright.planner.document.plan import Plan
from meshwright.planner.studies.pricing import Priced

from ..sample_plan import sample_document, sample_plan
from ..snapshots import check


def drawn(parts: Iterable[Any], color: str = "never") -> str:
    stream = io.StringIO()
    console = make_console(color, stream)
    for part in parts:
        print_part(console, part)
    return stream.getvalue()


def other_plan() -> Plan:
    plan = sample_document()
    plan["request"]["workload"]["global_batch"] = 2048
    plan["candidates"] = plan["candidates"][1:]
    return Plan.model_validate(plan)


def many_stages() -> Plan:
    """16 stages, each with its own number of bytes."""
    plan = sample_document()
    first = plan["candidates"][0]["memory"][0]
    plan["candidates"][0]["memory"] = [
        {**first, "stage": stage, "device_bytes": first["device_bytes"] - stage * 2**27} for stage in range(16)
    ]
    return Plan.model_validate(plan)


def with_offload() -> Plan:
    plan = sample_document()
    for stage in plan["candidates"][0]["memory"]:
        stage.update(optimizer_bytes=0, host_bytes=10 * 2**30)
    return Plan.model_validate(plan)


def with_uncertainty() -> Plan:
    plan = sample_document()
    plan["certificate"].update(proven=False, gap=0.021)
    plan["resolved"]["workload"].update(lora={"rank": 16, "base_dtype": "nf4"}, total_tokens=15e12)
    plan["candidates"][0].update(days=710.3, gpu_hours=4.364e6, cost_usd=17.1e6)
    own, other = plan["candidates"][0]["layout_id"], "tp8-pp4-zbv-vpp2-dp8-mbs1-z1-rsel"
    plan["outside"] = {"layout_id": other, "step_s": 32.1, "targets": ["torchtitan"]}
    plan["by_target"] = {
        "best": [{"target": "meshwright", "layout_id": own, "step_s": 33.4, "device_bytes": 60e9},
                 {"target": "torchtitan", "layout_id": other, "step_s": 32.1, "device_bytes": 55e9}],
        "without": {"accelerate": "workload.lora: adapters belong to your script (peft)"},
    }
    return Plan.model_validate(plan)


def resolved_to(**changes: Any) -> Plan:
    plan = sample_document()
    plan["resolved"].update(changes)
    return Plan.model_validate(plan)


def diff_screen(before: Plan, after: Plan) -> list[Any]:
    return listings_screen.diff_screen(differences(summary(before), summary(after)), ("before.json", "after.json"))


def screens() -> dict[str, list[Any]]:
    plan = sample_plan()
    first, third = plan.candidates[0], plan.candidates[2]
    third_left = plan.resolved["memory_bytes"] - third.device_bytes
    origins = {"model": "--model", "fix": "a.yaml, line 3"}
    facts: dict[str, dict[str, Any]] = {
        "peak.bf16": {"value": "989.5 TFLOP/s", "source": "datasheet; a file"},
        "memory.bandwidth": {"value": "3.35 TB/s", "source": "a file", "confirmed": False, "note": "one direction"},
    }
    return {
        "plan": plan_screen.plan_screen(plan, unicode=True, saved_as="plan.json"),
        "plan-ascii": plan_screen.plan_screen(plan, unicode=False),
        "plan-not-proven": plan_screen.plan_screen(with_uncertainty(), unicode=True),
        "memory": memory_screen.memory_screen(plan, first),
        "memory-offload": memory_screen.memory_screen(plan, with_offload().best),
        "memory-many-stages": memory_screen.memory_screen(many_stages(), many_stages().best),
        "explain": explain_screen.explain_screen(plan, first, (), unicode=True),
        "why-not": explain_screen.why_not_screen(plan, third),
        "why-not-target": explain_screen.why_not_screen(resolved_to(target="torchtitan"), third),
        "why-not-memory": explain_screen.why_not_screen(resolved_to(memory_bytes=2**35), third),
        "why-not-headroom": explain_screen.why_not_screen(resolved_to(headroom_bytes=third_left + 2**30), third),
        "diff": diff_screen(plan, other_plan()),
        "diff-equal": diff_screen(plan, sample_plan()),
        "show-sources": listings_screen.sources_screen("h100-sxm-80gb", facts),
        "origins": [explain_screen.origins_table(origins_of(plan.request, origins))],
    }


@pytest.mark.parametrize("name", list(screens()))
def test_screen(name: str) -> None:
    text = drawn(screens()[name])
    check(f"screen-{name}", text)
    assert max(map(len, text.splitlines())) <= 80
    assert "\x1b" not in text
    assert "…" not in text
    assert not re.search(r" $", text, re.MULTILINE)


@pytest.mark.parametrize("name", list(screens()))
def test_colour_adds_nothing_but_colour(name: str) -> None:
    colored = drawn(screens()[name], "always")
    plain = re.sub(r"\x1b\[[0-9;]*m", "", colored)
    assert [line.rstrip() for line in plain.splitlines()] == drawn(screens()[name]).splitlines()


def test_the_counts_add_up() -> None:
    line = space_line(sample_plan().certificate.space, stopped=False)
    numbers = [int(n.replace(",", "")) for n in re.findall(r"[\d,]*\d", line)]
    assert numbers[0] == sum(numbers[1:])


def test_a_table_wider_than_the_terminal_is_not_cut() -> None:
    wide = table(*(f"column {n}" for n in range(15)), rows=[["33.4" * 5] * 15])
    assert drawn([wide]).count("33.4" * 5) == 15


@pytest.mark.parametrize(
    ("share", "cells", "expected"),
    [(0.0, 25, ""), (1.0, 4, "████"), (0.5, 1, "▌"), (22.1 / 33.4, 25, "████████████████▌"), (1 / 8, 1, "▏")],
)
def test_bars_have_eighths(share: float, cells: int, expected: str) -> None:
    assert bar(share, cells, unicode=True) == expected
    assert set(bar(share, cells, unicode=False)) <= {"#"}


def test_json_is_canonical() -> None:
    document = {"b": 1 / 3, "a": [1e-9 / 3, {"z": float("inf"), "y": "é"}], "c": 10**15}
    assert to_json(document) == (
        '{\n  "a": [\n    3.33333333e-10,\n    {\n      "y": "é",\n      "z": null\n    }\n  ],\n'
        '  "b": 0.333333333,\n  "c": 1000000000000000\n}\n'
    )


@pytest.mark.parametrize(("seconds", "named", "shown"), [
    ([0.373, 2.04], "TTFT ms", ["373", "2,040"]), ([1.5, 90.0], "TTFT s", ["1.50", "90.0"]),
    ([150.0, 7800.0], "TTFT min", ["2.50", "130"]), ([20e-6], "TTFT ms", ["0.0200"]),
])  # fmt: skip
def test_latencies_have_the_unit_of_the_smallest(seconds: list[float], named: str, shown: list[str]) -> None:
    assert text.latencies("TTFT", seconds) == (named, shown)
    assert text.duration(150.0) == "2.50 min"


@pytest.mark.parametrize(("rate", "shown"), [(1234.5, "1,234"), (10.4, "10"), (0.42, "0.420"), (3.0, "3.00")])
def test_small_rates_of_a_deployment_keep_decimals(rate: float, shown: str) -> None:
    assert whole_number(rate) == shown


@pytest.mark.parametrize(("usd", "shown"), [(2_378_000.0, "2,378"), (12_340.0, "12.3"), (451.0, "0.451"), (None, "-")])
def test_thousand_dollars_keep_three_digits(usd: float | None, shown: str) -> None:
    priced = Priced(layout_id="dp8", num_gpus=8, step_s=1.0, terms={}, device_bytes=1.0, memory_bytes=2.0,
                    budget_bytes=2.0, tokens_per_s=1.0, usd_per_ttoken=usd, price_source="",
                    mwh_per_ttoken=None)  # fmt: skip
    assert kilo_dollars(priced) == shown


@pytest.mark.parametrize(("seconds", "theirs_gib", "says"), [
    (0.5, 60.0, "50.0 % faster"), (1.25, 50.0, "25.0 % slower, but it has fewer parallel axes"),
    (1.25, 62.0, "25.0 % slower, but it leaves 2.0 GiB more"), (1.25, 99.0, "25.0 % slower, but it fits"),
])  # fmt: skip
def test_a_planned_layout_is_faster_or_says_why_not(seconds: float, theirs_gib: float, says: str) -> None:
    """It takes 60 GiB of a GPU and a second."""
    plan = sample_plan()
    best = plan.best.model_copy(update={"step_s": 1.0, "memory": _of_gib(plan, 60.0)})
    theirs = plan.best.model_copy(update={"step_s": 1.0 / seconds, "memory": _of_gib(plan, theirs_gib)})
    priced, planned = (plan.model_copy(update={"candidates": (it,)}) for it in (theirs, best))
    assert gain(priced, planned) == says


def _of_gib(plan: Plan, gib: float) -> tuple[Any, ...]:
    return (plan.best.memory[0].model_copy(update={"device_bytes": gib * 2**30}),)
