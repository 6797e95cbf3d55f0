"""Plants every fault, runs the check that a user has, and prints which number saw it: `make planted-faults`."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from meshwright.runtime import reference
from meshwright.runtime.job import Job
from meshwright.runtime.rehearsal.parity import Parity, compare
from meshwright.runtime.settings import for_parity

from .fork import run
from .model.test_families import CASES, differences
from .planted_faults import FAULTS, Fault

FAMILY_TOLERANCE = 1e-5  # as in test_families

ROWS: list[tuple[str, str]] = []  # of each fault its name and the number that saw it


@pytest.fixture(scope="module", autouse=True)
def printed() -> Iterator[None]:
    """The table, after the last fault."""
    yield
    width = max((len(name) for name, _ in ROWS), default=0)
    lines = [f"{name:{width}}  {seen or 'NOT SEEN'}" for name, seen in ROWS]
    print("", *lines, f"seen: {sum(bool(seen) for _, seen in ROWS)} of {len(ROWS)}", sep="\n")


def checked(job: Job) -> Parity:
    """`--check-parity` of a job; what is planted is in both runs."""
    steps, _ = run(job)
    pairs = ([(step.loss, step.gradient_norm) for step in side] for side in (steps, reference.train(job)))
    return compare(*pairs)


def difference_of(verdict: Parity) -> str:
    """What a user reads of a run that differs; empty where it does not."""
    first = verdict.first_difference
    if first is None:
        return ""
    return f"step {first.step}: loss by {first.loss_difference:.1e}, norm by {first.norm_difference:.1e}"


def seen_in_parity(fault: Fault, patch: pytest.MonkeyPatch) -> str:
    """By the plain check, or else by the one that trains as the plan does."""
    checks = {"--check-parity": for_parity(fault.job, as_trained=False),
              "--as-trained": for_parity(fault.job, as_trained=True)}  # fmt: skip
    for name, job in checks.items():
        assert checked(job).agrees, f"{name} differs without a fault"
    fault.plant(patch)
    for name, job in checks.items():
        if difference := difference_of(checked(job)):
            return f"{name}, {difference}"
    return ""


def seen_in_family(family: str, fault: Fault, patch: pytest.MonkeyPatch) -> str:
    assert max(differences(CASES[family]).values()) < FAMILY_TOLERANCE, "differs without a fault"
    fault.plant(patch)
    name, largest = max(differences(CASES[family]).items(), key=lambda item: item[1])
    return "" if largest < FAMILY_TOLERANCE else f"transformers' {family}, {name} by {largest:.1e}"


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name.replace(" ", "_"))
def test_a_planted_fault_is_seen(fault: Fault, monkeypatch: pytest.MonkeyPatch) -> None:
    if fault.family is None:
        seen = seen_in_parity(fault, monkeypatch)
    else:
        seen = seen_in_family(fault.family, fault, monkeypatch)
    ROWS.append((fault.name, seen))
    assert seen, fault.plant.__doc__
