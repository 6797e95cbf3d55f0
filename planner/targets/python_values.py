"""Evaluates plain Python expressions without running the module."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from typing import Any

# Prefix of a name in a module (dtypes, functions) -> its prefix in a setting.
_NAMED = {"torch.": "torch.", "F.": "torch.nn.functional."}

_COMPARED: Mapping[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Is: operator.is_, ast.IsNot: operator.is_not,
}  # fmt: skip


def name_of(node: ast.expr) -> str:
    """The dotted text `a.b.c` of a name or attribute."""
    if isinstance(node, ast.Attribute):
        return f"{name_of(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def value_of(node: ast.expr, names: Mapping[str, Any]) -> Any:
    """The value of a literal, integer arithmetic, an f-string or a loop over a range. Raises ValueError for others."""
    match node:
        case ast.Constant():
            return node.value
        case ast.Name() if node.id in names:
            return names[node.id]
        case ast.Attribute() if name_of(node).startswith(tuple(_NAMED)):
            first, _, rest = name_of(node).partition(".")
            return _NAMED[f"{first}."] + rest
        case ast.UnaryOp(op=ast.USub()):
            return -value_of(node.operand, names)
        case ast.UnaryOp(op=ast.Not()):
            return not value_of(node.operand, names)
        case ast.BoolOp(op=op):
            for part in node.values:
                operand = value_of(part, names)
                if bool(operand) != isinstance(op, ast.And):
                    break
            return operand
        case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in _COMPARED:
            return _COMPARED[type(op)](value_of(left, names), value_of(right, names))
        case ast.BinOp(op=ast.Mult() | ast.Add() | ast.Sub() | ast.FloorDiv()):
            return _combined(node, value_of(node.left, names), value_of(node.right, names))
        case ast.JoinedStr():
            return "".join(str(value_of(part, names)) for part in node.values)
        case ast.FormattedValue():
            return value_of(node.value, names)
        case ast.List() | ast.Tuple():
            return [item for part in node.elts for item in _spread(part, names)]
        case ast.ListComp() | ast.GeneratorExp():
            return _loop(node, names)
    raise ValueError(ast.unparse(node))


def _combined(node: ast.BinOp, first: Any, second: Any) -> Any:
    """Evaluates integer arithmetic, list concatenation and list repetition."""
    if isinstance(first, list) and isinstance(node.op, ast.Add) and isinstance(second, list):
        return first + second
    if isinstance(first, list) and isinstance(node.op, ast.Mult) and isinstance(second, int) and second < 10_000:
        return first * second
    if not (isinstance(first, int) and isinstance(second, int)):
        raise ValueError(ast.unparse(node))
    if isinstance(node.op, ast.FloorDiv):
        return first // (second or 1)
    return {ast.Mult: first * second, ast.Add: first + second, ast.Sub: first - second}[type(node.op)]


def _spread(node: ast.expr, names: Mapping[str, Any]) -> list[Any]:
    return list(value_of(node.value, names)) if isinstance(node, ast.Starred) else [value_of(node, names)]


def _loop(node: ast.ListComp | ast.GeneratorExp, names: Mapping[str, Any]) -> list[Any]:
    loop = node.generators[0]
    call, target = loop.iter, loop.target
    plain = len(node.generators) == 1 and not loop.ifs and isinstance(target, ast.Name)
    if not plain or not isinstance(call, ast.Call) or name_of(call.func) != "range" or call.keywords:
        raise ValueError(ast.unparse(node))
    bounds = [value_of(argument, names) for argument in call.args]
    if not 1 <= len(bounds) <= 3 or not all(isinstance(bound, int) and abs(bound) < 100_000 for bound in bounds):
        raise ValueError(ast.unparse(node))
    variable = target.id if isinstance(target, ast.Name) else ""
    return [value_of(node.elt, {**names, variable: index}) for index in range(*bounds)]
