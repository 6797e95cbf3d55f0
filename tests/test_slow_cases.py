"""The list of slow cases names tests that there are."""

from __future__ import annotations

import ast
from functools import cache

from .conftest import SLOW_CASES
from .snapshots import ROOT


@cache
def defined_in(path: str) -> frozenset[str]:
    tree = ast.walk(ast.parse((ROOT / path).read_text(encoding="utf-8")))
    return frozenset(node.name for node in tree if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"))


def test_every_case_is_of_a_test() -> None:
    """A renamed test would become fast again without a word."""
    assert SLOW_CASES
    for case in SLOW_CASES:
        path, _, name = case.partition("::")
        assert name.partition("[")[0] in defined_in(path), case
