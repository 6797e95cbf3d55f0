"""Recipes of nemo_run as plain calls: `run.Config(Class, ...)` and `run.Partial(Class, ...)` are `Class(...)`.

A `run.Partial` with a trainer is the recipe itself, whichever function it names. Callbacks of a trainer, which are a
list, get the names of their classes. Source: nemo_run 0.4.0, nemo_run/config.py (Config, Partial).
"""

from __future__ import annotations

import ast

from ..python_values import name_of

_MAKERS = ("run.Config", "run.Partial")


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
    return changed
