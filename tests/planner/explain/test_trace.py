"""A candidate over time: closed form against simulation, the trace document, the drawing, and what the commands do."""

from __future__ import annotations

import json
import random
from functools import cache
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from meshwright.cli.main import main
from meshwright.cost_models.layouts import SCHEDULES, Layout, Layouts, parse
from meshwright.cost_models.quantities.device_memory import DeviceMemory
from meshwright.cost_models.quantities.ledger import Ledger
from meshwright.cost_models.quantities.stages import Partition, chunks_per_stage, is_folded, split_rows
from meshwright.cost_models.rates.kernel_seconds import kernel_seconds
from meshwright.cost_models.schedule_kinds import CODE, KINDS
from meshwright.cost_models.schedules.simulator import Costs, make, simulate
from meshwright.planner.evaluation.staged import Staged
from meshwright.planner.explain import trace
from meshwright.planner.request.load import load_request
from meshwright.planner.request.resolve import Resolved, resolve
from meshwright.planner.search.pricing import price_layouts
from meshwright.planner.space.rules import violations

CASES = (("llama-3.1-8b", "dgx-h100:2", 128), ("llama-3.1-70b", "dgx-h100:8", 256), ("qwen2.5-32b", "dgx-h100:4", 256),
         ("mixtral-8x7b", "dgx-h100:4", 256), ("gpt-175b", "dgx-a100-80gb:16", 256))  # fmt: skip
# Simulation over closed form - 1, of schedules whose form is exact for equal stages, and of those with a bound only.
NEAR = {"gpipe": 0.01, "1f1b": 0.02, "interleaved": 0.06, "zb-h1": 0.08, "zb-v": 0.09, "dualpipe-v": 0.06}


@cache
def resolved(model: str, cluster: str, batch: int) -> Resolved:
    asked = {"model": model, "cluster": cluster, "global_batch": str(batch), "seq_len": 2048, "target": "any"}
    return resolve(load_request(None, asked))


def random_layouts(name: str, count: int) -> list[tuple[Resolved, Layout]]:
    """Legal layouts of real models with schedule `name`."""
    rng, out = random.Random(f"{name}"), list[tuple[Resolved, Layout]]()
    while len(out) < count:
        found = resolved(*rng.choice(CASES))
        tp, pp = rng.choice([1, 2, 4, 8]), rng.choice([2, 4, 8])
        vpp = KINDS[CODE[name]].chunks or rng.choice([2, 3, 4])
        if tp * pp > found.problem.num_gpus:
            continue
        layout = Layout.from_dict({
            "tp": tp, "pp": pp, "dp": found.problem.num_gpus // (tp * pp), "vpp": vpp, "schedule": name,
            "micro_batch": rng.choice([1, 2]), "zero": rng.choice([0, 1]),
            "recompute": {"mode": rng.choice(["none", "selective", "full"]), "modules": ["attn"]},
        })  # fmt: skip
        if layout.num_gpus == found.problem.num_gpus and not violations(layout, found.problem):
            out.append((found, layout))
    return out


@pytest.mark.parametrize("name", SCHEDULES)
def test_simulation_and_closed_form_agree(name: str) -> None:
    for found, layout in random_layouts(name, 5):
        one = Staged.of(found, layout, simulate=True)
        assert one.step_s == pytest.approx(one.closed_s, rel=NEAR[name]), str(layout)


def priced(resolved: Resolved, layout: Layout) -> Ledger:
    return price_layouts(resolved.problem, resolved.rates, Layouts.of([layout]))[0]


@pytest.mark.parametrize("name", SCHEDULES)
def test_chunks_add_up_to_the_stages_that_are_priced(name: str) -> None:
    for found, layout in random_layouts(name, 3):
        one = Staged.of(found, layout, simulate=True)
        order, costs, rows, problem = one.schedule, one.costs, one.rows, found.problem
        expected = split_rows(problem.pattern, problem.num_kinds, problem.edges, layout.pp,
                              chunks_per_stage(layout), is_folded(layout))  # fmt: skip
        sums = np.zeros_like(expected)
        np.add.at(sums, order.device, rows)
        assert np.array_equal(sums, expected)
        batch = priced(found, layout)
        forward = expected @ kernel_seconds(batch.tables, found.rates).forward_s[:, batch.key[0]]
        seconds = np.zeros(layout.pp)
        np.add.at(seconds, order.device, costs.forward_s)
        assert seconds == pytest.approx(forward)


