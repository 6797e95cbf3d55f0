"""The values of expressions in a recipe that is followed, with their effects on configs."""

from __future__ import annotations

import ast
import copy
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from ..python_values import name_of
from .state import RESULT, State, join
from .values import Function, Given, Items, Ref, Value, constant

# A call with this name holds its arguments beyond the expression that it is in.
_HOLDER = "<holder>"
HELD = "is in a list or dict, by which it may be changed"
_MIXED = "is one of several values, which only a run can tell"


class Expressions(ABC):
    """Values of expressions; calls and statements are for those that follow it."""

    # Names of options that hold numbers, words or flags: nobody changes a config through one.
    scalars: frozenset[str]

    @abstractmethod
    def call(self, node: ast.Call, state: State) -> Value:
        """The value of a call, with its effects."""

    @abstractmethod
    def run(self, body: Sequence[ast.stmt], state: State) -> bool:
        """Follows statements; whether the next one is reached."""

    @abstractmethod
    def named(self, name: str, state: State) -> Value | None:
        """The value of a name, None for one that is not known."""

    @abstractmethod
    def escapes(self, values: Sequence[Value], line: int, text: str, state: State) -> None:
        """Notes that the blocks among `values` may be changed elsewhere. text: where."""

    def evaluate(self, node: ast.expr, state: State) -> Value:
        """The value of an expression; its effects are in the state."""
        match node:
            case ast.Name():
                value = self.named(node.id, state)
                unknown = value is None or (isinstance(value, Given) and isinstance(value.node, ast.Name))
                return self.given(node, state) if unknown or value is None else value
            case ast.Attribute() | ast.Subscript():
                return self._part(node, state)
            case ast.Call():
                return self.call(node, state)
            case ast.NamedExpr():
                state.names[node.target.id] = value = self.evaluate(node.value, state)
                return value
            case ast.IfExp():
                return self._either(node.test, [node.body], [node.orelse], node, state)
            case ast.BoolOp():
                return self._operands(node, state)
            case ast.ListComp() | ast.SetComp() | ast.GeneratorExp() | ast.DictComp():
                return self._comprehension(node, state)
            case ast.Lambda():
                return self._delayed(node, state)
            case _:
                return self._parts(node, state)

    def given(self, node: ast.expr, state: State) -> Given:
        """An expression as it stands, with the values that it takes from names and configs."""
        used = {name.id for name in ast.walk(node) if isinstance(name, ast.Name)}
        values = {name: self.named(name, state) for name in used}
        names = {name: plain[0] for name, value in values.items()
                 if isinstance(value, Given) and (plain := value.plain()) is not None}  # fmt: skip
        if any(isinstance(value, Ref) for value in values.values()):
            node = _Closed(self, state).visit(copy.deepcopy(node))
        out = Given(node, names, state.frame.path)
        plain = out.plain()
        mutable = plain is not None and isinstance(plain[0], list | dict)
        return constant(plain[0], node, out.path) if mutable and plain is not None else out

    def leaf(self, ref: Ref, state: State) -> Value:
        """An option of a config: its value where that is plain."""
        known = state.recipe(ref).known(ref.option)
        return known if known is not None and known.plain() is not None else ref

    def place(self, node: ast.expr, state: State) -> Ref | None:
        """The option that an attribute or item is, None for one of something else."""
        if not isinstance(node, ast.Attribute | ast.Subscript):
            return None
        return self._option_of(self.evaluate(node.value, state), node, state)

    def _option_of(self, holder: Value, node: ast.Attribute | ast.Subscript, state: State) -> Ref | None:
        """The option of a holder that is evaluated."""
        if not isinstance(holder, Ref):
            return None
        if isinstance(node, ast.Attribute):
            return holder.at(node.attr)
        index = self.evaluate(node.slice, state)
        plain = index.plain() if isinstance(index, Given) else None
        return holder.at(plain[0]) if plain is not None and isinstance(plain[0], str) else None

    def _part(self, node: ast.Attribute | ast.Subscript, state: State) -> Value:
        """An attribute or item."""
        holder = self.evaluate(node.value, state)
        if (ref := self._option_of(holder, node, state)) is not None:
            return self.leaf(ref, state)
        if isinstance(holder, Items) and isinstance(node, ast.Subscript):
            index = self.given(node.slice, state).plain()
            if index is not None and isinstance(index[0], int) and abs(index[0]) < len(holder.values):
                return holder.values[index[0]]
            self.escapes(holder.values, node.lineno, HELD, state)
        return self.given(node, state)

    def _parts(self, node: ast.expr, state: State) -> Value:
        """An expression of expressions. The items of a dict or set may be changed through it."""
        values = [self.evaluate(part, state) for part in ast.iter_child_nodes(node) if isinstance(part, ast.expr)]
        if isinstance(node, ast.List | ast.Tuple) and any(isinstance(value, Ref | Items) for value in values):
            return Items(tuple(values))
        if isinstance(node, ast.Dict | ast.Set | ast.Starred | ast.Await | ast.Yield | ast.YieldFrom):
            self.escapes(values, node.lineno, HELD, state)
        return self.given(node, state)

    def test(self, node: ast.expr, state: State) -> tuple[Any] | None:
        """The value of a condition, in a tuple; None where only a run can tell."""
        value = self.evaluate(node, state)
        return value.plain() if isinstance(value, Given) else None

    def _either(self, test: ast.expr, body: list[ast.expr], orelse: list[ast.expr], node: ast.expr,
                state: State) -> Value:  # fmt: skip
        plain = self.test(test, state)
        if plain is not None:
            return self.evaluate((body if plain[0] else orelse)[0], state)
        return self._one_of([*body, *orelse], node, state)

    def _one_of(self, parts: Sequence[ast.expr], node: ast.expr, state: State, first: Value | None = None) -> Value:
        """One of several expressions, or `first`: nobody knows which."""
        ways = []
        for part in parts if first is None else (None, *parts):
            way = state.fork()
            value = self.evaluate(part, way) if part is not None else first
            single = isinstance(value, Ref) and value.option.rpartition(".")[2] in self.scalars
            way.names[RESULT] = self.given(node, way) if single or value is None else value
            ways.append(way)
        state.adopt(join(ways, node.lineno, _MIXED))
        value = state.names.pop(RESULT)
        unknown = isinstance(value, Given) and value.plain() is None
        return self.given(node, state) if unknown else value

    def _operands(self, node: ast.BoolOp, state: State) -> Value:
        """`and`, `or`: up to the operand that decides."""
        for index, operand in enumerate(node.values):
            value = self.evaluate(operand, state)
            plain = value.plain() if isinstance(value, Given) else None
            rest = node.values[index + 1 :]
            if not rest:
                return value
            if plain is None:
                tail = rest[0] if len(rest) == 1 else ast.copy_location(ast.BoolOp(node.op, rest), node)
                return self._one_of([tail], node, state, value)
            if bool(plain[0]) != isinstance(node.op, ast.And):
                return value
        return self.given(node, state)

    def _comprehension(self, node: ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp,
                       state: State) -> Value:  # fmt: skip
        """A loop in an expression, followed as a statement where it touches configs."""
        if not self._touches(node, state):
            return self.given(node, state)
        parts = [node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt]
        body: list[ast.stmt] = [ast.Expr(ast.Call(ast.Name(_HOLDER, ast.Load()), parts, []))]
        for loop in reversed(node.generators):
            for condition in reversed(loop.ifs):
                body = [ast.If(condition, body, [])]
            body = [ast.For(loop.target, loop.iter, body, [])]
        statement = ast.copy_location(body[0], node)
        for inner in ast.walk(statement):
            if isinstance(inner, ast.stmt | ast.expr) and not hasattr(inner, "lineno"):
                ast.copy_location(inner, node)
        targets = {name.id for loop in node.generators for name in ast.walk(loop.target) if isinstance(name, ast.Name)}
        outside = {name: value for name, value in state.names.items() if name in targets}
        self.run([statement], state)
        state.names = {name: value for name, value in state.names.items() if name not in targets} | outside
        return self.given(node, state)

    def _delayed(self, node: ast.Lambda, state: State) -> Value:
        """A function without a name: its calls may change the configs in it at any time."""
        own = {argument.arg for argument in ast.walk(node.args) if isinstance(argument, ast.arg)}
        names = [name.id for name in ast.walk(node.body) if isinstance(name, ast.Name) and name.id not in own]
        if any(isinstance(part, ast.Call | ast.NamedExpr) for part in ast.walk(node.body)):
            values = [value for name in names if (value := self.named(name, state)) is not None]
            self.escapes(values, node.lineno, "may be changed by a lambda", state)
        return self.given(node, state)

    def _touches(self, node: ast.expr, state: State) -> bool:
        """Whether an expression may change a config or a name."""
        for part in ast.walk(node):
            if isinstance(part, ast.NamedExpr):
                return True
            if isinstance(part, ast.Name) and isinstance(self.named(part.id, state), Ref | Items | Function):
                return True
        return False


class _Closed(ast.NodeTransformer):
    """Puts the plain values of options in the place of their names."""

    def __init__(self, expressions: Expressions, state: State) -> None:
        self.expressions, self.state = expressions, state

    def generic_visit(self, node: ast.AST) -> ast.AST:
        if isinstance(node, ast.Lambda | ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp):
            return node  # their names are their own
        if isinstance(node, ast.Attribute | ast.Subscript) and name_of(_root(node)):
            ref = self.expressions.place(node, self.state)
            value = None if ref is None else self.expressions.leaf(ref, self.state)
            if isinstance(value, Given) and (plain := value.plain()) is not None:
                return ast.copy_location(ast.Constant(plain[0]), node)
        return super().generic_visit(node)


def _root(node: ast.expr) -> ast.expr:
    while isinstance(node, ast.Attribute | ast.Subscript):
        node = node.value
    return node
