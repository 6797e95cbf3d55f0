"""Layouts, their ids and their dictionaries: each gives the same layout back, and errors name wrong parts."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from meshwright.cost_models.layouts import (
    CP_ALGORITHMS,
    FIELDS,
    MODULES,
    OFFLOADS,
    PRECISIONS,
    SCHEDULES,
    Layout,
    Layouts,
    default_schedule,
    encode,
    module_mask,
    modules_of,
    parse,
)
from meshwright.planner.space.rules import violations

from meshwright.errors import InputError

from .random_cases import FULL, SELECTIVE, case_named, cases, draw, seeds, thorough

degrees = st.just(1) | st.integers(1, 5000)


@st.composite
def canonical(draw_: st.DrawFn) -> Layout:
    """Any layout with what its id leaves out at its default: no algorithm without ranks, no mask without selection."""
    tp, cp, pp, vpp, dp = (draw_(degrees) for _ in range(5))
    mode = draw_(st.integers(0, 2))
    return Layout(
        tp=tp, cp=cp, pp=pp, vpp=vpp, dp=dp, ep=draw_(degrees), etp=draw_(degrees), shard=draw_(degrees),
        micro_batch=draw_(degrees), sequence_parallel=draw_(st.integers(0, 1)) if tp > 1 else 0,
        cp_algorithm=draw_(st.integers(0, len(CP_ALGORITHMS) - 1)) if cp > 1 else 0,
        schedule=draw_(st.sampled_from([default_schedule(pp, vpp), *range(len(SCHEDULES))])),
        zero=draw_(st.integers(0, 3)), recompute=mode,
        recompute_modules=draw_(st.integers(1, (1 << len(MODULES)) - 1)) if mode == SELECTIVE else 0,
        recompute_layers=draw_(st.integers(0, 200)) if mode == FULL else 0,
        offload=draw_(st.integers(0, len(OFFLOADS) - 1)), precision=draw_(st.integers(0, len(PRECISIONS) - 1)),
    )  # fmt: skip


@given(canonical())
@thorough(1500, shrinks=True)
def test_ids_round_trip(layout: Layout) -> None:
    text = str(layout)
    assert parse(text) == layout
    assert parse(f" {text}\n") == layout


@given(canonical())
@thorough(500, shrinks=True)
def test_dictionaries_round_trip(layout: Layout) -> None:
    """Through JSON, and with what is absent at its default."""
    data = json.loads(json.dumps(layout.as_dict()))
    assert Layout.from_dict(data) == layout
    assert Layouts.of([layout]).layout(0) == layout
    del data["schedule"], data["shard"], data["sequence_parallel"]
    bare = replace(layout, schedule=default_schedule(layout.pp, layout.vpp), shard=layout.dp,
                   sequence_parallel=int(layout.tp > 1))  # fmt: skip
    assert Layout.from_dict(data) == bare


@given(cases, seeds)
@thorough(25)
def test_ids_of_legal_layouts_are_distinct(name: str, seed: int) -> None:
    case = case_named(name)
    layouts = Layouts(draw(case, seed))
    drawn = [layouts.layout(row) for row in range(len(layouts))]
    assert len({str(layout) for layout in drawn}) == len(set(drawn))
    assert [parse(str(layout)) for layout in drawn] == drawn
    assert [violations(layout, case.problem) for layout in drawn] == [[]] * len(drawn)


def test_choices_are_encoded_by_name() -> None:
    for field in FIELDS:
        for code, choice in enumerate(field.choices):
            assert encode(field.name, choice) == code
    assert [encode("sequence_parallel", value) for value in (True, "no", "yes", False)] == [1, 0, 1, 0]
    assert encode("recompute_modules", "attn+moe") == module_mask(["moe", "attn", "moe"]) == 0b01001
    assert modules_of(0b01001) == ("attn", "moe")
    assert encode("tp", "8") == 8


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("width", 1, "unknown layout field `width`"),
        ("schedule", "2f2b", "`2f2b` is none of 1f1b"),
        ("offload", "disk", "`disk` is none of none"),
        ("tp", "eight", "`eight` is not a whole number"),
        ("tp", None, "`None` is not a whole number"),
        ("dp", 0, "0 is out of range"),
        ("zero", 4, "4 is out of range"),
        ("zero", -1, "-1 is out of range"),
        ("recompute_modules", "attn+ffn", "unknown recompute module `ffn`"),
    ],
)
def test_wrong_values_are_named(field: str, value: object, message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        encode(field, value)
    assert caught.value.hint


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is not a layout id"),
        ("tp8", "is not a layout id"),
        ("dp8-tp8-mbs1-z1-rnone", "is not a layout id"),
        ("tp8-dp8-mbs1-z4-rnone", "is not a layout id"),
        ("dp8-mbs1-z1-rsel(ffn)", "unknown recompute module `ffn`"),
        ("tp0-dp8-mbs1-z1-rnone", "a degree of 0"),
        ("dp8-sh0-mbs1-z1-rnone", "a degree of 0"),
        ("tp8-dp8-mbs1-z1-rnone-x0a1b2c", "uneven stages, per-layer strategies or a rank map"),
    ],
)
def test_wrong_ids_are_named(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        parse(text)
    assert caught.value.hint
