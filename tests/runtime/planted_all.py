"""Plants every fault, runs the check that a user has, and prints which number saw it: `make planted-faults`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from meshwright.runtime.preparation import for_parity
from meshwright.runtime.rehearsal.parity import StepComparison, makes_products_of_one_process

from .model.test_families import CASES, differences
from .planted_faults import FAULTS, Fault
from .rehearsal.test_parity import parity_of

FAMILY_TOLERANCE = 1e-5  # as in test_families

ROWS: list[tuple[str, str]] = []  # of each fault its name and the number that saw it


@pytest.fixture(scope="module", autouse=True)
def printed() -> Iterator[None]:
    """The table, after the last fault."""
    yield
    width = max((len(name) for name, _ in ROWS), default=0)
    lines = [f"{name:{width}}  {seen or 'NOT SEEN'}" for name, seen in ROWS]
    print("", *lines, f"seen: {sum(bool(seen) for _, seen in ROWS)} of {len(ROWS)}", sep="\n")


def difference_of(step: StepComparison | None) -> str:
    """What a user reads of a run that differs; empty where it does not."""
    if step is None:
        return ""
    states = f", {step.state.name} by {step.state.relative:.1e}" if step.state else ""
    return f"step {step.step}: loss by {step.loss_difference:.1e}, norm by {step.norm_difference:.1e}{states}"


def seen_in_parity(fault: Fault) -> str:
    """By the plain check, else by the one that trains as the plan does, else by that in the plan's dtype."""
    checks = {"--check-parity": for_parity(fault.job, as_trained=False),
              "--as-trained": for_parity(fault.job, as_trained=True)}  # fmt: skip
    if makes_products_of_one_process(fault.job):
        checks["--planned-dtype"] = for_parity(fault.job, as_trained=True, planned_dtype=True)
    for name, job in checks.items():
        assert parity_of(job).first_difference is None, f"{name} differs without a fault"
        with planted(fault):
            difference = difference_of(parity_of(job).first_difference)
        if difference:
            return f"{name}, {difference}"
    return ""


def seen_in_family(family: str, fault: Fault) -> str:
    assert max(differences(CASES[family]).values()) < FAMILY_TOLERANCE, "differs without a fault"
    with planted(fault):
        name, largest = max(differences(CASES[family]).items(), key=lambda item: item[1])
    return "" if largest < FAMILY_TOLERANCE else f"transformers' {family}, {name} by {largest:.1e}"


@contextmanager
def planted(fault: Fault) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        fault.plant(patch)
        yield


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name.replace(" ", "_"))
def test_a_planted_fault_is_seen(fault: Fault) -> None:
    seen = seen_in_parity(fault) if fault.family is None else seen_in_family(fault.family, fault)
    ROWS.append((fault.name, seen))
    assert seen, fault.plant.__doc__
