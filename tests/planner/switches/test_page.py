"""The page of switches names each of them and its options."""

from __future__ import annotations

import pytest
from meshwright.planner.switches.registry import SWITCHES

from ...snapshots import ROOT

PAGE = (ROOT / "docs" / "concepts" / "switches.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", SWITCHES)
def test_the_page_has_a_row(name: str) -> None:
    row = next(line for line in PAGE.splitlines() if line.startswith(f"| `{name}` |"))
    values = SWITCHES[name].values
    assert name == "cuda_graphs" or all(value in row or value.endswith("dynamic") for value in values)
    spelled = {option.rpartition(".")[2] for values in SWITCHES[name].options.values()
               for spellings in values.values() for option in spellings[0]}  # fmt: skip
    assert {option for option in spelled - SWITCHES[name].companions if option not in row} == set()
