"""The fit that ships, and its errors on runs that are unlike all that it saw."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from meshwright.planner.accuracy.cross_validation import Runs, left_out
from meshwright.planner.accuracy.fit import Fitter, fit
from meshwright.planner.accuracy.fold_report import LEFT_OUT_FILE, FoldReport, fold_report, report_of
from meshwright.planner.accuracy.folds import Cell, cell_of, cells
from meshwright.planner.accuracy.reserve_fit import reserve_share
from meshwright.planner.accuracy.row import Case
from meshwright.planner.accuracy.ship import interval_text, left_out_text, ship, shipped_text
from meshwright.planner.evaluation import intervals
from meshwright.profiles.rates import calibration, constants
from meshwright.profiles.rates.calibration import PRIORS

from ...snapshots import ROOT, run_here
from .shipped import shipped_cases, shipped_summary


@pytest.fixture(scope="module")
def cases() -> Sequence[Case]:
    return [case for case in shipped_cases() if case.scored and case.measured.step_s]


@pytest.fixture(scope="module")
def report() -> FoldReport:
    return fold_report()


@pytest.mark.slow
def test_the_fit_reproduces_what_ships() -> None:
    """A minute. After a change of prices: `python -m meshwright.planner.accuracy.ship`."""
    found = ship()
    assert shipped_text(found, reserve_share(shipped_cases())) == calibration.SHIPPED_FILE.read_text(encoding="utf-8")
    assert left_out_text(found) == LEFT_OUT_FILE.read_text(encoding="utf-8")


def test_the_intervals_are_those_of_the_runs_left_out() -> None:
    """The file follows from the stored predictions and the shipped runs."""
    stored = json.loads(LEFT_OUT_FILE.read_text(encoding="utf-8"))
    assert interval_text(stored) == intervals.FILE.read_text(encoding="utf-8")
    assert 0 < intervals.indifference() < intervals.ranking_lead()


def test_the_readme_has_the_errors(report: FoldReport) -> None:
    shipped = shipped_summary()
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    for errors in (report.step_time["core"], shipped.step_time.core):
        assert errors is not None
        assert f"| {100 * errors.median:.1f} % | {100 * errors.mean:.1f} % |" in readme
    assert f"{shipped.counts.step_time_scored} of them are scored" in readme


def test_a_cell_hides_its_source_and_its_family_on_its_gpus() -> None:
    cell = Cell("a", "llama", "hopper")
    assert cell.hides(Cell("a", "gpt", "ampere"))
    assert cell.hides(Cell("b", "llama", "hopper"))
    assert not cell.hides(Cell("b", "llama", "ampere"))
    assert not cell.hides(Cell("b", "gpt", "hopper"))


def test_every_run_is_in_one_cell_and_unseen_there(cases: Sequence[Case]) -> None:
    parts = list(cells(cases))
    assert np.array_equal(np.sum([part for part, _ in parts], axis=0), np.ones(len(cases)))
    for part, unseen in parts:
        assert unseen[part].all()
        hidden = {cell_of(case) for case, hides in zip(cases, unseen, strict=True) if hides}
        seen = {cell_of(case) for case, hides in zip(cases, unseen, strict=True) if not hides}
        own = cell_of(cases[int(np.argmax(part))])
        assert own.source not in {cell.source for cell in seen}
        assert not hidden & seen


@pytest.mark.slow
def test_fits_to_parts_are_those_of_the_whole_search(cases: Sequence[Case]) -> None:
    """The expansion around the full fit gives the seconds of a fit that starts at the priors, to 1 %."""
    runs = [case for case in cases if case.stack.name in ("torchtitan", "jax", "internevo")]
    names = ("torchtitan throughput", "internevo throughput", "h100-hbm2e-96gb training_factor gemm")
    chosen = [constant for constant in constants.constants() if constant.name in names]
    assert len(chosen) == len(names)
    fitter, of = Fitter(runs, chosen, PRIORS, "fitted"), Runs.of(runs)
    full = fit(fitter, of.log_measured, of.weight(np.ones(len(runs), dtype=bool)))
    around = fitter.expansion(full.z, np.log(full.seconds))
    moved = 0.0
    for part, unseen in list(cells(runs))[:4]:
        quick = left_out(fitter, around, of, [(part, unseen)])[part]
        exact = fit(Fitter(runs, chosen, PRIORS, "fitted"), of.log_measured, of.weight(~unseen))
        assert quick == pytest.approx(exact.seconds[part], rel=0.01)
        moved = max(moved, float(np.abs(quick / full.seconds[part] - 1).max()))
    assert moved > 0.05  # and they are other fits than the full one


@pytest.mark.slow  # for the report, which it shares with slow ones
def test_intervals_cover_nine_in_ten_of_the_runs_left_out(report: FoldReport) -> None:
    for name in ("all", "core", "experts"):
        assert 0.88 <= report.coverage[name].covered <= 0.94, name


def test_the_report_takes_an_offset_out_of_a_source(cases: Sequence[Case]) -> None:
    """Runs of one source all predicted 20 % too long have an offset and no error of order."""
    some = [case for case in cases if case.core and case.source.startswith("mlcommons")]
    exact = {case.id: float(case.measured.step_s or 0) for case in some}
    off = report_of(some, {run: 1.2 * seconds for run, seconds in exact.items()})
    assert off.step_time["core"].mean == pytest.approx(0.2)
    assert off.order is not None
    assert off.order.mean == pytest.approx(0.0, abs=1e-9)
    assert list(off.offsets.values()) == pytest.approx([0.2] * len(off.offsets))
    spread = {case.id: exact[case.id] * (1.3 if i % 2 else 1.1) for i, case in enumerate(some)}
    worse = report_of(some, spread).order
    assert worse is not None
    assert worse.mean > 0.03


def test_intervals_are_wider_where_less_is_known() -> None:
    def width(**known: bool) -> float:
        low, high = intervals.factors("dense-fsdp", **{"known": True, "narrow": False, "measured": True, **known})
        return high - low

    assert width() < width(narrow=True)
    assert width() < width(known=False)
    assert width() < width(measured=False)
    wide, dense = (intervals.factors(regime, known=True, narrow=False, measured=True) for regime in ("moe", "dense-pp"))
    assert wide[1] / wide[0] > dense[1] / dense[0]


def test_a_cell_that_is_far_off_widens_no_interval_of_its_own(cases: Sequence[Case]) -> None:
    """Coverage of unseen cells: one cell is predicted three times too long, which its own interval must not learn."""
    some = [case for case in cases if case.source.startswith(("mosaicml", "foundation", "pytorch"))]
    exact = {case.id: float(case.measured.step_s or 0) for case in some}
    cell = cell_of(some[0])
    off = {case.id: exact[case.id] * (3.0 if cell_of(case) == cell else 1.0) for case in some}
    covered = report_of([replace(case, core=True) for case in some], off).coverage["all"].covered_unseen
    share = np.mean([cell_of(case) != cell for case in some])
    assert covered == pytest.approx(share)


@pytest.mark.slow
def test_the_command_prints_the_folds(
    tmp_path: Path, report: FoldReport, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = run_here("validate", "--folds", cwd=tmp_path)
    assert shown.code == 0
    core = report.step_time["core"]
    assert re.search(rf"core +{core.count} +{100 * core.median:.1f} +{100 * core.mean:.1f}", shown.out)
    assert "order within a source" in shown.out
    monkeypatch.setattr("meshwright.planner.accuracy.fold_report.fold_report", lambda progress: report)
    document = json.loads(run_here("validate", "--folds", "--json", cwd=tmp_path).out)
    assert document["kind"] == "validation-folds"
    assert document["coverage"]["experts"]["covered"] == pytest.approx(report.coverage["experts"].covered)


def test_folds_are_of_the_shipped_runs(tmp_path: Path) -> None:
    (tmp_path / "runs.yaml").write_text("")
    refused = run_here("validate", "runs.yaml", "--folds", "--core", cwd=tmp_path)
    assert refused.code == 2
    assert "--folds and FILE, --core: folds are of the shipped runs" in refused.err
