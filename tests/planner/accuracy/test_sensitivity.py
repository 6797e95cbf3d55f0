"""What each number set by hand is worth."""

from __future__ import annotations

import pytest
from meshwright.planner.accuracy import sensitivity
from meshwright.planner.accuracy.sensitivity import effects, numbers

from .shipped import shipped_cases


def test_the_numbers_are_those_of_the_file() -> None:
    every = numbers()
    assert len(every) > 150
    assert every["training_factor", "h100-sxm-80gb", "gemm"] == 0.86
    assert every["trees", "efficiency"] == 0.65


def test_a_slower_device_makes_its_runs_slower_and_no_others() -> None:
    """H100 in bf16 with a fifth of the rate of its products gone: its runs move, those of A100 do not."""
    runs = [case for case in shipped_cases() if case.core and case.measured.step_s]
    of_h100 = [case for case in runs if case.cluster.gpu.name == "h100-sxm-80gb" and case.workload.precision == "bf16"]
    of_a100 = [case for case in runs if case.cluster.gpu.name == "a100-sxm-80gb"]
    chosen = [*of_h100[:3], *of_a100[:3]]
    error, found = effects(chosen)
    by_name = {effect.name: effect for effect in found}
    products = by_name["training_factor h100-sxm-80gb gemm"]
    assert products.runs == 3
    assert products.size(error) > 0.01
    assert not products.fitted
    assert by_name["memory_efficiency a100-sxm-80gb fused"].fitted
    assert by_name["training_factor b200-sxm-180gb gemm"].runs == 0
    sizes = [effect.size(error) for effect in found]
    assert sizes == sorted(sizes, reverse=True)


@pytest.mark.slow
def test_numbers_that_are_not_tried_on_a_run_do_not_move_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The quick way, which prices only runs that a number may move, gives what pricing all of them gives."""
    runs = [case for case in shipped_cases() if case.core and case.measured.step_s]
    chosen = runs[::30]
    quick = effects(chosen)
    monkeypatch.setattr(sensitivity, "_touches", lambda place, case: True)
    assert effects(chosen) == quick
