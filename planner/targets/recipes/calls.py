"""Calls in a recipe that is followed: of functions of the files, of Python's own, and of what is in other files."""

from __future__ import annotations

import ast
import copy
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from ..python_values import name_of
from .expressions import HELD, Expressions
from .state import RESULT, Frame, Recipe, State, join
from .values import Doubt, Function, Given, Items, Ref, Value, constant

_DEEPEST = 20
# Functions, modules of functions, and methods that change nothing that they are given.
_ASKING = ("isinstance", "issubclass", "hasattr", "len", "print", "str", "repr", "type", "range", "int", "float",
           "bool", "any", "all", "id", "super", "print_rank_0", "min", "max", "sum", "abs",
           "round", "decoder_vocab_size")  # fmt: skip
_LOGGING = ("logger", "logging", "log", "warnings", "LOGGER", "_logger")
_METHODS = ("validate", "finalize", "to_dict", "to_yaml", "print_yaml", "lower", "upper", "startswith", "endswith",
            "split", "join", "format")  # fmt: skip
_OF_LISTS = ("keys", "values", "items", "get", "copy", "index", "count")
# Calls that may change any name.
_ANY = ("exec", "eval", "globals", "locals")
# Decorators that leave a function what it is.
_DECORATORS = ("cache", "lru_cache", "factory", "autoconvert", "override", "deprecated", "wraps", "staticmethod")
_SHARED = "shares its blocks with a copy, by which they may be changed"
_WITH_ERROR = "may be set on one way through a function and not on another"


@dataclass(frozen=True)
class _Call:
    """A call with its arguments evaluated."""

    node: ast.Call
    name: str
    positional: tuple[Value, ...]
    named: dict[str, Value]
    # Whether arguments come out of a list or dict that only a run knows.
    open: bool
    # The object of a method.
    holder: Value | None = None

    @property
    def last(self) -> str:
        return self.name.rpartition(".")[2]


