"""States moved to another layout: runs and bytes by hand, packing kernels beside a copy per run, what is no layout."""

from __future__ import annotations

from typing import Any

import pytest
from meshwright.cost_models.layouts import parse
from meshwright.cost_models.rates.packing import copied_s, packed_s
from meshwright.planner.document.plan import Plan
from meshwright.planner.evaluation.conversion import moved_in
from meshwright.planner.studies.conversion import Conversion

import meshwright as mw
from meshwright.errors import InputError

BW, LAUNCH_S = 3.35e12, 5e-6  # an H100's memory; a copy that the host starts
HIDDEN, INNER, LAYERS = 2048, 8192, 16  # of llama-3.2-1b


def test_packing_gains_four_orders_of_magnitude_on_short_runs() -> None:
    """TEMPI (arXiv 2012.14363): MPI_Pack up to 242,000 times faster. One whole run gains nothing."""
    gains = {run: copied_s(2**20, run, BW, LAUNCH_S) / packed_s(2**20, run, BW, LAUNCH_S) for run in (4, 128, 2**20)}

    assert 1e4 < gains[4] < 242_000
    assert 1e3 < gains[128] < gains[4]
    assert gains[2**20] == pytest.approx(1)


def test_runs_shorter_than_a_transaction_are_read_as_slowly() -> None:
    whole, short = (packed_s(1e9, run, BW, 0.0) for run in (128, 32))

    assert whole == pytest.approx(2e9 / BW)
    assert short == pytest.approx(5e9 / BW)


@pytest.fixture(scope="module")
def plan() -> Plan:
    return mw.evaluate(None, "tp4-dp4-mbs1-z1-rnone", model="llama-3.2-1b", cluster="dgx-h100:2", global_batch=16,
                       seq_len=1024)  # fmt: skip


def converted(plan: Plan, to: str) -> Conversion:
    study = mw.what_if(plan, study="conversion", assume={"to": to})
    assert isinstance(study, Conversion)
    return study


def test_what_another_degree_cuts(plan: Plan) -> None:
    """The output projection and the last matrix of the feed-forward block, in runs of an eighth of a row."""
    study, kept = converted(plan, "tp8-dp2-mbs1-z0-rnone"), converted(plan, "tp4-dp4-mbs1-z0-rnone")
    kernels, copies = study.ways

    rows = LAYERS * HIDDEN * (2048 + INNER) / 8
    assert study.run_bytes == 2 * HIDDEN / 8
    # Without ZeRO a GPU has all states of its parameters: weight 2, master copy and moments 12.
    assert study.cut_bytes == pytest.approx(14 * rows, rel=0.01)
    assert study.runs == pytest.approx(4 * LAYERS * HIDDEN * 2, rel=0.01)  # 4 tensors, 2 matrices, a run of each row
    assert copies.gather_s > 10 * kernels.gather_s
    assert (kept.runs, kept.run_bytes) == (0, 0)
    assert kept.ways[0].gather_s == kept.ways[1].gather_s


def test_optimizers_with_one_moment_have_a_tensor_less() -> None:
    sgd = mw.evaluate(None, "tp4-dp4-mbs1-z0-rnone", model="llama-3.2-1b", cluster="dgx-h100:2", global_batch=16,
                      seq_len=1024, optimizer="sgd")  # fmt: skip

    assert converted(sgd, "tp8-dp2-mbs1-z0-rnone").runs == pytest.approx(3 * LAYERS * HIDDEN * 2, rel=0.01)


ROWS = LAYERS * HIDDEN * 2  # of the two matrices of a layer


@pytest.mark.parametrize(
    ("asked", "dtype", "tensors"),
    [({}, "", 4), ({"optimizer": "muon"}, "", 3), ({"workload": {"train": {"lora": {"rank": 8}}}}, "", 1),
     ({"precision": "fp8"}, "-fp8", 4), ({"precision": "fp32"}, "-fp32", 3)],
)  # fmt: skip
def test_runs_are_rows_of_each_tensor_of_a_matrix(asked: dict[str, Any], dtype: str, tensors: int) -> None:
    """A rank of tp 8 sends a run of each of its rows; adapters beside frozen matrices and fp8 copies are not cut."""
    plan = mw.evaluate(None, f"tp4-dp4-mbs1-z0-rnone{dtype}", model="llama-3.2-1b", cluster="dgx-h100:2",
                       global_batch=16, seq_len=1024, **asked)  # fmt: skip
    assert converted(plan, f"tp8-dp2-mbs1-z0-rnone{dtype}").runs == pytest.approx(tensors * ROWS, rel=1e-12)


def test_states_in_host_memory_move_too(plan: Plan) -> None:
    here, there = (converted(plan, f"tp4-dp4-mbs1-z1-rnone{end}") for end in ("", "-oopt"))
    assert there.received_bytes == pytest.approx(here.received_bytes)


def test_experts_and_the_rest_have_groups_of_their_own() -> None:
    """deepseek-v2-lite: 26 of 27 layers have 64 experts of 1,408 beside two shared ones of 2,816 together."""
    plan = mw.evaluate(None, "tp2-dp4-ep2-mbs1-z1-rnone", model="deepseek-v2-lite", cluster="dgx-h100:1",
                       global_batch=16, seq_len=1024)  # fmt: skip
    found = converted(plan, "tp4-dp2-ep2-mbs1-z1-rnone")
    attention, first, shared = 27 * 16 * 128, 10944, 26 * 2816
    elements = HIDDEN * (attention + first + shared) / 4
    assert found.cut_bytes == pytest.approx(2 * elements + 12 * elements / 2)  # ZeRO-1 shares the optimizer over dp 2


def test_states_go_to_fewer_gpus_from_another_degree(plan: Plan) -> None:
    """A plan for half of the GPUs that keeps all states of its parameters on each: 14 bytes of a quarter of them."""
    half = mw.evaluate(None, "tp4-dp2-mbs1-z0-rnone", model="llama-3.2-1b", cluster="dgx-h100:1", global_batch=16,
                       seq_len=1024)  # fmt: skip
    states = moved_in(half, half.best, parse("tp8-dp2-mbs1-z0-rnone"))
    assert states is not None
    assert states.received_bytes == pytest.approx(14 * 1.236e9 / 4, rel=0.01)
    assert states.cut_bytes == pytest.approx(14 * LAYERS * HIDDEN * (2048 + INNER) / 4, rel=0.01)
    assert states.run_bytes == 2 * HIDDEN / 8
    assert states.by_kernels.message_s == pytest.approx(states.received_bytes / 450e9, rel=0.25)  # NVLink alone


@pytest.mark.parametrize(
    ("assume", "message"),
    [({}, "no layout to convert to"), ({"to": "tp8-dp4-mbs1-z0-rnone"}, "the cluster has 16 GPUs"),
     ({"to": "x"}, "not a layout id"), ({"too": "tp8"}, "unknown assumption `too`")],
)  # fmt: skip
def test_what_is_no_layout(plan: Plan, assume: dict[str, str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        mw.what_if(plan, study="conversion", assume=assume)
