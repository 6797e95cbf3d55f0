"""Writes tests/slow_cases.txt: the cases that take more CPU time than `make test` has for one.

    CASES=cases PYTHONPATH=tools OMP_NUM_THREADS=1 python -m pytest -n 2 -p slow_cases     # measures, into cases.*
    python tools/slow_cases.py cases.*                                                     # writes the list

Times are those of the process and of all that it waited for, without the fixtures that cases share: where one of these
cases were slow for them, both halves of a file would make them. A case that a decorator marks `slow` needs no line.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

LIST = Path(__file__).resolve().parent.parent / "tests" / "slow_cases.txt"
SECONDS = 2.5
LISTED = frozenset(LIST.read_text(encoding="utf-8").splitlines())


def cpu_s() -> float:
    """Of this process and its children."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


class Shared:
    """CPU seconds of the fixtures that cases share, so far."""

    seconds = 0.0


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef: pytest.FixtureDef[object]) -> Iterator[None]:
    """Those that it needs are set up before."""
    before = cpu_s()
    result = yield
    if fixturedef.scope != "function":
        Shared.seconds += cpu_s() - before
    return result


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """A line per case: seconds, whether a decorator marks it, its id."""
    before = cpu_s() - Shared.seconds
    result = yield
    seconds = cpu_s() - Shared.seconds - before
    own = "own" if item.get_closest_marker("slow") and item.nodeid not in LISTED else "-"
    worker = os.environ.get("PYTEST_XDIST_WORKER", "main")
    with Path(f"{os.environ['CASES']}.{worker}").open("a", encoding="utf-8") as lines:
        lines.write(f"{seconds:.2f} {own} {item.nodeid}\n")
    return result


def main(paths: list[str]) -> None:
    lines = [line.split(" ", 2) for path in paths for line in Path(path).read_text(encoding="utf-8").splitlines()]
    slow = sorted(case for seconds, own, case in lines if float(seconds) > SECONDS and own != "own")
    LIST.write_text("".join(f"{case}\n" for case in slow), encoding="utf-8")
    print(f"{len(slow)} of {len(lines)} cases take more than {SECONDS:g} s of CPU")


if __name__ == "__main__":
    main(sys.argv[1:])
