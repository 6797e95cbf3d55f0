"""The fit of hardware that is not NVIDIA's: what it may move, how well it does on runs that it did not see."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from meshwright.planner.accuracy import other_hardware
from meshwright.planner.accuracy.calibrate import Used
from meshwright.planner.accuracy.folds import Cell, cell_of
from meshwright.planner.accuracy.row import Case
from meshwright.planner.accuracy.runs import Problems, read_cases
from meshwright.planner.accuracy.validate import validate
from meshwright.profiles.io import registry
from meshwright.profiles.rates import calibration, constants
from meshwright.profiles.rates.calibration import fitted_formats
from meshwright.profiles.rates.device_rates import surfaces_for
from meshwright.profiles.rates.reference_devices import generation

from ...snapshots import ROOT, run_here
from .shipped import shipped_cases

MOST_CONSTANTS = 30


@cache
def runs() -> tuple[list[Case], Problems]:
    problems = Problems([])
    return list(read_cases(other_hardware.files(), problems)), problems


def test_every_shipped_run_is_read() -> None:
    cases, problems = runs()
    assert not problems.first
    assert (len(cases), len(problems.unpriced)) == (98, 7)
    assert all(run.quality == "C" for run in problems.unpriced)
    assert not Used.of(cases).refused


def test_constants_are_few() -> None:
    assert len(constants.constants()) + len(constants.constants(table=constants.OTHER_TABLE)) <= MOST_CONSTANTS


def test_runs_on_nvidia_gpus_are_not_moved() -> None:
    other = constants.constants(table=constants.OTHER_TABLE)
    for case in shipped_cases():
        assert not any(constants.touches(constant, case.stack_name, case.cluster) for constant in other), case.id


def test_what_ships_is_what_the_table_has() -> None:
    shipped = {place for place, _ in constants.places(calibration.shipped())}
    assert {constant.place for constant in constants.constants(table=constants.OTHER_TABLE)} <= shipped
    assert all(constant.place not in {place for place, _ in constants.places(calibration.of_runs())}
               for constant in constants.constants(table=constants.OTHER_TABLE))  # fmt: skip


@pytest.mark.parametrize("name", ["tpu-v5e", "tpu-v5p", "tpu-v6e", "tpu7x", "mi300x", "mi325x", "mi350x", "mi355x"])
def test_no_product_is_faster_than_the_peak(name: str) -> None:
    gpu = registry.load_gpu(name)
    assert fitted_formats(gpu)
    for surface in surfaces_for(gpu).gemm.values():
        assert 0.2 < surface.efficiency * surface.training_factor <= 1.0


def test_only_fitted_formats_are_called_fitted() -> None:
    assert fitted_formats(registry.load_gpu("mi300x")) == ("fp8",)
    assert fitted_formats(registry.load_gpu("h100")) == ()
    assert generation(registry.load_gpu("mi350x").arch) == generation(registry.load_gpu("mi355x").arch)


def test_errors_in_folds() -> None:
    """Fits without a run's source, family of models and generation: the median of quality A is within a tenth."""
    errors = other_hardware.fold_errors(validate(other_hardware.files()).rows)
    assert errors["quality A"].count == 40
    assert errors["quality A"].median < 0.1
    stated = (ROOT / "README.md").read_text(encoding="utf-8")
    assert f"off by {100 * errors['quality A'].median:.1f} % in the median of complete rows" in stated
    left_out = json.loads(other_hardware.LEFT_OUT_FILE.read_text(encoding="utf-8"))
    assert set(left_out) == {case.id for case in Used.of(runs()[0]).cases}


@pytest.mark.slow
def test_the_fit_that_ships_is_found_again() -> None:
    cases = Used.of(runs()[0]).cases
    fitted, left_out = other_hardware.fit_other(cases, calibration.of_runs())
    stored = json.loads(other_hardware.LEFT_OUT_FILE.read_text(encoding="utf-8"))
    assert left_out == pytest.approx([stored[case.id] for case in cases], rel=2e-3)
    values = dict(constants.places(calibration.shipped()))
    for constant, z, spread in zip(fitted.constants, fitted.z, fitted.spread, strict=True):
        assert constant.value(float(z)) == pytest.approx(values[constant.place], rel=2e-3)
        assert spread < constants.UNIDENTIFIED, constant.name
    chosen = np.array([cell_of(case).hides(Cell("", "llama", "tpu-v6e")) for case in cases])
    slower = [replace(case, measured=replace(case.measured, step_s=2 * (case.measured.step_s or 0))) if there else case
              for case, there in zip(cases, chosen, strict=True)]  # fmt: skip
    others = np.array([cell_of(case).hides(Cell("", "gemma", "tpu-v6e")) for case in cases])
    wanted = {cell_of(case) for case, there in zip(cases, chosen | others, strict=True) if there}
    moved = other_hardware.fit_other(slower, calibration.of_runs(), wanted)[1]
    assert moved[chosen] == pytest.approx(left_out[chosen], rel=1e-2)  # by fits that saw none of them
    assert np.all(moved[others] > 1.2 * left_out[others])


def test_a_cell_is_left_out_whole() -> None:
    cells = [cell_of(case) for case in runs()[0]]
    assert Cell("AI-Hypercomputer/tpu-recipes README.md", "llama", "tpu-v6e") in cells
    assert Cell("mlcommons/training_results_v5.1", "llama", "cdna4") in cells
    assert len(set(cells)) == 24


def test_the_command() -> None:
    done = run_here("validate", "--other-hardware", "--no-rows", "--json")
    document = json.loads(done.out)
    assert document["summary"]["counts"]["rows"] == 105
    assert math.isclose(document["folds"]["quality A"]["median"], 0.07, abs_tol=0.03)
    clash = run_here("validate", "--other-hardware", "runs.yaml")
    assert (clash.code, "leave one of them out" in clash.err) == (2, True)


def test_tpus_are_planned_as_their_software_runs() -> None:
    done = run_here("plan", "--model", "llama-3.1-8b", "--gpu", "tpu-v5p", "--gpus", "64", "--json",
                    *(part for fixed in ("tp=1", "pp=1", "cp=1", "zero=3") for part in ("--fix", fixed)))  # fmt: skip
    plan = json.loads(done.out)
    assert plan["resolved"]["stack"]["name"] == "xla"
    assert [level.get("torus") for level in plan["resolved"]["cluster"]["levels"]] == [[4, 4, 4]]
    terms = {term["name"]: term["source"] for term in plan["candidates"][0]["terms"]}
    assert (terms["matmul"], terms["attention"]) == ("fitted", "assumed")
