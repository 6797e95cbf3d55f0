"""The rules on numbers of micro-batches against the constructors of torch's schedules, on random draws."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from meshwright.cost_models.arrays import Mask
from meshwright.cost_models.layouts import SCHEDULES, Layout, Layouts
from meshwright.cost_models.problem import Problem
from meshwright.cost_models.schedule_kinds import KINDS
from meshwright.cost_models.schedules.csv import from_csv
from meshwright.cost_models.schedules.simulator import make
from meshwright.planner.request.load import load_request
from meshwright.planner.request.resolve import resolve
from meshwright.planner.space.rules import RULES, Columns, Rule, micro_batches
from meshwright.planner.targets.registry import TARGETS
from meshwright.planner.targets.torchtitan.options import SCHEDULES as CLASSES

visualizer = pytest.importorskip("torch.distributed.pipelining._schedule_visualizer")
ASKED = {"model": "llama-3.1-8b", "cluster": "dgx-h100:1", "seq_len": 4096, "global_batch": 8}
PROBLEM = resolve(load_request(None, ASKED)).problem


def is_taken(schedule: str, pp: int, m: int, chunks: int) -> bool:
    """Whether torch builds the schedule for m micro-batches."""
    try:
        visualizer.get_schedule_ops(CLASSES[schedule], pp, m, chunks)
    except ValueError:
        return False
    return True


ALL_RULES = RULES + TARGETS["torchtitan"].rules


def is_legal(schedule: str, pp: int, m: int, chunks: int, rules: Sequence[Rule] = ALL_RULES) -> bool:
    """Whether all rules of the space and of torchtitan allow it."""
    problem = replace(PROBLEM, num_gpus=pp, workload=replace(PROBLEM.workload, global_batch=m))
    columns = Layouts.of([Layout(pp=pp, vpp=chunks, schedule=SCHEDULES.index(schedule), zero=0)])
    return all(bool(rule.allows(columns, problem)[0]) for rule in rules)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("schedule", CLASSES)
@given(pp=st.integers(2, 9), m=st.integers(1, 40), vpp=st.integers(2, 3))
def test_torch_takes_what_is_planned_and_nothing_else(schedule: str, pp: int, m: int, vpp: int) -> None:
    chunks = KINDS[SCHEDULES.index(schedule)].chunks or vpp
    assert is_legal(schedule, pp, m, chunks) == is_taken(schedule, pp, m, chunks)


def _whole_rounds(columns: Columns, problem: Problem) -> Mask:
    """As Megatron-LM without --microbatch-group-size-per-virtual-pipeline-stage asks; torch does not."""
    return np.asarray((columns["vpp"] == 1) | (micro_batches(columns, problem) % columns["pp"] == 0))


TOO_STRICT = (*ALL_RULES, Rule("planted", ("pp", "dp", "micro_batch", "vpp"), _whole_rounds, "planted"))
TOO_LOOSE = tuple(rule for rule in ALL_RULES if "micro-batches" not in rule.name)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("rules", [TOO_STRICT, TOO_LOOSE], ids=["too strict", "too loose"])
def test_a_planted_rule_is_seen(rules: Sequence[Rule]) -> None:
    cases = [(name, pp, m, KINDS[SCHEDULES.index(name)].chunks or 2) for name in CLASSES for pp in (2, 3)
             for m in range(1, 9)]  # fmt: skip
    assert all(is_legal(*case) == is_taken(*case) for case in cases)
    assert any(is_legal(*case, rules) != is_taken(*case) for case in cases)


@pytest.mark.filterwarnings("ignore")
@given(pp=st.integers(2, 8), m=st.integers(1, 30), vpp=st.integers(2, 4))
def test_interleaved_passes_are_those_that_are_priced(pp: int, m: int, vpp: int) -> None:
    """Operation for operation, whether pp divides the micro-batches or not, and where there are fewer than stages."""
    if is_taken("interleaved", pp, m, vpp):
        rows = visualizer.get_schedule_ops(CLASSES["interleaved"], pp, m, vpp)
        text = "\n".join(",".join("" if op is None else str(op) for op in row) for row in rows)
        assert from_csv(text).code.tolist() == make("interleaved", pp, m, vpp).code.tolist()
