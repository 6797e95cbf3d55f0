"""Recipes of nemo_run as plain calls: `run.Config(Class, ...)` and `run.Partial(Class, ...)` are `Class(...)`.

A `run.Partial` with a trainer is the recipe itself, whichever function it names. Callbacks of a trainer, which are a
list, get the names of their classes. Source: nemo_run 0.4.0, nemo_run/config.py (Config, Partial).
"""

from __future__ import annotations

import ast
from collections.abc import Collection

from ..python_values import name_of

_MAKERS = ("run.Config", "run.Partial")
# Comment on the type of a function that stands for a program.
PROGRAM = "program"


class _Plain(ast.NodeTransformer):
    def __init__(self, recipe: str) -> None:
        self.recipe = recipe

    def visit_Call(self, node: ast.Call) -> ast.expr:
        self.generic_visit(node)
        for keyword in node.keywords:
            if keyword.arg == "callbacks":
                keyword.value = _named(keyword.value)
        if name_of(node.func) not in _MAKERS or not node.args:
            return node
        made, *others = node.args
        is_recipe = any(keyword.arg == "trainer" for keyword in node.keywords)
        function = ast.copy_location(ast.Name(self.recipe, ast.Load()), made) if is_recipe else made
        return ast.copy_location(ast.Call(function, others, node.keywords), node)


def _named(node: ast.expr) -> ast.expr:
    """A list of calls as a call with one keyword per class."""
    calls = [item for item in node.elts if isinstance(item, ast.Call)] if isinstance(node, ast.List) else []
    if not calls or len(calls) < len(node.elts):  # type: ignore[attr-defined]
        return node
    keywords = [ast.copy_location(ast.keyword(name_of(call.func).rpartition(".")[2], call), call) for call in calls]
    return ast.copy_location(ast.Call(ast.copy_location(ast.Name("Callbacks", ast.Load()), node), [], keywords), node)


def plain(tree: ast.Module, recipe: str) -> ast.Module:
    """The module with plain calls in place of those of nemo_run. recipe: the name of the call that a recipe is."""
    changed: ast.Module = _Plain(recipe).visit(tree)
    return _with_programs(changed)


def _with_programs(tree: ast.Module) -> ast.Module:
    """The module with each program that takes a recipe from one of its functions and changes it as a function that
    returns this recipe after the last change: a function, or the block of `__main__`."""
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    makers = {node.name for node in functions}
    for node in functions:
        returns = any(isinstance(part, ast.Return) and part.value is not None for part in ast.walk(node))
        if not returns and (ended := _ending(node.body, makers)) is not None:
            node.body, node.type_comment = ended, PROGRAM
    for block in [node for node in tree.body if isinstance(node, ast.If) and "__name__" in ast.unparse(node.test)]:
        if (body := _ending(block.body, makers)) is not None:
            arguments = ast.arguments([], [], None, [], [], None, [])
            program = ast.FunctionDef("__main__", arguments, body, [], None, PROGRAM)
            tree.body.append(ast.fix_missing_locations(ast.copy_location(program, block)))
    return tree


def _ending(body: list[ast.stmt], makers: Collection[str]) -> list[ast.stmt] | None:
    """Statements up to the last one that changes the recipe which one of `makers` returned, and its return; None where
    none does."""
    taken = [part.targets[0].id for part in body if isinstance(part, ast.Assign)
             and isinstance(part.targets[0], ast.Name) and isinstance(part.value, ast.Call)
             and name_of(part.value.func) in makers]  # fmt: skip
    for name in taken:
        changes = [place for place, part in enumerate(body) if any(
            isinstance(inner, ast.Attribute) and isinstance(inner.ctx, ast.Store)
            and ast.unparse(inner).startswith(f"{name}.") for inner in ast.walk(part))]  # fmt: skip
        if changes:
            last = body[changes[-1]]
            end = ast.copy_location(ast.Return(ast.copy_location(ast.Name(name, ast.Load()), last)), last)
            return [*body[: changes[-1] + 1], end]
    return None
