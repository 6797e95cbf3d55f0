"""The values of names in a recipe that is followed."""

from __future__ import annotations

import ast
import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..python_values import value_of

if TYPE_CHECKING:
    from .state import State


@dataclass(frozen=True, eq=False)
class Given:
    """An expression, with the names that are plain values in it, and its file."""

    node: ast.expr
    names: Mapping[str, Any]
    path: str

    def plain(self) -> tuple[Any] | None:
        """Its value, in a tuple; None where only a run can tell."""
        try:
            return (value_of(self.node, self.names),)
        except ValueError:
            return None

    def moved(self, at: ast.expr, path: str) -> Given:
        """The same value, at another place."""
        return Given(ast.copy_location(copy.copy(self.node), at), self.names, path)

    def holds(self, thing: object) -> bool:
        """Whether it is this very list or dict."""
        return isinstance(self.node, ast.Constant) and self.node.value is thing


@dataclass(frozen=True)
class Ref:
    """A config, or a block of it ("" is all)."""

    key: int
    option: str = ""

    def at(self, name: str) -> Ref:
        """The option `name` of this block."""
        if name == "__dict__":  # holds the same options
            return self
        return Ref(self.key, f"{self.option}.{name}" if self.option else name)


@dataclass(frozen=True)
class Items:
    """A list or tuple that holds blocks."""

    values: tuple[Value, ...]


@dataclass(frozen=True, eq=False)
class Function:
    """A function of the files. around: where it was made inside another function."""

    path: str
    node: ast.FunctionDef
    around: State | None = None


Value = Given | Ref | Items | Function


@dataclass(frozen=True)
class Doubt:
    """An expression that cannot be followed: (file, line), the option or block that it may set ("": any), and why."""

    path: str
    line: int
    option: str
    text: str


def constant(value: Any, at: ast.expr, path: str) -> Given:
    """A plain value, with the place of an expression."""
    return Given(ast.copy_location(ast.Constant(value), at), {}, path)


def equal(first: Given, second: Given) -> bool:
    """Whether two expressions have one value."""
    if first is second:
        return True
    one, other = first.plain(), second.plain()
    if one is not None and other is not None:
        return type(one[0]) is type(other[0]) and bool(one == other)
    same_text = one is other and ast.unparse(first.node) == ast.unparse(second.node)
    return same_text and dict(first.names) == dict(second.names)
