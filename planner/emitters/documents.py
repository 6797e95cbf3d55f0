"""Reads the options of JSON, YAML and TOML configs, and of config modules in Python, without running them."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from pathlib import PurePath
from typing import Any

from ...errors import InputError, Problem
from ...profiles.reader import Document, read_document
from .argv import Arguments
from .option_lists import OptionList

# Sections of torchtitan's TOML that say nothing about the layout.
_TOML_OTHERS = (
    "job", "profiling", "metrics", "optimizer", "lr_scheduler", "checkpoint", "experimental", "comm", "model",
    "memory_estimation", "fault_tolerance", "validation", "quantize", "float8", "debug", "compile",
)  # fmt: skip


def read_blocks(document: Document, options: OptionList, prefix: str = "") -> Arguments:
    """The settings of nested blocks by dotted option; a block of which no option is listed is one value.

    "auto" is left out: the framework fills it in. Unknown keys are listed, values of a wrong type become problems.
    """
    found = Arguments()
    if not isinstance(document.data, Mapping):
        found.problems.append(document.problem((), "is not a config: it must be a block of options"))
        return found
    for path, value in _flat(document.data, options, prefix):
        name, line = prefix + ".".join(path), document.line(path)
        found.lines[name] = line
        option = options.options.get(name)
        if option is None:
            found.unknown[name] = line
        elif value is None or value == "auto":
            continue
        elif (wrong := option.wrong(value)) is not None:
            found.problems.append(Problem(wrong, file=document.name, line=line, field=name))
        else:
            found.settings[name] = value
    return found


def _flat(
    data: Mapping[str, Any], options: OptionList, prefix: str, above: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], Any]]:
    for key, value in data.items():
        path = (*above, str(key))
        inside = f"{prefix}{'.'.join(path)}."
        if isinstance(value, Mapping) and any(name.startswith(inside) for name in options.options):
            yield from _flat(value, options, prefix, path)
        else:
            yield path, value


def read_toml(document: Document, options: OptionList) -> Arguments:
    """torchtitan's TOML of releases up to 0.2.2, in the names of its Python config."""
    data = {key: value for key, value in dict(document.data).items() if key not in _TOML_OTHERS}
    mode = dict(data.pop("activation_checkpoint", {}) or {}).get("mode", "none")
    found = read_blocks(Document(document.name, data, document.text, document.syntax), options)
    model = document.at(("model",), {})
    found.settings["activation_checkpoint"] = mode
    if isinstance(model, Mapping) and model.get("flavor"):
        found.settings["model_spec"] = f"{model.get('name', '')}/{model['flavor']}"
    converters = model.get("converters", []) if isinstance(model, Mapping) else []
    if any("float8" in str(each) for each in converters):
        found.settings["converters"] = "float8"
    return found


def read_config(path: str, text: str, options: OptionList, prefix: str = "") -> Arguments:
    """JSON, YAML or TOML by suffix."""
    document = read_document(path, text)
    return read_toml(document, options) if document.syntax == "toml" else read_blocks(document, options, prefix)


def read_constants(path: str, text: str, options: OptionList, prefix: str) -> Arguments:
    """Upper-case constants of a module, as `prefix.NAME`."""
    found = Arguments()
    for node in _module(path, text).body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id.isupper():
            name = f"{prefix}.{node.targets[0].id}"
            found.lines[name] = node.lineno
            try:
                found.settings[name] = _value(node.value, {})
            except ValueError:
                found.problems.append(Problem("is not a plain value", file=path, line=node.lineno, field=name))
    return found


def read_titan_module(path: str, text: str, options: OptionList, function: str | None = None) -> Arguments:
    """The Trainer.Config that a function of a torchtitan config module returns (`function`; None: the last one)."""
    tree = _module(path, text)
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    if function is not None:
        functions = [node for node in functions if node.name == function]
    families = {
        alias.asname or alias.name: (node.module or "").rpartition(".")[2]
        for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) for alias in node.names
    }  # fmt: skip
    found = Arguments()
    for one in reversed(functions):
        calls = [node for node in ast.walk(one) if isinstance(node, ast.Call) and _name(node.func) == "Trainer.Config"]
        if calls:
            _config(found, calls[0], one, options, path, families.get("model_registry") or PurePath(path).parent.name)
            return found
    names = f"`{function}`" if function else "a function"
    found.problems.append(Problem(f"has no {names} that returns Trainer.Config(...)", file=path))
    return found


