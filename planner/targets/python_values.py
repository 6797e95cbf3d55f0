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
    ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt, ast.GtE: operator.ge,
    ast.In: lambda one, other: one in other, ast.NotIn: lambda one, other: one not in other,
}  # fmt: skip
_COMBINED: Mapping[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Mult: operator.mul, ast.Add: operator.add, ast.Sub: operator.sub, ast.FloorDiv: operator.floordiv,
    ast.Div: operator.truediv, ast.Mod: operator.mod, ast.Pow: operator.pow, ast.BitOr: operator.or_,
}  # fmt: skip
_TYPES = {"str": str, "int": int, "float": float, "bool": bool, "list": list, "dict": dict}
# Functions and methods of plain values that change nothing.
_FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "int": int, "float": float, "str": str, "bool": bool, "len": len, "max": max, "min": min, "abs": abs,
    "round": round, "list": list, "tuple": list, "dict": dict, "sorted": sorted, "sum": sum,
    "enumerate": lambda *given: [list(pair) for pair in enumerate(*given)],
    "zip": lambda *given: [list(pair) for pair in zip(*given, strict=False)],
}  # fmt: skip
_METHODS = ("lower", "upper", "strip", "startswith", "endswith", "get", "keys", "values", "items", "copy", "join",
            "split", "replace", "index", "count")  # fmt: skip
_LONGEST = 100_000


def name_of(node: ast.expr) -> str:
    """The dotted text `a.b.c` of a name or attribute."""
    if isinstance(node, ast.Attribute):
        return f"{name_of(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def value_of(node: ast.expr, names: Mapping[str, Any]) -> Any:
    """The value of a literal, of arithmetic or of a function of plain values. Raises ValueError for others."""
    match node:
        case ast.Constant():
            return node.value
        case ast.Name() if node.id in names:
            return names[node.id]
        case ast.Attribute() if name_of(node).startswith(tuple(_NAMED)):
            first, _, rest = name_of(node).partition(".")
            return _NAMED[f"{first}."] + rest
        case ast.BoolOp(op=op):
            for part in node.values:
                operand = value_of(part, names)
                if bool(operand) != isinstance(op, ast.And):
                    break
            return operand
        case ast.IfExp():
            return value_of(node.body if value_of(node.test, names) else node.orelse, names)
        case ast.Compare() | ast.BinOp() | ast.UnaryOp() | ast.NamedExpr():
            return _operated(node, names)
        case ast.JoinedStr():
            return "".join(_text(part, names) for part in node.values)
        case ast.List() | ast.Tuple():
            return [item for part in node.elts for item in _spread(part, names)]
        case ast.Dict():
            return _dict(node, names)
        case ast.Subscript():
            return _applied(node, operator.getitem, [value_of(node.value, names), value_of(node.slice, names)])
        case ast.Call() if not any(keyword.arg is None for keyword in node.keywords):
            return _called(node, names)
        case ast.ListComp() | ast.GeneratorExp():
            return _loop(node, names)
    raise ValueError(ast.unparse(node))


def _text(node: ast.expr, names: Mapping[str, Any]) -> str:
    """A part of an f-string."""
    if not isinstance(node, ast.FormattedValue):
        return str(value_of(node, names))
    if node.conversion != -1 or node.format_spec is not None:
        raise ValueError(ast.unparse(node))
    return str(value_of(node.value, names))


def _operated(node: ast.Compare | ast.BinOp | ast.UnaryOp | ast.NamedExpr, names: Mapping[str, Any]) -> Any:
    """An operator between plain values."""
    match node:
        case ast.NamedExpr():
            return value_of(node.value, names)
        case ast.UnaryOp(op=ast.USub()):
            return _applied(node, operator.neg, [value_of(node.operand, names)])
        case ast.UnaryOp(op=ast.Not()):
            return not value_of(node.operand, names)
        case ast.BinOp() if type(node.op) in _COMBINED:
            return _combined(node, value_of(node.left, names), value_of(node.right, names))
        case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in _COMPARED:
            return _applied(node, _COMPARED[type(op)], [value_of(left, names), value_of(right, names)])
    raise ValueError(ast.unparse(node))


def _combined(node: ast.BinOp, first: Any, second: Any) -> Any:
    """Numbers, texts, lists and dicts one after the other, a list several times."""
    repeated = isinstance(node.op, ast.Mult) and isinstance(first, list) and isinstance(second, int) and second < 10_000
    numbers = isinstance(first, int | float) and isinstance(second, int | float)
    joined = isinstance(node.op, ast.Add | ast.BitOr) and type(first) is type(second)
    if not (repeated or numbers or joined) or (isinstance(node.op, ast.Pow) and abs(second) > 100):
        raise ValueError(ast.unparse(node))
    return _applied(node, _COMBINED[type(node.op)], [first, second])


def _applied(node: ast.expr, function: Callable[..., Any], given: list[Any], **named: Any) -> Any:
    """The value of a function of plain values. Raises ValueError where Python would raise."""
    try:
        return function(*given, **named)
    except (TypeError, ValueError, LookupError, AttributeError, ArithmeticError):
        raise ValueError(ast.unparse(node)) from None


def _dict(node: ast.Dict, names: Mapping[str, Any]) -> dict[Any, Any]:
    out: dict[Any, Any] = {}
    for key, item in zip(node.keys, node.values, strict=True):
        given = value_of(item, names)
        out |= _applied(node, dict, [given] if key is None else [[(value_of(key, names), given)]])
    return out


def _called(node: ast.Call, names: Mapping[str, Any]) -> Any:
    """A function or method of plain values that changes nothing."""
    if name_of(node.func) == "isinstance" and len(node.args) == 2 and name_of(node.args[1]) in _TYPES:
        return isinstance(value_of(node.args[0], names), _TYPES[name_of(node.args[1])])
    given = [item for argument in node.args for item in _spread(argument, names)]
    named = {keyword.arg: value_of(keyword.value, names) for keyword in node.keywords if keyword.arg}
    if isinstance(node.func, ast.Attribute) and node.func.attr in _METHODS:
        method = operator.methodcaller(node.func.attr, *given, **named)
        made = _applied(node, method, [value_of(node.func.value, names)])
        views = node.func.attr in ("items", "keys", "values")
        return [list(item) if isinstance(item, tuple) else item for item in made] if views else made
    name = name_of(node.func)
    if name == "range" and not named:
        bounds = _applied(node, range, given)
        if len(bounds) >= _LONGEST:
            raise ValueError(ast.unparse(node))
        return list(bounds)
    if name not in _FUNCTIONS or name in names:
        raise ValueError(ast.unparse(node))
    return _applied(node, _FUNCTIONS[name], given, **named)


def _spread(node: ast.expr, names: Mapping[str, Any]) -> list[Any]:
    return list(value_of(node.value, names)) if isinstance(node, ast.Starred) else [value_of(node, names)]


def _loop(node: ast.ListComp | ast.GeneratorExp, names: Mapping[str, Any]) -> list[Any]:
    loop = node.generators[0]
    if len(node.generators) > 1 or loop.ifs or not isinstance(loop.target, ast.Name):
        raise ValueError(ast.unparse(node))
    items = value_of(loop.iter, names)
    if not isinstance(items, list):
        raise ValueError(ast.unparse(node))
    return [value_of(node.elt, {**names, loop.target.id: item}) for item in items]


def place_in_nemo(name: str) -> str:
    """The file of a recipe of NeMo by the name of its function (`llm.llama3_8b.pretrain_recipe`), "" for another."""
    return f": nemo/collections/llm/recipes/{name.split('.')[-2]}.py of NeMo" if name.startswith("llm.") else ""
