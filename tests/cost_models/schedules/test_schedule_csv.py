"""Schedules as CSV: round trips, what torch writes, and every way in which a file can be wrong."""

from __future__ import annotations

import pytest
from meshwright.cost_models.schedules.csv import from_csv, to_csv
from meshwright.cost_models.schedules.simulator import ORDERS, Costs, make, simulate

from meshwright.errors import InputError


@pytest.mark.parametrize("name", [name for name in ORDERS if name != "dualpipe"])
def test_csv_keeps_a_schedule(name: str) -> None:
    order = make(name, 4, 12, 2)
    again = from_csv(to_csv(order))
    assert again.code.tolist() == order.code.tolist()
    assert again.fused.tolist() == order.fused.tolist()
    costs = Costs.even(order, 1, 1.5, 0.5, 0.1)
    assert simulate(again, costs).makespan_s == simulate(order, costs).makespan_s


def test_csv_of_torch() -> None:
    """Idle cells, communication and full backwards, as `_dump_csv` writes them."""
    order = from_csv("0F0,0SEND_F0,0F1,,0RECV_B0,0B0,0B1,0REDUCE_GRAD\n,1RECV_F0,1F0,1B0,1F1,1B1\n")
    assert [order.label(op) for op in range(8)] == ["0F0", "0F1", "0B0", "0B1", "1F0", "1B0", "1F1", "1B1"]
    assert order.column.tolist() == [1, 3, 6, 7, 3, 4, 5, 6]
    assert simulate(order, Costs.even(order, 1, 1, 1)).makespan_s == 9
    split = from_csv("0F0,0B0,0W0\n")
    assert split.label(1) == "0I0"


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("0F0,0X0\n", ["line 1", "column 2", "`0X0` is not an operation"]),
        ("0F0,0B0\n0B1,0F1\n", ["line 2", "column 1", "stage 0 is on row 1"]),
        ("0B0,0F0\n", ["line 1", "column 1", "`0B0` before `0F0`"]),
        ("0F0,0F0,0B0\n", ["line 1", "column 2", "already in row 1, column 1"]),
        ("0F0,0W0,0I0\n", ["line 1", "column 2", "`0W0` before `0I0`"]),
        ("0F0,0F1,0B0\n", ["line 1", "no `0B1`"]),
        ("0F0,0B0\n2F0,2B0\n", ["no row has stage 1"]),
        ("(0F0;0F1)OVERLAP_F_B\n", ["line 1", "column 1", "not a forward with a backward"]),
        ("0F99999999\n", ["column 1"]),
        ("0F1000000\n", ["no `0F0`"]),
        ("", ["no operations"]),
        ("\n,,\n", ["no operations"]),
        (",SEND\n0F0\n", ["line 1", "column 2", "`SEND` is not an operation"]),
    ],
)
def test_wrong_csv_names_row_and_column(text: str, parts: list[str]) -> None:
    with pytest.raises(InputError) as caught:
        from_csv(text, "mine.csv")
    for part in ["mine.csv", *parts]:
        assert part in str(caught.value)


def test_a_deadlock_names_row_and_column() -> None:
    text = "0F0,0B0,0F1,0B1\n1F1,,1B1,1F0,1B0\n"
    order = from_csv(text, "mine.csv")
    with pytest.raises(InputError) as caught:
        simulate(order, Costs.even(order, 1, 1, 1))
    first, second = str(caught.value).splitlines()
    assert first.startswith("mine.csv, line 1, column 2: `0B0` waits for `1B0` (row 2, column 5)")
    assert second.startswith("mine.csv, line 2, column 1: `1F1` waits for `0F1` (row 1, column 3)")


def test_a_long_csv_that_deadlocks_names_the_place_of_the_full_schedule() -> None:
    """In turn, but stage 1 expects micro-batch 301 before 300."""
    row = [[f"{stage}{kind}{j}" for j in range(400) for kind in "FB"] for stage in (0, 1)]
    row[1][600:604] = row[1][602:604] + row[1][600:602]
    order = from_csv("\n".join(",".join(cells) for cells in row))
    with pytest.raises(InputError, match=r"line 2, column 601: `1F301` waits for `0F301` .row 1, column 603"):
        simulate(order, Costs.even(order, 1, 1, 1))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("theirs", "ours"),
    [("GPipe", "gpipe"), ("Interleaved1F1B", "interleaved"), ("DualPipeV", "dualpipe-v"), ("ZBVZeroBubble", "zb-v")],
)
def test_the_schedules_of_torch(theirs: str, ours: str) -> None:
    """The same orders as torch.distributed.pipelining generates; for ZB-V another one that takes as long."""
    visualizer = pytest.importorskip("torch.distributed.pipelining._schedule_visualizer")
    for p, m in ((4, 8), (4, 16), (8, 24)):
        v = 1 if ours == "gpipe" else 2
        rows = visualizer.get_schedule_ops(theirs, p, m, v)
        order = from_csv("\n".join(",".join("" if op is None else str(op) for op in row) for row in rows))
        mine = make(ours, p, m, v)
        if ours != "zb-v":
            assert order.code.tolist() == mine.code.tolist()
        for unit in ((1.0, 1.0, 1.0), (1.0, 1.3, 0.9)):
            one, two = (simulate(each, Costs.even(each, *unit)).makespan_s for each in (order, mine))
            assert two <= one * 1.0001 if ours == "zb-v" and unit[1] == 1 else two == pytest.approx(one, rel=0.05)
