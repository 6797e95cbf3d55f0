"""The glossary has the words that plans and screens show."""

from __future__ import annotations

import re
from typing import get_args

import pytest
from meshwright.cli.screens.header import space_line
from meshwright.cli.screens.legend import TOKENS
from meshwright.cost_models.layouts import FIELDS, FLAGS, Layout
from meshwright.planner.document.candidate import Source
from meshwright.planner.document.certificate import SpaceCount

from .snapshots import ROOT

ROWS = re.findall(r"^\| (.*?) \| (.*) \|$", (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8"), flags=re.M)
WORDS = {word.strip("`") for words, _ in ROWS for word in words.split(", ")}


def tokens() -> list[str]:
    base: dict[str, int] = {"tp": 2, "pp": 2, "dp": 2, "cp": 2}
    ids = [str(Layout(**{**base, field.name: code})) for field in FIELDS for code in range(1, len(field.choices) or 4)
           if field.name not in FLAGS or code == 1]  # fmt: skip
    return sorted({token for layout in ids for token in layout.split("-")})


@pytest.mark.parametrize("token", tokens())
def test_every_token_of_an_id(token: str) -> None:
    assert any(token == word or re.match(rf"{re.escape(word)}[\d(a-z+]", token) for word in WORDS if word)


def test_every_name_of_the_legend() -> None:
    assert {name for _, name, _ in TOKENS if name} <= WORDS


def test_every_source_and_fate() -> None:
    assert set(get_args(Source)) <= WORDS
    counts = SpaceCount(total=6, by_axis={}, ruled_out={"a": 1}, dominated=1, out_of_memory=1, bounded=1, priced=1,
                        simulated=1)  # fmt: skip
    line = space_line(counts, stopped=False).partition(": ")[2]
    assert {part.partition(" ")[2] for part in line.split(", ")} <= WORDS
