"""CO2 on ranks, beside a restatement of its algorithm in one process."""

from __future__ import annotations

import pytest
from meshwright.runtime.job import Job
from meshwright.runtime.rehearsal.exchanged import planned_bytes

from ..techniques_of import Adam, Model, Weights, differ, run, trained_by


def restated(wanted: Job, period: int, late: bool) -> list[list[Weights]]:
    """Weights of each replica after each step."""
    model, n = Model(wanted), 2
    x, velocity = model.start, {name: 0 * w for name, w in model.start.items()}
    y, adam, out = [model.start for _ in range(n)], [Adam(wanted, model.start) for _ in range(n)], []
    ended: list[tuple[Weights, Weights]] = []  # of each round: its start, and the mean of its ends
    for step in range(wanted.steps):
        for r in range(n):
            adam[r].step(y[r], model.gradients(y[r], step, r, n)[0])
        if (step + 1) % period == 0:
            ended.append((x, {name: (y[0][name] + y[1][name]) / 2 for name in x}))
            x = dict(x)
            if used := ended[-2:-1] if late else ended[-1:]:
                begun, mean = used[0]
                for name in x:
                    moved = (0.5 * velocity[name] + begun[name] - mean[name]).clamp(-1, 1)
                    velocity[name], x[name] = moved, x[name] - moved
            y = [dict(x) for _ in range(n)]
        out.append([dict(weights) for weights in y])
    return out


@pytest.mark.parametrize(("period", "late"), [(2, True), (1, True), (3, False)])
def test_trains_as_restated(period: int, late: bool) -> None:
    wanted = trained_by("co2", "dp2-mbs1-z0-rnone", {"period": period, "late": late})
    ran, expected = run(wanted), restated(wanted, period, late)
    for step in range(wanted.steps):
        for replica in range(2):
            assert differ(ran[replica].weights[step], expected[step][replica]) < 1e-12, (step, replica)
    planned = 2 * planned_bytes(wanted)[0]  # float64, where the ledger has fp32
    for rank in ran:
        assert rank.given == {"allreduce_": planned}
        assert rank.sent == (planned, 0.0)
