"""accelerate and DeepSpeed read what is emitted for them; `make test-upstream` does the same for all frameworks."""

from __future__ import annotations

import importlib.util

import pytest
from meshwright.planner.emitters.emit import Refused, emit
from meshwright.planner.emitters.own_parser import case, installed, verdicts
from meshwright.planner.emitters.setup import Setup

from .emit_corruptions import CATALOGUE, corrupted
from .emit_plans import random_plans


def test_a_framework_that_is_absent_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MEGATRON_PATH", raising=False)
    assert installed("megatron") is None
    assert (installed("accelerate") is None) == (importlib.util.find_spec("accelerate") is None)


@pytest.mark.slow
@pytest.mark.parametrize("target", ["accelerate", "deepspeed"])
def test_the_framework_accepts_what_is_emitted_and_not_everything(target: str) -> None:
    if installed(target) is None:
        pytest.skip(f"{target} is not installed")
    cases, folders = [], []
    for plan in random_plans(target, 40)[0]:
        try:
            files = dict(emit(plan, target).files)
        except Refused:
            continue
        folders.append(files)
        cases.append(case(target, files, Setup.of(plan, 1)))
    assert len(cases) > 30
    assert verdicts(target, cases) == [None] * len(cases)
    wrong = [files for kind, files in corrupted(target, folders, 5 * len(CATALOGUE[target])) if kind == "wrong type"]
    setup = Setup.of(random_plans(target, 1)[0][0], 1)
    # Not all of them: accelerate takes `four` for a number of steps.
    assert any(verdicts(target, [case(target, files, setup) for files in wrong]))
