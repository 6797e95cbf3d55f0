"""Bounds of a step that no split of the layers beats: against the simulator, and against the best split there is."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from meshwright.cost_models.layouts import SCHEDULES
from meshwright.cost_models.schedule_kinds import CODE, KINDS
from meshwright.cost_models.schedules import simulator
from meshwright.cost_models.schedules.critical_path import device_path, longest_paths
from meshwright.cost_models.schedules.simulator import Costs, Schedule
from meshwright.cost_models.step import pipeline_bounds
from meshwright.cost_models.step.pipeline_bounds import Pipelines, least_step_s
from numpy.typing import NDArray
from scipy.optimize import linprog

Array = NDArray[np.float64]
CHUNKS = {"interleaved": (2, 3, 4), "zb-v": (2,), "dualpipe-v": (2,)}


def simulated(order: Schedule, parts: Array, hop_s: float) -> simulator.Timeline:
    """parts: [3, chunk] seconds of F, I and W."""
    f, i, w = (tuple(row.tolist()) for row in parts)
    hops = (hop_s,) * order.num_chunks
    return simulator.simulate(order, Costs(forward_s=f, input_s=i, weight_s=w, forward_hop_s=hops, backward_hop_s=hops))


def bound(
    name: str, p: int, m: int, v: int, parts: Array, shares: list[Array], hop_s: float = 0.0, exposed_s: float = 0.0
) -> float:
    """parts: [3, chunk] seconds; shares: [3] F, I and W of each kind of layer and of the head, by unit of work."""
    total_s = parts.sum()
    columns = {"pp": p, "vpp": v, "m": m, "total_s": total_s, "weight_s": parts[2].sum(), "hop_s": hop_s,
               "layers_s": total_s - exposed_s, "load_s": total_s / p,
               "forward_share": min(x[0] / x.sum() for x in shares),
               "weight_share": max(x[2] / x.sum() for x in shares)}  # fmt: skip
    code = np.array([SCHEDULES.index(name)])
    return float(least_step_s(Pipelines(schedule=code, **{k: np.array([float(x)]) for k, x in columns.items()}))[0])


def least_of_all_splits(order: Schedule, share: Array) -> float:
    """Seconds of the fastest split of one unit of work, in any fractions: paths of the order as cutting planes."""
    chunks, p = order.num_chunks, order.num_devices
    paths = [device_path(order, device) for device in range(p)]
    for _ in range(60):
        rows = [path.forward * share[0] + path.inputs * share[1] + path.weights * share[2] for path in paths]
        cuts = np.column_stack([rows, -np.ones(len(rows))])
        unit = np.append(np.ones(chunks), 0.0)[None]
        found = linprog(np.append(np.zeros(chunks), 1.0), A_ub=cuts, b_ub=np.zeros(len(rows)), A_eq=unit, b_eq=[1.0])
        *sizes, least = np.asarray(found.x).tolist()
        run = simulated(order, np.outer(share, np.maximum(sizes, 0.0)), 0.0)
        if run.compute_end_s.max() <= least * (1 + 1e-6):
            break
        paths += longest_paths(run, range(p))
    return float(least)


CASES = (
    ("interleaved", 4, 4, 2), ("interleaved", 4, 8, 2), ("interleaved", 4, 8, 4), ("interleaved", 6, 12, 2),
    ("interleaved", 4, 3, 2), ("interleaved", 6, 2, 2), ("interleaved", 4, 10, 2), ("interleaved", 3, 11, 3),
    ("1f1b", 4, 3, 1), ("1f1b", 4, 4, 1), ("1f1b", 8, 16, 1), ("zb-h1", 4, 3, 1), ("zb-h1", 4, 4, 1),
    ("zb-h1", 8, 12, 1), ("zb-h1", 4, 16, 1), ("zb-v", 4, 4, 2), ("zb-v", 4, 16, 2), ("zb-v", 6, 12, 2),
    ("dualpipe-v", 4, 8, 2), ("dualpipe-v", 4, 16, 2), ("gpipe", 4, 6, 1),
)  # fmt: skip
SHARES = ((1 / 3, 1 / 3, 1 / 3), (0.25, 0.5, 0.25), (0.2, 0.4, 0.4))


@pytest.mark.parametrize(("name", "p", "m", "v"), CASES)
def test_no_split_is_faster(name: str, p: int, m: int, v: int) -> None:
    """Never above the best split in fractions of layers, nor far below it; and more than m/p, the work of a device."""
    order = simulator.make(name, p, m, v)
    for share in map(np.array, SHARES):
        least = least_of_all_splits(order, share)
        found = bound(name, p, m, v, share[:, None], [share])
        assert found <= least * (1 + 1e-6)
        assert found >= least * (0.88 if m > p else 0.75)
        assert found > m / p * 1.005 or m <= p or order.period > p  # interleaved in larger groups


def test_every_schedule_is_a_case() -> None:
    assert {name for name, *_ in CASES} == set(SCHEDULES)


@pytest.mark.parametrize("form", ["_interleaved_s", "_zb_h1_s", "_v_shaped_s"])
def test_a_bound_too_high_is_seen(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    honest = getattr(pipeline_bounds, form)
    codes = [code for code, known in pipeline_bounds._LEAST.items() if known is honest]
    for code in codes:
        monkeypatch.setitem(pipeline_bounds._LEAST, code, lambda x: honest(x) * 1.1)
    names = [SCHEDULES[code] for code in codes]
    share, wrong = np.array(SHARES[0]), 0
    for name, p, m, v in (case for case in CASES if case[0] in names and case[1] < 6):
        least = least_of_all_splits(simulator.make(name, p, m, v), share)
        wrong += bound(name, p, m, v, share[:, None], [share]) > least * (1 + 1e-6)
    assert wrong


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_random_splits(data: st.DataObject) -> None:
    """Two kinds of layers, embedding and head in any amounts on any chunks, messages, traffic that is exposed: no
    simulated step is shorter."""
    name = data.draw(st.sampled_from(SCHEDULES))
    p, v = data.draw(st.integers(2, 6)), data.draw(st.sampled_from(CHUNKS.get(name, (1,))))
    m = data.draw(st.integers(2 * p if name == "dualpipe-v" else 1, 4 * p))
    order = simulator.make(name, p, m, v)
    amounts = st.floats(0.0, 4.0) | st.just(0.0)
    part = st.floats(0.05, 1.0)
    shares = [np.array(data.draw(st.tuples(part, part, part))) for _ in range(4)]
    work = np.array(data.draw(st.lists(st.tuples(amounts, amounts), min_size=p * v, max_size=p * v)))
    work[0, 0] += 0.1
    parts = np.array(shares[:2]).T @ work.T
    parts[:, 0] += shares[2] * data.draw(amounts)
    parts[:, -1] += shares[3] * data.draw(amounts)
    exposed = np.array(data.draw(st.lists(amounts, min_size=p, max_size=p)))[order.device] / v
    parts[1] += exposed
    hop_s = data.draw(st.sampled_from([0.0, 0.05, 0.5]))
    kind = KINDS[CODE[name]]
    on_last = shares[3:] if kind.splits_backward and not kind.folded else []  # in a V the ends sit on the first device
    found = bound(name, p, m, v, parts, shares[:2] + on_last, hop_s, float(exposed.sum()))
    assert found <= simulated(order, parts, hop_s).makespan_s * (1 + 1e-9)
