"""The folders of the shipped facts."""

from __future__ import annotations

from pathlib import Path

CATALOGUE = Path(__file__).parent.parent / "catalogue"  # one folder per kind of entry, one file per entry
MEASURED = CATALOGUE / "measured"  # tables of measurements, and what was fitted to them
PUBLISHED = CATALOGUE / "published"  # training runs that others measured and published
