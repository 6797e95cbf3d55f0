"""Each stage runs its row of the simulated schedule; orders by name and as CSV are checked against the stages."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from meshwright.cost_models.layouts import SCHEDULES
from meshwright.cost_models.quantities.stages import chunk_devices
from meshwright.cost_models.schedule_kinds import CODE, KINDS
from meshwright.cost_models.schedules.csv import to_csv
from meshwright.cost_models.schedules.simulator import make
from meshwright.runtime.parallel.schedules import Action, actions, custom_order

from meshwright.errors import InputError, UnsupportedError

from ..jobs import job, llama


@given(st.sampled_from(SCHEDULES), st.integers(1, 5), st.integers(2, 4), st.integers(1, 20))
def test_every_pass_once(name: str, pp: int, vpp: int, m: int) -> None:
    m += 2 * pp if name == "dualpipe-v" else 0
    devices = chunk_devices(pp, vpp if name == "interleaved" else 1, KINDS[CODE[name]].folded)
    for stage in range(pp):
        row = actions(make(name, pp, m, vpp), stage)
        passes = [(chunk, i) for chunk in range(devices.count(stage)) for i in range(m)]
        assert sorted(each[1:] for each in row if each.kind == "F") == passes
        assert sorted(each[1:] for each in row if each.kind in "BI") == passes
        assert [a for a in row if a.kind == "I"] == [Action("I", *a[1:]) for a in row if a.kind == "I"]
        assert sorted(a[1:] for a in row if a.kind == "W") == sorted(a[1:] for a in row if a.kind == "I")


def test_chunks_of_a_v_are_numbered_in_the_order_of_the_model() -> None:
    wanted = job("pp2-zbv-vpp2-dp1-mbs1-z0-rnone")
    assert wanted.devices == [0, 1, 1, 0]
    assert actions(wanted.order, 0)[0] == Action("F", 0, 0)
    assert [each.chunk for each in actions(wanted.order, 1)[:2]] == [0, 1]


@pytest.mark.parametrize("layout_id", ["pp2-dp1-mbs1-z0-rnone", "pp3-zbh1-dp1-mbs1-z0-rnone",
                                       "pp2-dpv-vpp2-dp1-mbs1-z0-rnone", "dp2-mbs1-z0-rnone"])  # fmt: skip
def test_the_order_is_that_of_the_planner(layout_id: str) -> None:
    wanted = job(layout_id, llama(6))
    layout = wanted.layout
    expected = make(SCHEDULES[layout.schedule], layout.pp, wanted.num_micro_batches, layout.vpp)
    assert wanted.order.code.tolist() == expected.code.tolist()


def test_an_order_of_ones_own_by_name_and_as_csv(tmp_path: Path) -> None:
    single, folded = job("pp2-dp1-mbs1-z0-rnone"), job("pp2-zbv-vpp2-dp1-mbs1-z0-rnone")
    assert custom_order("zb-h2", single).code.tolist() == make("zb-h2", 2, 4).code.tolist()
    assert custom_order("v-half", folded).num_chunks == 4
    path = tmp_path / "mine.csv"
    path.write_text(to_csv(make("v-min", 2, 4)), encoding="utf-8")
    wanted = replace(folded, custom_order=custom_order(str(path), folded))
    assert wanted.order.code.tolist() == make("v-min", 2, 4).code.tolist()
    assert wanted.splits_backward


@pytest.mark.parametrize(("source", "message"), [
    ("v-half", "has chunks on the stages 0, 1, 1, 0, pp2-dp1-mbs1-z0-rnone on 0, 1"),
    ("dualpipe", "holds each part of the model on two stages"),
    ("nothing", "No such file"),
    ("0F0,0B0\n1F0,1B0\n", r"has 1 micro-batches, the run has 4 / \(dp 1 x 1\) = 4"),
    ("0F0,1F0,1B0,0B0\n", "has chunks on the stages 0, 0"),
    ("0F0\n1F0,1B0\n", "no `0B0`"),
    ("0F0,0F1,0F2,0F3,0B3,0B2,0B1,0B0\n1F0,1B0,1F1,1B1,1F2,1B2,1F3,1B3\n", None),
    ("0F1,0F0,0B0,0B1,0F2,0F3,0B3,0B2\n1F2,1B2,1F1,1F0,1F3,1B3,1B1,1B0\n", "wait"),
])  # fmt: skip
def test_what_is_no_order_of_these_stages(source: str, message: str | None, tmp_path: Path) -> None:
    wanted = job("pp2-dp1-mbs1-z0-rnone")
    if "F" in source:
        (tmp_path / "mine.csv").write_text(source, encoding="utf-8")
        source = str(tmp_path / "mine.csv")
    if message is None:
        assert custom_order(source, wanted).num_micro_batches == 4
        return
    with pytest.raises(InputError, match=message) as caught:
        custom_order(source, wanted)
    assert caught.value.hint or "line" in str(caught.value)


def test_split_passes_need_whole_states() -> None:
    """Stage 1 shards what only the optimizer has; a stack that keeps states whole in a pipeline may plan any stage."""
    sharded = {"sharded_states": "zero"}
    for allowed in (job("pp2-zbh1-dp2-mbs1-z1-rnone", stack_changes=sharded), job("pp2-zbh1-dp2-mbs1-z3-rnone")):
        allowed.check_states()
    with pytest.raises(UnsupportedError, match=r"zb-h1 splits the backward pass.*ZeRO 3"):
        job("pp2-zbh1-dp2-mbs1-z3-rnone", stack_changes=sharded).check_states()
