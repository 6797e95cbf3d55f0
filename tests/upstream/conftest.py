"""Prints the table of the frameworks after the last test."""

from __future__ import annotations

import pytest

from .table import lines


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for line in lines():
        terminalreporter.write_line(line)
