"""Calibration: the table of constants, pricing again and again, and what a fit finds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from meshwright.cost_models.rates import STACK_FIELDS
from meshwright.planner.calibrate import SCATTER, Fitter, fit, loss, weights
from meshwright.planner.published import Problems, read_cases, shipped_files
from meshwright.planner.published_pricing import Batches, ledger_of, rates_of
from meshwright.planner.published_row import Case
from meshwright.planner.validate import predict
from meshwright.profiles import calibration, constants, stacks
from meshwright.profiles.calibration import PRIORS, Calibration


@pytest.fixture(scope="module")
def cases() -> list[Case]:
    found = list(read_cases(shipped_files(), Problems([])))
    return [case for case in found if case.scored and case.measured.step_s]


@pytest.fixture(scope="module")
def few(cases: Sequence[Case]) -> list[Case]:
    """Every twelfth run outside the single-node sweeps: all families, dense and with experts."""
    return [case for case in cases if not (case.group or "").startswith("vtrain-single")][::12]


# --- the table


def test_the_constants_are_few() -> None:
    """A version's numbers count as its family's: at most 8 per family, 6 per accelerator, 70 in all."""
    table = constants.constants()
    families = Counter(c.over or c.owner for c in table if c.entry.scope == "family")
    devices = Counter(c.owner for c in table if c.entry.scope == "accelerator")
    assert max(families.values()) <= 8
    assert max(devices.values()) <= 6
    assert len(table) <= 70
    assert len({c.place for c in table}) == len(table)
    versions = Counter(c.owner for c in table if c.over)
    assert max(versions.values()) <= 2
    assert set(families) <= set(stacks.stack_names())


@pytest.mark.parametrize("constant", constants.constants(), ids=lambda c: c.name)
def test_a_constant_is_in_its_bounds_and_moves_what_it_says(constant: constants.Constant) -> None:
    entry = constant.entry
    assert entry.low < constant.prior < entry.high or (entry.logit and 0 < constant.prior < 1)
    assert constant.value(0.0) == pytest.approx(constant.prior)
    assert constant.value(1.0) > constant.prior
    low, high = constant.bounds
    if not entry.logit:
        assert constant.value(low) == pytest.approx(entry.low)
        assert constant.value(high) == pytest.approx(entry.high)
    moved = constants.calibration_at([constant], [1.0], PRIORS, "fitted")
    assert constants.prior_value(entry, constant.owner, moved) == pytest.approx(constant.value(1.0))


def test_a_version_moves_with_its_family() -> None:
    table = {c.name: c for c in constants.constants()}
    family, version = table["megatron-lm throughput"], table["megatron-lm-2021 throughput"]
    assert version.over == "megatron-lm"
    there = constants.calibration_at([version, family], [1.0, -1.0], PRIORS, "fitted")
    expected = family.value(-1.0) * np.exp(version.entry.width)
    assert stacks.stack_for("megatron-lm-2021", there)[0].throughput == pytest.approx(expected)
    assert stacks.stack_for("megatron-lm-2022", there)[0].throughput == pytest.approx(family.value(-1.0))
    assert stacks.stack_for("megatron-core-0.8", there)[0].throughput == 1.0


def test_what_is_inherited_is_fitted_once() -> None:
    values: dict[calibration.Place, float] = {("stacks", "generic", "contention"): 0.3,
                                              ("stacks", "torch-fsdp", "throughput"): 0.9}  # fmt: skip
    fitted = Calibration.of(values, "x")
    assert stacks.load_stack("torchtitan", fitted).contention == 0.3
    assert stacks.load_stack("torchtitan", fitted).throughput == 0.9
    assert stacks.load_stack("torchtitan", fitted).sources["throughput"] == "x"
    assert stacks.load_stack("megatron-core", fitted).throughput == 1.0
    assert calibration.overlaid({"a": {"b": 1, "c": 2}}, {"a": {"b": 3}}) == {"a": {"b": 3, "c": 2}}


# --- pricing


def test_a_batch_prices_as_its_runs_do(few: Sequence[Case]) -> None:
    fitted = constants.calibration_at(constants.constants(), [0.3] * len(constants.constants()), PRIORS, "fitted")
    batches = Batches(few, PRIORS)
    assert batches.seconds(calibration.shipped()) == pytest.approx([predict(case).step_s for case in few])
    again = Batches(few, fitted).seconds(fitted)
    assert not np.allclose(again, batches.seconds(PRIORS), rtol=1e-3)
    assert batches.seconds(fitted) == pytest.approx(again)


@pytest.mark.parametrize("name", sorted(STACK_FIELDS - {"sources"}))
def test_rate_fields_leave_the_operations_as_they_are(few: Sequence[Case], name: str) -> None:
    """Otherwise a calibration would price operations of another stack."""
    for case in few:
        rates = rates_of(case, PRIORS)
        other = replace(rates, stack=replace(rates.stack, **{name: getattr(rates.stack, name) * 0.5 + 0.1}))
        ones, twos = (ledger_of([case], each).tables.operations for each in (rates, other))
        assert repr(ones) == repr(twos)


def test_derivatives_skip_only_what_cannot_move(few: Sequence[Case]) -> None:
    fitter = Fitter(few, constants.constants(), PRIORS, "fitted")
    z = np.zeros(len(fitter.constants))
    at_z = fitter.log_seconds(z)
    for j, constant in enumerate(fitter.constants):
        there = z.copy()
        there[j] = 1.0
        moved = Batches(few, fitter.at(there)).seconds(fitter.at(there))
        touched = np.isin(np.arange(len(few)), [i for b in fitter.moved[j] for i in fitter.batches.batches[b].index])
        assert np.allclose(np.log(moved)[~touched], at_z[~touched], rtol=1e-12), constant.name


# --- the fit


def test_sources_weigh_as_the_root_of_their_runs() -> None:
    found = weights(["a"] * 4 + ["b"])
    assert found == pytest.approx([0.5] * 4 + [1.0])
    composed = weights(["VIA-Research/vTrain ground_truth_single.csv"] * 120)
    assert composed.sum() == pytest.approx(30**0.5)


def test_loss_by_hand() -> None:
    """Quadratic near zero, linear far away, plus the prior."""
    assert loss(np.array([SCATTER / 100]), np.ones(1), np.zeros(1)) == pytest.approx(1e-4, rel=1e-4)
    far, near = (loss(np.array([x * SCATTER]), np.ones(1), np.zeros(1)) for x in (2000, 1000))
    assert far - near == pytest.approx(2 * 2.0 * 1000, rel=1e-3)
    assert loss(np.zeros(1), np.ones(1), np.array([3.0])) == 9.0


@settings(max_examples=4, deadline=None)
@given(st.lists(st.floats(-1.5, 1.5), min_size=3, max_size=3))
def test_planted_constants_come_back(cases: Sequence[Case], planted: list[float]) -> None:
    """Times made by the model itself; runs weigh so much that the prior hardly pulls."""
    names = ("megatron-core throughput", "b200-sxm-180gb training_factor attention", "megatron-core host_s_per_kernel")
    chosen = [c for c in constants.constants() if c.name in names]
    chosen.sort(key=lambda c: names.index(c.name))
    runs = [case for case in cases if case.source.startswith("MooreThreads/SimuMax")]
    fitter = Fitter(runs, chosen, PRIORS, "fitted")
    truth = np.log(Batches(runs, PRIORS).seconds(fitter.at(np.array(planted))))
    found = fit(fitter, truth, np.full(len(runs), 1e4))
    assert found.z == pytest.approx(planted, abs=0.02)
    assert np.log(found.seconds) == pytest.approx(truth, abs=1e-3)
    assert found.spread.max() < 0.1


def test_a_constant_that_no_run_moves_stays_at_its_prior(few: Sequence[Case]) -> None:
    runs = [case for case in few if case.cluster.gpu.name.startswith("a100")]
    names = ("gb200-186gb training_factor gemm", "megatron-lm throughput")
    chosen = [c for c in constants.constants() if c.name in names]
    fitter = Fitter(runs, chosen, PRIORS, "fitted")
    found = fit(fitter, np.log([case.measured.step_s or 1 for case in runs]), np.ones(len(runs)))
    by_owner = dict(zip((c.owner for c in chosen), zip(found.z, found.spread, strict=True), strict=True))
    assert by_owner["gb200-186gb"] == (0.0, 1.0)
    assert by_owner["megatron-lm"][1] < 0.5
