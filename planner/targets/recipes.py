"""Follows Python recipes without running them: functions that make a config, change it and return it.

The reader takes assignments in order (`config.train.x = 5`). It follows functions of the given files and conditions
with plain values. A statement that it cannot follow is a doubt about the options that it may set, or about all.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from .python_values import name_of, value_of

_MOST_CALLS = 20
# Functions that change nothing.
_ASKING = ("isinstance", "hasattr", "getattr", "len", "print", "str", "type", "range", "int", "float", "bool", "any")


@dataclass(frozen=True)
class Given:
    """The expression assigned to an option, with the plain names in it and its file."""

    node: ast.expr
    names: Mapping[str, Any]
    path: str


@dataclass(frozen=True)
class Doubt:
    """A statement that cannot be followed: (file, line), the option that it may set ("": any), and the reason."""

    path: str
    line: int
    option: str
    text: str


@dataclass
class Recipe:
    """A config under construction."""

    # Dotted option -> its last assigned expression. "" is the config itself where another file made it.
    given: dict[str, Given] = field(default_factory=dict)
    doubts: list[Doubt] = field(default_factory=list)

    def put(self, option: str, given: Given) -> None:
        """Sets an option. A block of that name loses its former content."""
        self.given = {name: value for name, value in self.given.items() if not name.startswith(f"{option}.")}
        self.given[option] = given


@dataclass(frozen=True)
class _Scope:
    """The scope of a function: its file, its plain names, its configs, and other expressions."""

    path: str
    names: dict[str, Any] = field(default_factory=dict)
    configs: dict[str, Recipe] = field(default_factory=dict)
    others: dict[str, Given] = field(default_factory=dict)
    # Names that the function changes. A value that another file returns for them is a config.
    held: frozenset[str] = frozenset()
    depth: int = 0


class Follower:
    """Follows functions of modules (path -> tree). container: the call that makes a config (`ConfigContainer`)."""

    def __init__(self, modules: Mapping[str, ast.Module], container: str) -> None:
        self.container = container
        self.functions: dict[str, tuple[str, ast.FunctionDef]] = {}
        self.constants: dict[str, dict[str, Any]] = {}
        for path, tree in reversed(list(modules.items())):  # the first file wins
            self.functions |= {node.name: (path, node) for node in tree.body if isinstance(node, ast.FunctionDef)}
            self.constants[path] = dict(_constants(tree))
        for tree in modules.values():
            for name, other in _renamed(tree):
                if other in self.functions:
                    self.functions.setdefault(name, self.functions[other])

    def makers(self, path: str) -> list[str]:
        """The functions of a file that make a config, in order."""
        return [name for name, (where, node) in self.functions.items() if where == path and self._makes(node)]

    def has(self, path: str, name: str) -> bool:
        """Whether a file has a function that returns something."""
        where, node = self.functions.get(name, ("", None))
        return where == path and node is not None and any(isinstance(part, ast.Return) for part in ast.walk(node))

    def _makes(self, node: ast.FunctionDef) -> bool:
        annotated = node.returns is not None and ast.unparse(node.returns).strip("\"'") == self.container
        calls = any(isinstance(inner, ast.Call) and name_of(inner.func) == self.container for inner in ast.walk(node))
        returned = [inner.value for inner in ast.walk(node) if isinstance(inner, ast.Return) and inner.value]
        changed = any(isinstance(value, ast.Name) and value.id in _changed(node) for value in returned)
        return bool(returned) and (annotated or calls or changed)

    def follow(self, name: str) -> Recipe:
        """The config that the function returns."""
        path, node = self.functions[name]
        return self._call(path, node, ast.Call(ast.Name(name), [], []), _Scope(path)) or Recipe()

    def _call(self, path: str, node: ast.FunctionDef, call: ast.Call, scope: _Scope) -> Recipe | None:
        """The config that a function of the files returns. A config argument is changed in place."""
        return self._body(node.body, self._inside(path, node, call, scope))

    def _inside(self, path: str, node: ast.FunctionDef, call: ast.Call, scope: _Scope) -> _Scope:
        """The scope of a called function, with its arguments."""
        inner = _Scope(path, dict(self.constants[path]), held=_changed(node), depth=scope.depth + 1)
        arguments = node.args.posonlyargs + node.args.args
        defaults = dict(zip([arg.arg for arg in arguments][::-1], node.args.defaults[::-1], strict=False))
        defaults |= {arg.arg: default for arg, default in zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True)
                     if default is not None}  # fmt: skip
        passed = dict(zip([arg.arg for arg in arguments], call.args, strict=False))
        passed |= {keyword.arg: keyword.value for keyword in call.keywords if keyword.arg}
        for name, value in {**defaults, **passed}.items():
            if isinstance(value, ast.Name) and value.id in scope.configs:
                inner.configs[name] = scope.configs[value.id]
            elif (plain := _plain(value, scope.names)) is not None:
                inner.names[name] = plain[0]
        return inner

    def _body(self, body: list[ast.stmt], scope: _Scope) -> Recipe | None:
        for statement in body:
            match statement:
                case ast.Return(value=value) if value is not None:
                    made = self._config(value, scope)
                    return Recipe({"": Given(value, {}, scope.path)}) if made is None else made
                case ast.Assign(targets=[target], value=value):
                    self._assign(target, value, scope)
                case ast.AnnAssign(target=target, value=ast.expr() as value):
                    self._assign(target, value, scope)
                case ast.Expr(value=ast.Call() as call):
                    self._effect(call, scope)
                case ast.If():
                    returned = self._branch(statement, scope)
                    if returned is not None:
                        return returned
                case ast.For() | ast.While() | ast.With() | ast.Try() | ast.AugAssign():
                    self._unsure(statement, scope, "is set where only a run can follow")
        return None

    def _assign(self, target: ast.expr, value: ast.expr, scope: _Scope) -> None:
        if isinstance(target, ast.Name):
            made = self._config(value, scope)
            if made is None and target.id in scope.held and isinstance(value, ast.Call):
                made = Recipe({"": Given(value, {}, scope.path)})
            if made is not None:
                scope.configs[target.id] = made
            elif (plain := _plain(value, scope.names)) is not None:
                scope.names[target.id] = plain[0]
            else:
                scope.names.pop(target.id, None)
                scope.others[target.id] = self._given(value, scope)
            return
        root, _, option = name_of(target).partition(".")
        if root in scope.configs and option and name_of(target) not in _attributes(value):  # without it the value stays
            self._put(scope.configs[root], option, value, scope)

    def _put(self, recipe: Recipe, option: str, value: ast.expr, scope: _Scope) -> None:
        """Sets an option, or a block that a function of the files makes and changes."""
        function = self.functions.get(name_of(value.func)) if isinstance(value, ast.Call) else None
        if function is None or not _changed(function[1]) or scope.depth > _MOST_CALLS:
            recipe.put(option, self._given(value, scope))
            return
        made = self._config(value, scope) or Recipe()
        for name, given in made.given.items():
            recipe.put(f"{option}.{name}" if name else option, given)
        recipe.doubts += [replace(doubt, option=f"{option}.{doubt.option}") for doubt in made.doubts]

    def _given(self, value: ast.expr, scope: _Scope) -> Given:
        """An expression. A call of a function that only returns an expression becomes that expression."""
        if isinstance(value, ast.Name) and value.id in scope.others:
            return scope.others[value.id]
        root, _, option = name_of(value).partition(".")
        if root in scope.configs and option in scope.configs[root].given:
            return scope.configs[root].given[option]
        given = Given(value, dict(scope.names), scope.path)
        for _ in range(_MOST_CALLS):
            node = given.node
            if not isinstance(node, ast.Call) or (found := self.functions.get(name_of(node.func))) is None:
                return given
            path, function = found
            returned = [part.value for part in function.body if isinstance(part, ast.Return) and part.value is not None]
            if len(returned) != 1 or any(isinstance(part, ast.If | ast.For) for part in function.body):
                return given
            inner = self._inside(path, function, node, replace(scope, names=dict(given.names)))
            given = Given(returned[0], inner.names, path)
        return given

    def _config(self, value: ast.expr, scope: _Scope) -> Recipe | None:
        """The config that an expression makes or names; None for another value."""
        if isinstance(value, ast.Name):
            return scope.configs.get(value.id)
        if not isinstance(value, ast.Call):
            return None
        name = name_of(value.func)
        if name == self.container:
            return self._with(Recipe(), value.keywords, scope)
        if name.rpartition(".")[2] in ("deepcopy", "replace", "cast") and value.args:
            made = self._config(value.args[-1 if name.endswith("cast") else 0], scope)
            return made if made is None else self._with(made, value.keywords, scope)
        if name in self.functions and scope.depth < _MOST_CALLS:
            path, node = self.functions[name]
            return self._call(path, node, value, scope) if self._makes(node) else None
        return None

    def _with(self, made: Recipe, keywords: list[ast.keyword], scope: _Scope) -> Recipe:
        """A copy with the options of the keywords."""
        out = Recipe(dict(made.given), list(made.doubts))
        for keyword in keywords:
            if keyword.arg:
                out.put(keyword.arg, self._given(keyword.value, scope))
        return out

    def _effect(self, call: ast.Call, scope: _Scope) -> None:
        """Follows a call that changes a config."""
        roots = (name_of(argument).partition(".")[0] for argument in [
            *call.args, *(keyword.value for keyword in call.keywords)])  # fmt: skip
        touched = [root for root in roots if root in scope.configs]
        if not touched:
            return
        name = name_of(call.func)
        if name in _ASKING:
            return
        if name in self.functions and scope.depth < _MOST_CALLS:
            path, node = self.functions[name]
            self._call(path, node, call, scope)
            return
        text = f"{name} changes it and is in another file: give that file too"
        scope.configs[touched[0]].doubts.append(Doubt(scope.path, call.lineno, "", text))

    def _branch(self, statement: ast.If, scope: _Scope) -> Recipe | None:
        plain = _plain(statement.test, scope.names)
        if plain is not None:
            return self._body(statement.body if plain[0] else statement.orelse, scope)
        self._unsure(statement, scope, f"is set where `{ast.unparse(statement.test)}` holds, which only a run can tell")
        return None

    def _unsure(self, statement: ast.stmt, scope: _Scope, why: str) -> None:
        """Marks the options that a statement may set as doubts."""
        for node in ast.walk(statement):
            if isinstance(node, ast.Call):
                self._effect(node, scope)
            targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(
                node, ast.AugAssign) else []  # fmt: skip
            for target in targets:
                root, _, option = name_of(target).partition(".")
                if root in scope.configs and option:
                    scope.configs[root].doubts.append(Doubt(scope.path, target.lineno, option, why))


def _renamed(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Name in this module -> original name, for each function imported under another name."""
    for node in tree.body:
        if isinstance(node, ast.ImportFrom):
            yield from ((alias.asname, alias.name) for alias in node.names if alias.asname)


def _attributes(node: ast.expr) -> set[str]:
    """The dotted names in an expression."""
    return {name_of(inner) for inner in ast.walk(node) if isinstance(inner, ast.Attribute)}


def _changed(function: ast.FunctionDef) -> frozenset[str]:
    """The names whose attributes a function sets."""
    targets = (target for node in ast.walk(function) if isinstance(node, ast.Assign) for target in node.targets)
    return frozenset(name_of(target).partition(".")[0] for target in targets if isinstance(target, ast.Attribute))


def _constants(tree: ast.Module) -> Iterator[tuple[str, Any]]:
    """Plain values of names at the top of a module."""
    names: dict[str, Any] = {}
    for node in tree.body:
        target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
        value = node.value if isinstance(node, ast.Assign | ast.AnnAssign) else None
        if isinstance(target, ast.Name) and value is not None and (plain := _plain(value, names)) is not None:
            names[target.id] = plain[0]
            yield target.id, plain[0]


def _plain(node: ast.expr, names: Mapping[str, Any]) -> tuple[Any] | None:
    """A tuple with the value of a plain expression; empty for another."""
    try:
        return (value_of(node, names),)
    except ValueError:
        return None