def _config(
    found: Arguments, call: ast.Call, function: ast.FunctionDef, options: OptionList, path: str, family: str
) -> None:
    given: dict[str, ast.expr] = {}
    for keyword in call.keywords:
        name, value = keyword.arg or "", keyword.value
        found.lines[name] = keyword.lineno if hasattr(keyword, "lineno") else value.lineno
        if isinstance(value, ast.Call) and any(each.startswith(f"{name}.") for each in options.options):
            given |= {f"{name}.{each.arg}": each.value for each in value.keywords}
        else:
            given[name] = value
    for node in ast.walk(function):  # config.training.steps = 5
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Attribute):
            given[_name(node.targets[0]).partition(".")[2]] = node.value
        if isinstance(node, ast.Call) and _name(node.func).endswith("model_registry") and node.args:
            flavor = node.args[0]
            if isinstance(flavor, ast.Constant) and isinstance(flavor.value, str):
                found.settings["model_spec"] = f"{family}/{flavor.value}"
            if any(each.arg == "converters" and "Float8" in ast.unparse(each.value) for each in node.keywords):
                found.settings["converters"] = "float8"
    for name, value in given.items():
        found.lines[name] = value.lineno
        _keep(found, name, value, options, path)


def _keep(found: Arguments, name: str, node: ast.expr, options: OptionList, path: str) -> None:
    if name == "model_spec":
        return
    if name not in options.options:
        found.unknown[name] = node.lineno
        return
    if name == "activation_checkpoint":
        text = ast.unparse(node)
        kinds = {"FullAC": "full", "SelectiveAC": "selective", "MemoryBudgetAC": "memory budget", "None": "none"}
        found.settings[name] = next((kind for word, kind in kinds.items() if word in text), text)
        return
    option = options.options[name]
    if option.kind == "any" and "." not in name:
        return  # optimizer, dataloader, ...: nothing of the layout
    try:
        value = _value(node, {})
    except ValueError:
        found.problems.append(Problem("is not a plain value: it cannot be read without running the module", file=path,
                                      line=node.lineno, field=name))  # fmt: skip
        return
    if value is None:
        return
    if (wrong := option.wrong(value)) is not None:
        found.problems.append(Problem(wrong, file=path, line=node.lineno, field=name))
    else:
        found.settings[name] = value


def _module(path: str, text: str) -> ast.Module:
    try:
        return ast.parse(text)
    except SyntaxError as error:
        message = f"not valid Python: {error.msg}"
        raise InputError.of([Problem(message, file=path, line=error.lineno or 0)]) from None


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
        case ast.UnaryOp(op=ast.USub()):
            return -_value(node.operand, names)
        case ast.BinOp(op=ast.Mult() | ast.Add() | ast.Sub() | ast.FloorDiv()):
            left, right = _value(node.left, names), _value(node.right, names)
            if not (isinstance(left, int) and isinstance(right, int)):
                raise ValueError(ast.unparse(node))
            if isinstance(node.op, ast.FloorDiv):
                return left // (right or 1)
            return {ast.Mult: left * right, ast.Add: left + right, ast.Sub: left - right}[type(node.op)]
        case ast.JoinedStr():
            return "".join(str(_value(part, names)) for part in node.values)
        case ast.FormattedValue():
            return _value(node.value, names)
        case ast.List() | ast.Tuple():
            return [each for part in node.elts for each in _spread(part, names)]
        case ast.ListComp() | ast.GeneratorExp():
            return _loop(node, names)
    raise ValueError(ast.unparse(node))


def _spread(node: ast.expr, names: Mapping[str, Any]) -> list[Any]:
    return list(_value(node.value, names)) if isinstance(node, ast.Starred) else [_value(node, names)]


def _loop(node: ast.ListComp | ast.GeneratorExp, names: Mapping[str, Any]) -> list[Any]:
    loop = node.generators[0]
    call, target = loop.iter, loop.target
    plain = len(node.generators) == 1 and not loop.ifs and isinstance(target, ast.Name)
    if not plain or not isinstance(call, ast.Call) or _name(call.func) != "range" or call.keywords:
        raise ValueError(ast.unparse(node))
    bounds = [_value(each, names) for each in call.args]
    if not 1 <= len(bounds) <= 3 or not all(isinstance(each, int) and abs(each) < 100_000 for each in bounds):
        raise ValueError(ast.unparse(node))
    variable = target.id if isinstance(target, ast.Name) else ""
    return [_value(node.elt, {**names, variable: index}) for index in range(*bounds)]
