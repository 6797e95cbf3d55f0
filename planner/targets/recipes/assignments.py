"""Assignments, deletions and imports in a recipe that is followed."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from pathlib import PurePath

from .calls import Calls
from .expressions import HELD
from .state import State
from .values import Given, Items, Ref, Value


class Assignments(Calls):
    """The values of names and options after a statement."""

    # Path -> module of the files at hand.
    modules: Mapping[str, ast.Module]

    def assign(self, target: ast.expr, value: Value, node: ast.expr, state: State) -> None:
        if isinstance(target, ast.Name):
            state.names[target.id] = value
        elif isinstance(target, ast.Starred):
            self.assign(target.value, self._unknown(node, state), node, state)
        elif isinstance(target, ast.Tuple | ast.List):
            parts = self.items(value, node)
            if parts is None or len(parts) != len(target.elts) or any(
                    isinstance(part, ast.Starred) for part in target.elts):  # fmt: skip
                parts = [self._unknown(node, state, index) for index in range(len(target.elts))]
            for part, item in zip(target.elts, parts, strict=True):
                self.assign(part, item, node, state)
        elif (ref := self.place(target, state)) is not None:
            self.store(ref, value, node, state)
        elif isinstance(target, ast.Subscript | ast.Attribute):
            self._into(target, value, state)

    def _unknown(self, node: ast.expr, state: State, index: int = 0) -> Given:
        """A part of a value that only a run knows."""
        given = self.given(node, state)
        return Given(ast.copy_location(ast.Subscript(given.node, ast.Constant(index)), node), given.names, given.path)

    def _into(self, target: ast.Subscript | ast.Attribute, value: Value, state: State) -> None:
        """Sets an item of a list, dict or block, or an attribute of something else."""
        holder = self.evaluate(target.value, state)
        if isinstance(holder, Ref):
            state.doubt(holder, target.lineno, "is set under a name that only a run knows")
        elif isinstance(holder, Items):
            self.escapes([holder], target.lineno, HELD, state)
        elif isinstance(holder, Given) and isinstance(target, ast.Subscript):
            self.change(holder, "__setitem__", [self.given(target.slice, state), value], target, state)

    def delete(self, target: ast.expr, state: State) -> None:
        if isinstance(target, ast.Name):
            state.names.pop(target.id, None)
        elif (ref := self.place(target, state)) is not None:
            state.doubt(ref, target.lineno, "is deleted")
        elif isinstance(target, ast.Attribute | ast.Subscript):
            value = self.evaluate(target.value, state)
            if isinstance(value, Given) and isinstance(target, ast.Subscript):
                self.change(value, "__delitem__", [self.given(target.slice, state)], target, state)
            self.escapes([value], target.lineno, HELD, state)

    def imported(self, statement: ast.Import | ast.ImportFrom, state: State) -> None:
        """Names of the files that are at hand."""
        for alias in statement.names:
            own = alias.asname or alias.name
            state.names.pop(own, None)
            files = [path for path in self.modules if path != state.frame.path]
            if isinstance(statement, ast.ImportFrom):
                last = (statement.module or "").rpartition(".")[2]
                for path in sorted(files, key=lambda path: PurePath(path).stem != last):
                    for name, value in self.around(path).names.items():
                        if alias.name in (name, "*") and own not in state.names:
                            state.names[name if alias.name == "*" else own] = value
                continue
            for path in files:
                if PurePath(path).stem == alias.name.rpartition(".")[2]:
                    state.names |= {f"{own}.{name}": value for name, value in self.around(path).names.items()}
