"""Every pass once, in an order that no rank waits in for ever, with as much in flight as the planner counts."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from meshwright.cost_models.layouts import SCHEDULES
from meshwright.cost_models.stages import in_flight
from meshwright.runtime.schedules import Action, actions


def all_orders(schedule: str, pp: int, vpp: int, m: int) -> list[list[Action]]:
    return [actions(schedule, stage, pp, vpp, m) for stage in range(pp)]


def runs_to_the_end(orders: list[list[Action]], pp: int, vpp: int) -> bool:
    """Ranks run their next pass as soon as what it needs has been sent."""
    done: set[tuple[str, int, int]] = set()
    position = [0] * pp
    moved = True
    while moved:
        moved = False
        for stage, order in enumerate(orders):
            while position[stage] < len(order):
                kind, local, i = order[position[stage]]
                chunk = local * pp + stage
                last = chunk == pp * vpp - 1
                needs = ("F", chunk - 1, i) if kind == "F" else (("F", chunk, i) if last else ("B", chunk + 1, i))
                if needs not in done and not (kind == "F" and chunk == 0):
                    break
                done.add((kind, chunk, i))
                position[stage] += 1
                moved = True
    return all(at == len(order) for at, order in zip(position, orders, strict=True))


@given(st.sampled_from(["1f1b", "gpipe", "interleaved"]), st.integers(1, 6), st.integers(2, 4), st.integers(1, 4))
def test_every_pass_once_and_no_deadlock(schedule: str, pp: int, vpp: int, rounds: int) -> None:
    vpp = vpp if schedule == "interleaved" and pp > 1 else 1
    m = rounds * pp
    orders = all_orders(schedule, pp, vpp, m)
    for order in orders:
        assert sorted(order) == sorted(Action(k, c, i) for k in ("F", "B") for c in range(vpp) for i in range(m))
    assert runs_to_the_end(orders, pp, vpp)


@pytest.mark.parametrize(("schedule", "pp", "vpp", "m"), [
    ("1f1b", 4, 1, 8), ("1f1b", 4, 1, 2), ("gpipe", 4, 1, 6), ("interleaved", 4, 2, 8), ("interleaved", 2, 8, 4),
])  # fmt: skip
def test_as_much_in_flight_as_the_planner_counts(schedule: str, pp: int, vpp: int, m: int) -> None:
    for stage, order in enumerate(all_orders(schedule, pp, vpp, m)):
        held = most = 0
        for action in order:
            held += 1 if action.kind == "F" else -1
            most = max(most, held)
        one = (np.array([value]) for value in (SCHEDULES.index(schedule), pp, vpp, m, stage))
        assert most / vpp == pytest.approx(float(in_flight(*one)[0]))