def test_memory_at_the_peak_is_that_of_the_ledger() -> None:
    """1f1b holds min(m, p - i) micro-batches, in the simulation as in the closed form."""
    found = resolved(*CASES[0])
    layout = parse("tp2-pp4-dp2-mbs1-z1-rnone")
    peak = Staged.of(found, layout, simulate=True).timeline.peak_bytes
    batch = priced(found, layout)
    rows = Staged.of(found, layout, simulate=True).rows
    for device, row in enumerate(rows):
        j = int(np.flatnonzero((batch.splits.counts[int(batch.split[0])] == row).all(axis=1))[0])
        memory = DeviceMemory(batch)
        held = memory.buffers(j)
        held["activations"] = memory.activations(j, np.array([float(device)])).max(axis=0)
        assert peak[device] == pytest.approx(sum(float(value[0]) for value in held.values()))


def test_stages_of_ones_own_sizes_are_simulated() -> None:
    found, layout = resolved(*CASES[0]), parse("tp2-pp4-dp2-mbs1-z1-rnone")
    even = Staged.of(found, layout, simulate=True)
    assert even.split(Partition((12, 8, 8, 4))).step_s > even.step_s * 1.1


def test_the_trace_is_a_chrome_trace() -> None:
    found, layout = resolved(*CASES[0]), parse("tp2-pp4-dp2-mbs2-z1-rnone")
    one = Staged.of(found, layout, simulate=True)
    document = json.loads(trace.chrome_trace(one))
    events = document["traceEvents"]
    assert {event["ph"] for event in events} == {"M", "X", "s", "f", "C"}
    assert {event["pid"] for event in events} == set(range(4))
    compute = [event for event in events if event["ph"] == "X" and event["tid"] == 0]
    assert len(compute) == 2 * 4 * 32
    assert all(event["dur"] > 0 and event["ts"] >= 0 for event in compute)
    for pid in range(4):
        row = sorted((event["ts"], event["dur"]) for event in compute if event["pid"] == pid)
        assert all(start + dur <= later + 0.01 for (start, dur), (later, _) in pairwise(row))
    last = max(event["ts"] + event["dur"] for event in events if event["ph"] == "X")
    assert last / 1e6 == pytest.approx(one.timeline.makespan_s)
    sent, read = ([e["id"] for e in events if e["ph"] == phase] for phase in "sf")
    assert sorted(sent) == sorted(read)
    assert len(set(sent)) == len(sent) == 2 * 3 * 32
    assert max(e["args"]["GiB"] for e in events if e["ph"] == "C") == pytest.approx(
        one.timeline.peak_bytes.max() / 2**30, abs=1e-3
    )


def test_a_drawing_of_a_short_step() -> None:
    order = make("1f1b", 2, 2)
    lines = trace.draw(simulate(order, Costs.even(order, 1, 1, 1)), width=8 + 27)
    assert lines[:2] == ["stage 0 FFFFFF......BBBBBB...BBBBBB", "stage 1 ...FFFBBBBBBFFFBBBBBB......"]
    assert lines[-1] == "2 micro-batches, 9 s, stages idle 33.3 to 33.3 %"


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize("m", [8, 32, 512])
def test_a_drawing_fits_its_width(name: str, m: int) -> None:
    order = make(name, 4, m, 2)
    for width in (40, 80, 120):
        lines = trace.draw(simulate(order, Costs.even(order, 1, 1.2, 0.8, 0.1)), width)
        rows = lines[:4]
        assert all(len(line) <= width for line in rows)
        assert len({len(line) for line in rows}) == 1
        assert all("F" in row and ("B" in row or "I" in row) for row in rows)
        assert (" ... " in rows[0]) == (m == 512 or " ... " in rows[0])


def test_the_commands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan, out = tmp_path / "plan.json", tmp_path / "trace.json"
    asked = ["--model", "llama-3.1-8b", "--cluster", "dgx-h100:1", "--fix", "pp=4", "--global-batch", "16"]
    assert main(["plan", *asked, "-o", str(plan), "--trace", str(out)]) == 0
    document = json.loads(out.read_text())
    assert document["otherData"]["layout"] == json.loads(plan.read_text())["candidates"][0]["layout_id"]
    assert main(["plan", *asked, "--trace", str(out)]) == 2  # it exists
    capsys.readouterr()
    assert main(["explain", str(plan), "--plot"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert sum(line.startswith("stage ") for line in lines) == 4
    assert all(len(line) <= 80 for line in lines)
