"""Calls of a config's own subclass, read as calls of the config: a class that only completes what it is given."""

from __future__ import annotations

import ast
from dataclasses import dataclass

from ..python_values import name_of

_COMPLETES = "__post_init__"


@dataclass(frozen=True)
class Completion:
    """An option that a subclass sets once it has been made."""

    option: str
    # The subclass.
    name: str
    line: int


def plain_calls(tree: ast.Module, container: str) -> tuple[ast.Module, dict[str, tuple[Completion, ...]]]:
    """The module with calls of simple subclasses of `container` as calls of it, and by function of the module the
    options that the subclasses behind it set.

    A subclass is simple if it has no fields, and its `__post_init__` only calls the inherited one, raises errors, and
    sets options.
    """
    classes = {node.name: sets for node in tree.body if isinstance(node, ast.ClassDef)
               and [name_of(base) for base in node.bases] == [container] and not node.keywords
               and (sets := _completions(node)) is not None}  # fmt: skip
    if not classes:
        return tree, {}
    functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
    called = {name: {name_of(inner.func) for inner in ast.walk(node) if isinstance(inner, ast.Call)}
              for name, node in functions.items()}  # fmt: skip
    behind = {name: tuple(part for known in sorted(_reached(name, called) & classes.keys()) for part in classes[known])
              for name in functions}  # fmt: skip
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and name_of(node.func) in classes:
            node.func = ast.copy_location(ast.parse(container, mode="eval").body, node.func)
    return ast.fix_missing_locations(tree), behind


def _completions(node: ast.ClassDef) -> list[Completion] | None:
    """The options that a class sets; None for a class with other code."""
    out: list[Completion] = []
    for member in node.body:
        if isinstance(member, ast.Pass) or _is_text(member):
            continue
        if not isinstance(member, ast.FunctionDef) or member.name != _COMPLETES:
            return None
        for statement in member.body:
            match statement:
                case ast.Expr(value=ast.Call(func=function)) if name_of(function).endswith(_COMPLETES):
                    pass
                case ast.If(body=body, orelse=[]) if all(isinstance(inner, ast.Raise) for inner in body):
                    pass
                case ast.Assign(targets=[ast.Attribute(value=ast.Name("self"), attr=option)]):
                    out.append(Completion(option, node.name, statement.lineno))
                case _ if not isinstance(statement, ast.Pass) and not _is_text(statement):
                    return None
    return out


def _is_text(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def _reached(name: str, called: dict[str, set[str]]) -> set[str]:
    """The names that a function calls, or a function that it calls."""
    seen, waiting = set[str](), [name]
    while waiting:
        for other in called.get(waiting.pop(), set()) - seen:
            seen.add(other)
            waiting.append(other)
    return seen
