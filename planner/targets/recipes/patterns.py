"""Patterns of `match` on plain values."""

from __future__ import annotations

import ast
from typing import Any

from ..python_values import value_of


def matches(pattern: ast.pattern, subject: tuple[Any] | None) -> bool | None:
    """Whether a value (in a tuple, None where only a run knows it) matches; None where only a run can tell."""
    match pattern:
        case ast.MatchAs(pattern=None):
            return True
        case ast.MatchAs(pattern=ast.pattern() as inner):
            return matches(inner, subject)
        case ast.MatchOr(patterns=patterns):
            verdicts = [matches(part, subject) for part in patterns]
            return True if True in verdicts else None if None in verdicts else False
        case ast.MatchSingleton(value=value):
            return None if subject is None else subject[0] is value
        case ast.MatchValue(value=node):
            try:
                return None if subject is None else bool(subject[0] == value_of(node, {}))
            except ValueError:
                return None
    return None
