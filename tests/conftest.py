"""What every test needs of its process."""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import Callable, Generator
from pathlib import Path

import pytest
from hypothesis import settings

from .table import PROPERTY, Row, lines

# A shell starts jobs in the background with SIGINT ignored; programs that tests start and interrupt would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Hundreds of tests start the command line or ranks. Where modules are not kept compiled, as in many containers, each of
# them compiles the package anew, which doubles its start; and every worker rewrites the asserts of every test.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# Two workers share the cores, where threads of products wait for each other. Read when numpy and torch are imported.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# Otherwise every process that compiles starts processes to compile in, and each of these imports torch.
os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")

# Without a deadline of 200 ms for an example, which a busy machine misses.
settings.register_profile("meshwright", deadline=None)
settings.load_profile("meshwright")


# Cases that take more than 2.5 s of CPU, beside those that a decorator marks (tools/slow_cases.py).
SLOW_CASES = frozenset(Path(__file__).with_name("slow_cases.txt").read_text(encoding="utf-8").splitlines())


@pytest.hookimpl(tryfirst=True)  # before `-m` chooses
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.nodeid in SLOW_CASES:
            item.add_marker(pytest.mark.slow)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Keeps the garbage collector from all that collection makes, which lives as long as the process.

    A worker holds 800,000 such objects. Every full collection would walk them, a tenth of the CPU time of the suite.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.set_threshold(10_000)
        gc.enable()


@pytest.fixture
def row(record_property: Callable[[str, object], None]) -> Row:
    """Stores a row of the table at the end."""
    return lambda *cells: record_property(PROPERTY, cells)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Prints the table after the last test."""
    reports = [report for kind in ("passed", "failed", "skipped") for report in terminalreporter.getreports(kind)]
    tests = [report for report in reports if isinstance(report, pytest.TestReport)]  # not files that are left out whole
    for line in lines(pair for test in tests for pair in test.user_properties):
        terminalreporter.write_line(line)