class Calls(Expressions):
    """Values and effects of calls. container: the call that makes a config (`ConfigContainer`)."""

    container: str
    # Functions that are read elsewhere.
    understood: Sequence[str]
    # Whether calls of classes make blocks, which may hold others.
    nested: bool

    @abstractmethod
    def around(self, path: str) -> State:
        """The state of the module that a function is in."""

    def call(self, node: ast.Call, state: State) -> Value:
        call = self._evaluated(node, state)
        function = self._function(node.func, state)
        if call.name == self.container:
            return self._changed(Recipe(), call, state)
        if call.name in self.understood and call.positional:
            return call.positional[0]
        if isinstance(function, Function) and self._followed(function, state):
            return self._inside(function, call, state)
        if self.nested and call.last[:1].isupper() and not call.positional:
            bare = ast.copy_location(ast.Call(node.func, [], []), node)
            return self._changed(Recipe({"": self.given(bare, state)}), call, state)
        own = self._of_python(call, state)
        if own is not None:
            return own
        return self._elsewhere(call, state)

    def _evaluated(self, node: ast.Call, state: State) -> _Call:
        holder = self.evaluate(node.func.value, state) if isinstance(node.func, ast.Attribute) else None
        positional: list[Value] = []
        named: dict[str, Value] = {}
        unknown = False
        for argument in node.args:
            inner = argument.value if isinstance(argument, ast.Starred) else argument
            value = self.evaluate(inner, state)
            spread = self.items(value, inner) if isinstance(argument, ast.Starred) else [value]
            unknown |= spread is None
            positional += [value] if spread is None else spread
        for keyword in node.keywords:
            value = self.evaluate(keyword.value, state)
            plain = value.plain() if isinstance(value, Given) else None
            if keyword.arg is not None:
                named[keyword.arg] = value
            elif plain is not None and isinstance(plain[0], dict):
                named |= {str(key): constant(item, keyword.value, state.frame.path) for key, item in plain[0].items()}
            else:
                unknown = True
                positional.append(value)
        return _Call(node, name_of(node.func), tuple(positional), named, unknown, holder)

    def items(self, value: Value, node: ast.expr) -> list[Value] | None:
        """The parts of a list, None where only a run knows them."""
        if isinstance(value, Items):
            return list(value.values)
        plain = value.plain() if isinstance(value, Given) else None
        if plain is None or not isinstance(plain[0], list | dict | str):
            return None
        return [constant(item, node, value.path) for item in plain[0]] if isinstance(value, Given) else None

    def _function(self, node: ast.expr, state: State) -> Value | None:
        if isinstance(node, ast.Name):
            return self.named(node.id, state)
        if isinstance(node, ast.Attribute):  # of a module that is here, by its last name: llm.llama3_8b.pretrain_recipe
            return self.named(".".join(name_of(node).split(".")[-2:]), state)
        return None

    def _followed(self, function: Function, state: State) -> bool:
        """Whether a call of the function is one of its body."""
        node = function.node
        names = [name_of(item.func if isinstance(item, ast.Call) else item) for item in node.decorator_list]
        yields = any(isinstance(part, ast.Yield | ast.YieldFrom) for part in ast.walk(node))
        return not yields and state.frame.depth < _DEEPEST and all(
            name.rpartition(".")[2] in _DECORATORS for name in names)  # fmt: skip

    def _inside(self, function: Function, call: _Call, state: State) -> Value:
        """The value of a function of the files; the configs that it is given are changed."""
        around = self.around(function.path) if function.around is None else function.around
        if around.frame is state.frame:  # perhaps on another way now
            around = state
        inner = State(Frame(function.path, state.frame.depth + 1), dict(around.names), state.recipes, state.moved)
        for key, recipe in around.recipes.items():
            inner.recipes.setdefault(key, recipe)
        self._bind(function.node.args, call, inner, state)
        ends = inner.frame.returns
        if self.run(function.node.body, inner):
            inner.names[RESULT] = Given(ast.copy_location(ast.Constant(None), call.node), {}, state.frame.path)
            ends.append(inner)
        if not ends:  # it ends in an error, as this way does
            return self.given(call.node, state)
        out = join(ends, function.node.lineno, _WITH_ERROR)
        state.recipes, state.moved = out.recipes, out.moved
        value = out.real(out.names[RESULT])
        mixed = isinstance(value, Given) and isinstance(value.node, ast.Name) and value.plain() is None
        return self.given(call.node, state) if mixed or value is None else value

    def _bind(self, parameters: ast.arguments, call: _Call, inner: State, state: State) -> None:
        """Sets the parameters of a function; one that is given nothing has its default."""
        several = parameters.posonlyargs + parameters.args
        names = [parameter.arg for parameter in several + parameters.kwonlyargs]
        defaults: dict[str, ast.expr | None] = dict(zip([parameter.arg for parameter in several][::-1],
                                                        parameters.defaults[::-1], strict=False))  # fmt: skip
        defaults |= {parameter.arg: default for parameter, default in
                     zip(parameters.kwonlyargs, parameters.kw_defaults, strict=True)}  # fmt: skip
        passed = {} if call.open else dict(zip([parameter.arg for parameter in several], call.positional, strict=False))
        rest = call.positional if call.open else call.positional[len(several) :]
        passed |= {name: value for name, value in call.named.items() if name in names}
        others = {name: value for name, value in call.named.items() if name not in names}
        for name in names:
            default = defaults.get(name)
            if name in passed:
                inner.names[name] = passed[name]
            elif default is not None and not call.open:
                inner.names[name] = self.evaluate(default, inner)
            else:
                inner.names[name] = inner.new(Recipe({"": Given(_name(name, call.node), {}, inner.frame.path)}))
        self.escapes([*(rest if call.open else ()), *others.values()], call.node.lineno,
                     f"may be changed by a parameter of {call.name}", state)  # fmt: skip
        if parameters.vararg is not None:
            inner.names[parameters.vararg.arg] = Items(tuple(rest)) if rest else constant([], call.node, "")
        if parameters.kwarg is not None:
            plain = {name: value.plain() for name, value in others.items() if isinstance(value, Given)}
            known = not call.open and len(plain) == len(others) and None not in plain.values()
            inner.names[parameters.kwarg.arg] = constant(
                {name: value[0] for name, value in plain.items() if value is not None}, call.node, state.frame.path,
            ) if known else Given(_name(parameters.kwarg.arg, call.node), {}, state.frame.path)  # fmt: skip

    def _changed(self, recipe: Recipe, call: _Call, state: State) -> Ref:
        """A new config with the options that the keywords of a call give."""
        ref = state.new(recipe)
        for name, value in call.named.items():
            self.store(ref.at(name), value, call.node, state)
        if call.open or (call.name == self.container and call.positional):
            state.doubt(ref, call.node.lineno, f"options of {call.name}(...) are computed when it runs")
        return ref

    def _of_python(self, call: _Call, state: State) -> Value | None:
        """The value of a function of Python that reads, copies or sets, None for another."""
        first = call.positional[0] if call.positional else None
        if call.name in ("int", "float") and isinstance(first, Ref):  # the same number
            return first
        if call.last == "cast" and len(call.positional) == 2:
            return call.positional[1]
        if call.last in ("deepcopy", "replace", "copy") and isinstance(first, Ref):
            return self._copy(first, call, state)
        named = call.positional[0 if call.last == "__setattr__" and len(call.positional) == 2 else 1 :]
        holder = call.holder if len(named) == len(call.positional) else first
        if call.last not in ("setattr", "__setattr__", "delattr", "getattr") or not isinstance(holder, Ref):
            return None
        plain = named[0].plain() if named and isinstance(named[0], Given) else None
        ref = holder if plain is None else holder.at(str(plain[0]))
        if call.last == "getattr" and plain is not None:
            return self.leaf(ref, state)
        if plain is None or len(named) != 2:
            state.doubt(ref, call.node.lineno, f"{call.last} changes it when the module runs")
            return self.given(call.node, state)
        self.store(ref, named[1], call.node.args[-1], state)
        return constant(None, call.node, state.frame.path)

    def _copy(self, first: Ref, call: _Call, state: State) -> Ref:
        """A copy, of all or of a block, with the options of keywords. A shallow one shares the blocks."""
        line = call.node.lineno
        block = state.recipe(first).block(first.option)
        if first.option:
            block.origin = first
            block.given.setdefault("", self.given(call.node.args[0], state))
        if call.last != "deepcopy":
            state.doubt(first, line, _SHARED)
        return self._changed(block, call, state)

    def _elsewhere(self, call: _Call, state: State) -> Value:
        """The value of a function of another file: made there, of what it is given."""
        root = call.name.partition(".")[0]
        line = call.node.lineno
        made = self.given(call.node, state)
        if made.plain() is not None or call.last in _ASKING or root in _LOGGING:
            return made
        if call.name in _ANY:
            state.doubt_all(line, f"may be changed by {call.name}(...)")
        if isinstance(call.holder, Ref) and call.last not in _METHODS:
            state.doubt(call.holder, line, f"is changed by .{call.last}(...), which only a run can follow")
        elif isinstance(call.holder, Given):
            self.change(call.holder, call.last, [*call.positional, *call.named.values()], call.node, state)
        here = isinstance(self._function(call.node.func, state), Function)
        text = f"{call.name or 'a function'} changes it and is in another file: give that file too"
        text = HELD if call.name.startswith("<") else f"may be changed by {call.name}" if here else text
        self.escapes([*call.positional, *call.named.values()], line, text, state)
        return state.new(Recipe({"": made}))

    def change(self, holder: Given, method: str, given: Sequence[Value], at: ast.expr, state: State) -> None:
        """A method of a plain list or dict that may change it. Every way has its own."""
        plain = holder.plain()
        if plain is None or not isinstance(plain[0], list | dict) or method in (*_METHODS, *_OF_LISTS):
            return
        values = [value.plain() if isinstance(value, Given) else None for value in given]
        new = copy.deepcopy(plain[0])
        try:
            getattr(new, method)(*(value[0] for value in values if value is not None))
            known = None not in values
        except (LookupError, TypeError, ValueError, AttributeError):
            known = False
        state.swap(plain[0], constant(new, at, holder.path) if known else None, at.lineno)

    def escapes(self, values: Sequence[Value], line: int, text: str, state: State) -> None:
        for value in values:
            if isinstance(value, Items):
                self.escapes(value.values, line, text, state)
            elif isinstance(value, Function) and value.around is not None:
                state.doubt_all(line, text)
            elif isinstance(value, Given) and (plain := value.plain()) is not None and text != HELD:
                if isinstance(plain[0], list | dict):
                    state.swap(plain[0], None, line)
            elif isinstance(value, Ref) and value.option.rpartition(".")[2] not in self.scalars:
                state.doubt(value, line, text)

    def store(self, ref: Ref, value: Value, node: ast.expr, state: State) -> None:
        """Sets an option to a value; a block that was made beside the config becomes a part of it."""
        if value == ref:
            return
        state.detach(ref)
        recipe = state.recipe(ref)
        if not isinstance(value, Ref):
            given = value if isinstance(value, Given) else self.given(node, state)
            recipe.put(ref.option, given if given.plain() is None else given.moved(node, state.frame.path))
            return
        block = state.recipe(value).block(value.option)
        if not value.option and state.recipe(value).origin == ref:  # that block with some options changed
            recipe.doubts = [doubt for doubt in recipe.doubts if (doubt.option, doubt.text) != (ref.option, _SHARED)]
        else:
            recipe.drop(ref.option)
            recipe.put(ref.option, block.given.pop("") if "" in block.given else self.given(node, state))
        block.given.pop("", None)
        for name, given in block.given.items():
            recipe.put(f"{ref.option}.{name}", given)
        recipe.doubts += [Doubt(doubt.path, doubt.line, ref.at(doubt.option).option if doubt.option else ref.option,
                                doubt.text) for doubt in block.doubts]  # fmt: skip
        if not value.option and value.key != ref.key:
            state.moved[value.key] = ref
        elif value.option.rpartition(".")[2] not in self.scalars:
            state.doubt(ref, node.lineno, f"is one object with {value.option}")
            state.doubt(value, node.lineno, f"is one object with {ref.option}")


def _name(name: str, at: ast.expr) -> ast.expr:
    return ast.copy_location(ast.Name(name, ast.Load()), at)
