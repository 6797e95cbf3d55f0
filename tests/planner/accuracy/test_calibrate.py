"""Calibration: the table of constants, pricing again and again, and what a fit finds."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from meshwright.cost_models.rates.rates import STACK_FIELDS, Rates
from meshwright.planner.accuracy import interval_fit
from meshwright.planner.accuracy.batch_pricing import Batch, Batches, ledger_of, rates_of
from meshwright.planner.accuracy.cross_validation import Runs, left_out, study
from meshwright.planner.accuracy.fit import SCATTER, Fitter, fit, loss, weights
from meshwright.planner.accuracy.reserve_fit import PLACE
from meshwright.planner.accuracy.row import Case
from meshwright.planner.accuracy.validate import predict
from meshwright.planner.evaluation import intervals
from meshwright.profiles.rates import calibration, constants
from meshwright.profiles.rates.calibration import PRIORS, Calibration
from meshwright.profiles.stack import load as stacks

from .shipped import shipped_cases, shipped_summary

Maker = Callable[[str], constants.Constant]


def kind(scope: constants.Scope, place: calibration.ConstantPath, width: float, *, logit: bool = False) -> Maker:
    entry = constants.Entry(scope, (), place, 1e-7, 3.0, width, "", logit)
    return lambda owner: constants.constant_of(entry, owner)


THROUGHPUT = kind("family", ("stacks", "{}", "throughput"), 0.12)
LAUNCHES = kind("family", ("stacks", "{}", "host_s_per_kernel"), 0.4)
OVERLAP = kind("family", ("stacks", "{}", "fsdp_overlap"), 1.0, logit=True)
GEMM = kind("accelerator", ("assumptions", "training_factor", "{}", "gemm"), 0.08)
ATTENTION = kind("accelerator", ("assumptions", "training_factor", "{}", "attention"), 0.12)


@cache
def timed_cases() -> tuple[Case, ...]:
    return tuple(case for case in shipped_cases() if case.scored and case.measured.step_s)


@pytest.fixture(scope="module")
def cases() -> Sequence[Case]:
    return timed_cases()


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
    assert set(families) <= set(stacks.stack_names())
    by_hand = calibration.load_yaml(stacks.FAMILIES)["versions"]
    for version, fitted in Counter(c.owner for c in table if c.over).items():
        values = [fact["value"] for key, fact in by_hand[version].items() if key != "family"]
        numbers = [value for value in values if isinstance(value, int | float) and not isinstance(value, bool)]
        assert fitted + len(numbers) <= 2, version


def test_every_constant_moves_a_run(cases: Sequence[Case]) -> None:
    """One run that each may move, priced at its prior and a width above it."""
    for constant in constants.constants():
        runs = [case for case in cases if constants.touches(constant, case.stack_name, case.cluster)]
        fitted = constants.calibration_at([constant], [1.0], PRIORS, "fitted")
        batches = (Batch([case], [0], PRIORS) for case in runs)
        moved = (batch.seconds(fitted, store=False) != batch.seconds_at_reference for batch in batches)
        assert any(moved), constant.name


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
    family, version = THROUGHPUT("megatron-lm"), THROUGHPUT("megatron-lm-2021")
    assert version.over == "megatron-lm"
    there = constants.calibration_at([version, family], [1.0, -1.0], PRIORS, "fitted")
    expected = family.value(-1.0) * np.exp(version.entry.width)
    assert stacks.stack_for("megatron-lm-2021", there)[0].throughput == pytest.approx(expected)
    assert stacks.stack_for("megatron-lm-2022", there)[0].throughput == pytest.approx(family.value(-1.0))
    assert stacks.stack_for("megatron-core-0.8", there)[0].throughput == 1.0


def test_what_is_inherited_is_fitted_once() -> None:
    values: dict[calibration.ConstantPath, float] = {("stacks", "generic", "contention"): 0.3,
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


@pytest.fixture(scope="module")
def operations(few: Sequence[Case]) -> list[tuple[Case, Rates, str]]:
    """Runs with their rates, and their operations as a text."""
    rates = [rates_of(case, PRIORS) for case in few]
    return [(case, each, repr(ledger_of([case], each).tables.operations))
            for case, each in zip(few, rates, strict=True)]  # fmt: skip


@pytest.mark.parametrize("name", sorted(STACK_FIELDS - {"sources"}))
def test_rate_fields_leave_the_operations_as_they_are(
    operations: Sequence[tuple[Case, Rates, str]], name: str
) -> None:  # fmt: skip
    """Otherwise a calibration would price operations of another stack."""
    for case, rates, text in operations:
        other = replace(rates, stack=replace(rates.stack, **{name: getattr(rates.stack, name) * 0.5 + 0.1}))
        assert repr(ledger_of([case], other).tables.operations) == text


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
@example([0.0, 0.0, -1.5])  # cheap launches move the times least: the prior pulls most
def test_planted_constants_come_back(planted: list[float]) -> None:
    """Times made by the model itself; runs weigh so much that the prior hardly pulls."""
    chosen = [THROUGHPUT("megatron-core"), ATTENTION("b200-sxm-180gb"), LAUNCHES("megatron-core")]
    runs = [case for case in timed_cases() if case.source.startswith("MooreThreads/SimuMax")]
    fitter = Fitter(runs, chosen, PRIORS, "fitted")
    truth = np.log(Batches(runs, PRIORS).seconds(fitter.at(np.array(planted))))
    found = fit(fitter, truth, np.full(len(runs), 1e6))
    assert found.z == pytest.approx(planted, abs=0.02)
    assert np.log(found.seconds) == pytest.approx(truth, abs=1e-3)
    assert found.spread.max() < 0.1


def test_a_constant_that_no_run_moves_stays_at_its_prior(few: Sequence[Case]) -> None:
    runs = [case for case in few if case.cluster.gpu.name.startswith("a100")]
    chosen = [GEMM("gb200-186gb"), THROUGHPUT("megatron-lm")]
    fitter = Fitter(runs, chosen, PRIORS, "fitted")
    found = fit(fitter, np.log([case.measured.step_s or 1 for case in runs]), np.ones(len(runs)))
    by_owner = dict(zip((c.owner for c in chosen), zip(found.z, found.spread, strict=True), strict=True))
    assert by_owner["gb200-186gb"] == (0.0, 1.0)
    assert by_owner["megatron-lm"][1] < 0.5


# --- runs left out


def test_no_group_is_in_two_folds(cases: Sequence[Case]) -> None:
    runs = Runs.of(cases)
    parts, what = runs.parts
    assert what == "groups"
    folds_of: dict[str, set[int]] = {}
    for group, fold in zip(runs.groups, parts.tolist(), strict=True):
        folds_of.setdefault(group, set()).add(fold)
    assert all(len(found) == 1 for found in folds_of.values())
    sizes = np.bincount(parts)
    assert len(sizes) == 5
    assert sizes.max() < 1.5 * sizes.min()
    # one model on one cluster is in one fold, whatever the layout, sequence length and stack
    seen: dict[tuple[object, ...], int] = {}
    for case, fold in zip(cases, parts.tolist(), strict=True):
        what_ran = (case.model.hidden, case.model.num_layers, case.cluster.gpu.name, case.cluster.num_gpus)
        assert seen.setdefault(what_ran, fold) == fold


def test_a_leak_between_folds_would_show(cases: Sequence[Case]) -> None:
    """Runs of one group are made 30 % slower than anything the model can know of: left out, they are mispredicted by
    just that, and what was measured of them does not matter; a fold that kept some of the group would see it."""
    runs = [case for case in cases if case.source.startswith("pytorch/torchtitan")]
    chosen = [THROUGHPUT("torchtitan"), GEMM("h100-sxm-80gb")]
    fitter = Fitter(runs, chosen, PRIORS, "fitted")
    predicted = fitter.log_seconds(np.zeros(len(chosen)))
    parts = Runs.of(runs)
    part = np.array([group == parts.groups[0] for group in parts.groups])
    leaky = part & (np.cumsum(part) > 1)  # one run of the group stays in the fit
    assert leaky.sum() > 0
    planted = predicted + np.where(part, np.log(1.3), 0.0)
    clean_runs, planted_runs = (replace(parts, log_measured=each) for each in (predicted, planted))
    full = fit(fitter, predicted, parts.weight(~part))
    around = fitter.expansion(full.z, np.log(full.seconds))
    clean, honest = (left_out(fitter, around, each, [(part, part)])[part] for each in (clean_runs, planted_runs))
    assert np.array_equal(honest, clean)
    assert np.log(honest) - planted[part] == pytest.approx(-np.log(1.3), abs=0.01)
    leak = left_out(fitter, around, planted_runs, [(part, leaky)])[part]
    assert np.abs(leak / clean - 1).max() > 0.005


def test_holding_a_constant_is_the_fit_without_it(cases: Sequence[Case]) -> None:
    """To the accuracy of derivatives that are lent by the full fit: 2 % of a step."""
    runs = [case for case in cases if case.source.startswith("pytorch/torchtitan")]
    chosen = [THROUGHPUT("torchtitan"), OVERLAP("torchtitan")]
    found = study(runs, chosen, PRIORS, "fitted")
    measured, weight = Runs.of(runs).log_measured, Runs.of(runs).weight(np.ones(len(runs), dtype=bool))
    for j in range(2):
        rest = [constant for i, constant in enumerate(chosen) if i != j]
        exact = fit(Fitter(runs, rest, PRIORS, "fitted"), measured, weight)
        assert np.log(found.frozen[j]) == pytest.approx(np.log(exact.seconds), abs=0.02)
        assert np.abs(np.log(found.frozen[j]) - np.log(found.after)).max() > 0.03  # which is another fit than the full


# --- what ships


def prior_widths(constant: constants.Constant, value: float, mean: float | None) -> float:
    """How many prior widths `value` lies from its mean: the inverse of `Constant.value`."""

    def scale(number: float) -> float:
        return math.log(number / (1.0 - number)) if constant.entry.logit else math.log(number)

    return (scale(value) - scale(constant.prior if mean is None else mean)) / constant.entry.width


@pytest.fixture(scope="module")
def shipped_fit(cases: Sequence[Case]) -> tuple[Fitter, np.ndarray, Runs]:
    """The fitter of the shipped calibration and the z of the values in the file."""
    table = constants.constants()
    fitter = Fitter(cases, table, PRIORS, "fitted")
    values = dict(constants.places(calibration.of_runs()))
    z = []
    for constant in table:
        prior = values.get(("stacks", constant.over, constant.place[-1])) if constant.over else None
        z.append(prior_widths(constant, values[constant.place], prior))
    return fitter, np.array(z), Runs.of(cases)


@pytest.mark.slow
def test_what_ships_is_what_the_fit_gives(shipped_fit: tuple[Fitter, np.ndarray, Runs]) -> None:
    """Along any direction the loss is least at the shipped values: a Newton step from its differences moves nothing.
    `test_the_fit_reproduces_what_ships` runs the whole fit."""
    fitter, z, runs = shipped_fit
    places = {place for place, _ in constants.places(calibration.of_runs())} - {PLACE}
    assert {constant.place for constant in fitter.constants} == places
    weight = runs.weight(np.ones(len(runs.cases), dtype=bool))
    rng = np.random.default_rng(0)
    for _ in range(3):
        way = rng.choice([-0.2, 0.2], len(z))
        below, here, above = (
            loss(fitter.log_seconds(z + step * way) - runs.log_measured, weight, z + step * way) for step in (-1, 0, 1)
        )
        newton = -(above - below) / 2 / (above + below - 2 * here)
        assert abs(newton) < 0.1  # of a step of 0.2 prior widths in every constant


@pytest.mark.slow
def test_intervals_cover_what_they_claim() -> None:
    """Of all shipped runs, each predicted by the shipped fit; the factors come from fits without them."""
    coverage = shipped_summary().coverage
    assert coverage is not None
    assert 0.85 <= coverage.covered <= 0.95


def test_a_lead_by_hand() -> None:
    """Weighted quantiles and the 80th percentile of what ratios miss."""
    assert interval_fit.weighted_quantile(np.array([3.0, 1.0, 2.0]), np.ones(3), 0.5) == 2.0
    assert interval_fit.weighted_quantile(np.array([1.0, 2.0]), np.array([3.0, 1.0]), 0.5) == pytest.approx(1.25)
    assert intervals.ranking_lead() > 0
