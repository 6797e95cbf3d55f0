"""NoLoCo on ranks, beside a restatement of its algorithm in one process."""

from __future__ import annotations

from meshwright.runtime.rehearsal.exchanged import planned_bytes
from meshwright.runtime.techniques.noloco import partner

from ..techniques_of import Adam, Model, Weights, differ, run, trained_by

PERIOD = 2


def restated(wanted: object, pairs: list[dict[int, int]]) -> list[list[Weights]]:
    """Weights of each replica after each step. pairs: of each exchange, the other of every replica."""
    model = Model(wanted)  # type: ignore[arg-type]
    n = len(pairs[0])
    fast, slow = [model.start for _ in range(n)], [model.start for _ in range(n)]
    velocity = [{name: 0 * w for name, w in model.start.items()} for _ in range(n)]
    adam, out = [Adam(model.job, model.start) for _ in range(n)], []
    for step in range(model.job.steps):
        for r in range(n):
            adam[r].step(fast[r], model.gradients(fast[r], step, r, n)[0])
        if step % PERIOD == PERIOD - 1:
            change = [{name: fast[r][name] - slow[r][name] for name in slow[r]} for r in range(n)]
            old = [dict(weights) for weights in slow]
            for r, other in pairs[step // PERIOD].items():
                for name in slow[r]:
                    velocity[r][name] = (
                        0.5 * velocity[r][name] + 0.7 * (change[r][name] + change[other][name]) / 2
                        - 0.7 * (old[r][name] - (old[r][name] + old[other][name]) / 2)
                    )  # fmt: skip
                    slow[r][name] = old[r][name] + velocity[r][name]
                fast[r] = dict(slow[r])
        out.append([dict(weights) for weights in fast])
    return out


def test_pairs_change_and_hold_both_ways() -> None:
    for size in (2, 3, 4, 7):
        for exchange in range(20):
            others = [partner(rank, size, exchange, seed=5) for rank in range(size)]
            assert all(others[other] == rank for rank, other in enumerate(others))
            assert sum(other == rank for rank, other in enumerate(others)) == size % 2
    assert len({partner(0, 8, exchange, seed=0) for exchange in range(40)}) == 7


def test_trains_as_restated_and_sums_nothing() -> None:
    """Four replicas, three exchanges: weights equal, all that is sent is a message to the other of a pair."""
    wanted = trained_by("noloco", "dp4-mbs1-z0-rnone", {"period": PERIOD})
    ran = run(wanted)
    pairs = [{rank: partner(rank, 4, exchange, wanted.seed) for rank in range(4)} for exchange in range(3)]
    expected = restated(wanted, pairs)
    for step in range(wanted.steps):
        for replica in range(4):
            assert differ(ran[replica].weights[step], expected[step][replica]) < 1e-12, (step, replica)
    assert differ(ran[0].weights[-1], ran[1].weights[-1]) > 1e-4  # weights of replicas differ
    planned = 2 * planned_bytes(wanted)[0]  # float64, where the ledger has fp32
    for rank in ran:
        assert rank.given == {"send": planned}
        assert rank.sent == (planned, 0.0)
