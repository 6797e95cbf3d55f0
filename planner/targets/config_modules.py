"""Reads config modules in Python without running them: the options that a function gives to its container."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from pathlib import PurePath
from typing import Any

from ...errors import FieldProblem, InputError
from .argv import Arguments
from .option_lists import OptionList

# Prefix of a name that an option takes (dtypes, functions), as a module spells it -> as a setting.
_NAMED = {"torch.": "torch.", "F.": "torch.nn.functional."}
# Name of the function of a module that sets rotary positions, and the setting that holds its text.
ROTATED = "rotated"


def read_constants(path: str, text: str, options: OptionList, prefix: str) -> Arguments:
    """Upper-case constants of a module, as `prefix.NAME`."""
    arguments = Arguments()
    for node in _module(path, text).body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id.isupper():
            name = f"{prefix}.{node.targets[0].id}"
            arguments.lines[name] = node.lineno
            try:
                arguments.settings[name] = _value(node.value, {})
            except ValueError:
                arguments.fail(name, "is not a plain value", node.lineno, path)
    return arguments


def read_config_module(
    path: str, text: str, options: OptionList, container: str, function: str | None = None
) -> Arguments:
    """The options that a function of the module gives to `container(...)`, or sets on one that it got elsewhere.

    `function`: its name; None: the last that does.
    """
    tree = _module(path, text)
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    if function is not None:
        functions = [node for node in functions if node.name == function]
    families = {
        alias.asname or alias.name: (node.module or "").rpartition(".")[2]
        for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) for alias in node.names
    }  # fmt: skip
    family = families.get("model_registry") or PurePath(path).parent.name
    rotated = next((node for node in functions if node.name == ROTATED), None)
    for candidate in reversed(functions):
        calls = [node for node in ast.walk(candidate) if isinstance(node, ast.Call) and _name(node.func) == container]
        given = _given(calls[0] if calls else None, candidate, options)
        if calls or given:
            arguments = _arguments(given, candidate, options, path, family)
            if rotated is not None:
                arguments.settings[ROTATED], arguments.lines[ROTATED] = ast.unparse(rotated), rotated.lineno
            return arguments
    names = f"`{function}`" if function else "a function"
    arguments = Arguments()
    arguments.problems.append(FieldProblem(f"has no {names} that returns {container}(...)", file=path))
    return arguments


def _given(call: ast.Call | None, function: ast.FunctionDef, options: OptionList) -> dict[str, ast.expr]:
    """Dotted option -> expression: the arguments of the call, and what is assigned later (`config.train.x = 5`)."""
    given: dict[str, ast.expr] = {}
    for keyword in call.keywords if call is not None else ():
        given |= _block(keyword.arg or "", keyword.value, options)
    for node in ast.walk(function):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Attribute):
            name = _name(node.targets[0]).partition(".")[2]
            if call is not None or name.partition(".")[0] in options.options:
                given |= _block(name, node.value, options)
    return given


def _block(name: str, value: ast.expr, options: OptionList) -> dict[str, ast.expr]:
    """An option, or those of a block that is written as a call; its class is one too where the release lists it."""
    if not isinstance(value, ast.Call) or not any(option.startswith(f"{name}.") for option in options.options):
        return {name: value}
    given = {f"{name}.{keyword.arg}": keyword.value for keyword in value.keywords if keyword.arg}
    if name in options.options and options.options[name].kind == "class":
        given[name] = ast.copy_location(ast.Constant(_name(value.func).rpartition(".")[2]), value)
    return given


def _arguments(
    given: Mapping[str, ast.expr], function: ast.FunctionDef, options: OptionList, path: str, family: str
) -> Arguments:
    arguments = Arguments()
    for node in ast.walk(function):  # torchtitan names its model
        if isinstance(node, ast.Call) and _name(node.func).endswith("model_registry") and node.args:
            flavor = node.args[0]
            if isinstance(flavor, ast.Constant) and isinstance(flavor.value, str):
                arguments.settings["model_spec"] = f"{family}/{flavor.value}"
            converters = [ast.unparse(keyword.value) for keyword in node.keywords if keyword.arg == "converters"]
            if any("Float8" in text for text in converters):
                arguments.settings["converters"] = "float8"
    for name, value in given.items():
        arguments.lines[name] = value.lineno
        _add(arguments, name, value, options, path)
    return arguments


def _add(arguments: Arguments, name: str, node: ast.expr, options: OptionList, path: str) -> None:
    if name == "model_spec":
        return
    if name not in options.options:
        arguments.unknown[name] = node.lineno
        return
    if name == "activation_checkpoint":
        text = ast.unparse(node)
        kinds = {"FullAC": "full", "SelectiveAC": "selective", "MemoryBudgetAC": "memory budget", "None": "none"}
        arguments.settings[name] = next((kind for word, kind in kinds.items() if word in text), text)
        return
    option = options.options[name]
    if option.kind == "code":
        arguments.settings[name] = ast.unparse(node)
        return
    if option.kind == "any" and "." not in name:
        return  # optimizer, dataloader, ...: no layout depends on it
    try:
        value = _value(node, {})
    except ValueError:
        text = "is not a plain value: it cannot be read without running the module"
        arguments.fail(name, text, node.lineno, path)
        return
    if value is not None:
        arguments.record(option, value, node.lineno, path)


def _module(path: str, text: str) -> ast.Module:
    try:
        return ast.parse(text)
    except SyntaxError as error:
        message = f"not valid Python: {error.msg}"
        raise InputError.of([FieldProblem(message, file=path, line=error.lineno or 0)]) from None


def _name(node: ast.expr) -> str:
    """`a.b.c` of a name or attribute."""
    if isinstance(node, ast.Attribute):
        return f"{_name(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def _value(node: ast.expr, names: Mapping[str, Any]) -> Any:
    """A literal, with whole-number arithmetic, f-strings and loops over a range. Raises ValueError for all else."""
    match node:
        case ast.Constant():
            return node.value
        case ast.Name() if node.id in names:
            return names[node.id]
        case ast.Attribute() if _name(node).startswith(tuple(_NAMED)):
            first, _, rest = _name(node).partition(".")
            return _NAMED[f"{first}."] + rest
        case ast.UnaryOp(op=ast.USub()):
            return -_value(node.operand, names)
        case ast.BinOp(op=ast.Mult() | ast.Add() | ast.Sub() | ast.FloorDiv()):
            return _combined(node, _value(node.left, names), _value(node.right, names))
        case ast.JoinedStr():
            return "".join(str(_value(part, names)) for part in node.values)
        case ast.FormattedValue():
            return _value(node.value, names)
        case ast.List() | ast.Tuple():
            return [item for part in node.elts for item in _spread(part, names)]
        case ast.ListComp() | ast.GeneratorExp():
            return _loop(node, names)
    raise ValueError(ast.unparse(node))


def _combined(node: ast.BinOp, first: Any, second: Any) -> Any:
    """Whole numbers, lists one after the other, a list several times."""
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
    return list(_value(node.value, names)) if isinstance(node, ast.Starred) else [_value(node, names)]


def _loop(node: ast.ListComp | ast.GeneratorExp, names: Mapping[str, Any]) -> list[Any]:
    loop = node.generators[0]
    call, target = loop.iter, loop.target
    plain = len(node.generators) == 1 and not loop.ifs and isinstance(target, ast.Name)
    if not plain or not isinstance(call, ast.Call) or _name(call.func) != "range" or call.keywords:
        raise ValueError(ast.unparse(node))
    bounds = [_value(argument, names) for argument in call.args]
    if not 1 <= len(bounds) <= 3 or not all(isinstance(bound, int) and abs(bound) < 100_000 for bound in bounds):
        raise ValueError(ast.unparse(node))
    variable = target.id if isinstance(target, ast.Name) else ""
    return [_value(node.elt, {**names, variable: index}) for index in range(*bounds)]
