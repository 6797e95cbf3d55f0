"""What every test needs of its process."""

from __future__ import annotations

import signal
from collections.abc import Callable

import pytest
from hypothesis import settings

from .table import PROPERTY, Row, lines

# A shell starts jobs in the background with SIGINT ignored; programs that tests start and interrupt would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Without a deadline of 200 ms for an example, which a busy machine misses.
settings.register_profile("meshwright", deadline=None)
settings.load_profile("meshwright")


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
