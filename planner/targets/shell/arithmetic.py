"""Arithmetic of the shell: integer expressions."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable

_OPERATIONS: dict[type, Callable[[int, int], int]] = {
    ast.Add: lambda a, b: a + b, ast.Sub: lambda a, b: a - b, ast.Mult: lambda a, b: a * b,
    ast.FloorDiv: lambda a, b: int(a / b), ast.Mod: lambda a, b: a - b * int(a / b),
    ast.Pow: lambda a, b: a ** min(b, 99),
    ast.Lt: lambda a, b: a < b, ast.Gt: lambda a, b: a > b, ast.LtE: lambda a, b: a <= b, ast.GtE: lambda a, b: a >= b,
    ast.Eq: lambda a, b: a == b, ast.NotEq: lambda a, b: a != b, ast.And: lambda a, b: bool(a) and bool(b),
    ast.Or: lambda a, b: bool(a) or bool(b),
}  # fmt: skip


def calculated(text: str) -> int | None:
    """The value of an integer expression; None for any other text."""
    spelled = re.sub(r"(?<!/)/(?!/)", "//", text.strip() or "0").replace("&&", " and ").replace("||", " or ")
    spelled = _chosen(re.sub(r"!(?!=)", " not ", spelled))
    try:
        return int(_evaluated(ast.parse(re.sub(r"\b0+(?=\d)", "", spelled).strip(), mode="eval").body))
    except (SyntaxError, ValueError, ZeroDivisionError, OverflowError, KeyError):
        return None


def _chosen(text: str) -> str:
    """`condition ? one : other` in the spelling of Python, also where brackets hold it."""
    while (found := re.search(r"\(([^()]*\?[^()]*:[^()]*)\)", text)) is not None:
        text = f"{text[: found.start()]}[{_chosen(found[1])}]{text[found.end() :]}"
    condition, question, rest = text.partition("?")
    one, colon, other = rest.partition(":")
    spelled = f"({one}) if ({condition}) else ({_chosen(other)})" if question and colon else text
    return spelled.replace("[", "(").replace("]", ")")


def _evaluated(node: ast.expr) -> int:
    match node:
        case ast.Constant(value=int()):
            return int(node.value)  # type: ignore[arg-type]
        case ast.UnaryOp(op=ast.USub()):
            return -_evaluated(node.operand)
        case ast.UnaryOp(op=ast.Not()):
            return int(not _evaluated(node.operand))
        case ast.BinOp():
            return _OPERATIONS[type(node.op)](_evaluated(node.left), _evaluated(node.right))
        case ast.Compare(comparators=[right]):
            return int(_OPERATIONS[type(node.ops[0])](_evaluated(node.left), _evaluated(right)))
        case ast.BoolOp(values=[left, right]):
            return int(_OPERATIONS[type(node.op)](_evaluated(left), _evaluated(right)))
        case ast.IfExp():
            return _evaluated(node.body if _evaluated(node.test) else node.orelse)
    raise ValueError(ast.unparse(node))
