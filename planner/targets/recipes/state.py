"""The state of recipes that are followed: names, the configs in the making, and the meeting of several states."""

from __future__ import annotations

import ast
import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from .values import Doubt, Function, Given, Items, Ref, Value, equal

# Where a state holds the value of an expression or of a function while states meet.
RESULT = "<value>"
_KEYS = itertools.count()


@dataclass
class Recipe:
    """A config in the making."""

    # Dotted option -> the last expression that it is given; "" is the config itself, as far as it was made elsewhere.
    given: dict[str, Given] = field(default_factory=dict)
    doubts: list[Doubt] = field(default_factory=list)
    # The block of which it is a copy.
    origin: Ref | None = None

    def put(self, option: str, given: Given) -> None:
        """Sets an option; the former content of a block of that name is dropped."""
        self.drop(option)
        self.given[option] = given

    def drop(self, option: str) -> None:
        """Forgets an option and its block, with the doubts about them."""
        self.given = {name: value for name, value in self.given.items() if not _within(name, option)}
        self.doubts = [doubt for doubt in self.doubts if not _within(doubt.option, option)]

    def block(self, option: str) -> Recipe:
        """A copy of a block; of the config itself: of all."""
        cut = len(option) + 1 if option else 0
        given = {name[cut:]: value for name, value in self.given.items() if _within(name, option)}
        doubts = [replace(doubt, option=doubt.option[cut:]) for doubt in self.doubts if _within(doubt.option, option)]
        return Recipe(given, doubts)

    def known(self, option: str) -> Given | None:
        """The expression of an option, perhaps one in the call that made its block."""
        if option in self.given:
            return self.given[option]
        block, _, name = option.rpartition(".")
        maker = self.given.get(block)
        if maker is None or not isinstance(maker.node, ast.Call):
            return None
        node = next((keyword.value for keyword in maker.node.keywords if keyword.arg == name), None)
        return None if node is None else Given(node, maker.names, maker.path)


def _within(name: str, block: str) -> bool:
    return not block or name == block or name.startswith(f"{block}.")


@dataclass
class Frame:
    """A function that runs: its file, how deep it is called, and the states at its ends."""

    path: str
    depth: int = 0
    returns: list[State] = field(default_factory=list)
    breaks: list[State] = field(default_factory=list)
    continues: list[State] = field(default_factory=list)


@dataclass
class State:
    """The meaning of names at one point, and every config."""

    frame: Frame
    names: dict[str, Value] = field(default_factory=dict)
    recipes: dict[int, Recipe] = field(default_factory=dict)
    # Config that became a block of another -> that block.
    moved: dict[int, Ref] = field(default_factory=dict)

    def fork(self) -> State:
        """A copy that goes another way."""
        recipes = {key: replace(recipe, given=dict(recipe.given), doubts=list(recipe.doubts))
                   for key, recipe in self.recipes.items()}  # fmt: skip
        return State(self.frame, dict(self.names), recipes, dict(self.moved))

    def adopt(self, other: State) -> None:
        """Goes on where another state is."""
        self.names, self.recipes, self.moved = other.names, other.recipes, other.moved

    def new(self, recipe: Recipe) -> Ref:
        """A reference to a config that is made here."""
        ref = Ref(next(_KEYS))
        self.recipes[ref.key] = recipe
        return ref

    def real(self, value: Value | None) -> Value | None:
        """A value; a block under the config that it belongs to now."""
        while isinstance(value, Ref) and (home := self.moved.get(value.key)) is not None:
            value = home.at(value.option) if value.option else home
        return value

    def recipe(self, ref: Ref) -> Recipe:
        """The config of a reference."""
        return self.recipes[ref.key]

    def doubt(self, ref: Ref, line: int, text: str) -> None:
        """Notes that a block may be changed."""
        self.recipe(ref).doubts.append(Doubt(self.frame.path, line, ref.option, text))

    def doubt_all(self, line: int, text: str) -> None:
        """Notes that any config may be changed."""
        for key in self.recipes:
            self.doubt(Ref(key), line, text)

    def detach(self, ref: Ref) -> None:
        """Names of a block that is about to be replaced keep the former one."""
        held = {name: value for name, given in self.names.items() if isinstance(value := self.real(given), Ref)
                and value.key == ref.key and _within(value.option, ref.option)}  # fmt: skip
        if held:
            former = self.new(self.recipe(ref).block(ref.option))
            for name, value in held.items():
                rest = value.option[len(ref.option) + 1 :]
                self.names[name] = former.at(rest) if rest else former

    def swap(self, thing: object, new: Given | None, line: int) -> None:
        """A list or dict has a new content wherever it is held; None: one that only a run knows."""
        for name, value in self.names.items():
            if isinstance(value, Given) and value.holds(thing):
                self.names[name] = new or Given(_named(name, line), {}, value.path)
        for recipe in self.recipes.values():
            for option, given in recipe.given.items():
                if given.holds(thing):
                    recipe.given[option] = new or Given(_named(option or "config", line), {}, given.path)


def _named(name: str, line: int) -> ast.expr:
    return ast.Name(name, ast.Load(), lineno=line, col_offset=0)


def join(states: Sequence[State], line: int, text: str) -> State:
    """The state after one of several ways; options that differ are doubts, with `text` as the reason.

    line: of the statement where they part.
    """
    first, *others = states
    if not others:
        return first
    out = State(first.frame, {}, {}, first.moved | {key: ref for state in others for key, ref in state.moved.items()})
    for key in dict.fromkeys(key for state in states for key in state.recipes):
        out.recipes[key] = _merged([state.recipes[key] for state in states if key in state.recipes],
                                   first.frame.path, line, text)  # fmt: skip
    for key, ref in out.moved.items():
        if any(state.moved.get(key) != ref for state in states):
            out.doubt(Ref(ref.key, ref.option), line, text)
    for name in dict.fromkeys(name for state in states for name in state.names):
        out.names[name] = _one_of(name, [state.real(state.names.get(name)) for state in states], states, out,
                                  (line, text))  # fmt: skip
    return out


def _merged(recipes: Sequence[Recipe], path: str, line: int, text: str) -> Recipe:
    out = Recipe(doubts=list(dict.fromkeys(doubt for recipe in recipes for doubt in recipe.doubts)))
    for option in dict.fromkeys(option for recipe in recipes for option in recipe.given):
        values = [recipe.given.get(option) for recipe in recipes]
        first = values[0]
        if first is not None and all(value is not None and equal(first, value) for value in values):
            out.given[option] = first
        else:
            out.doubts.append(Doubt(*_place(values, path, line), option, text))
    return out


def _place(values: Iterable[Given | None], path: str, line: int) -> tuple[str, int]:
    """(file, line) where one of the values is set after the ways part, else where they do."""
    lines = [value.node.lineno for value in values if value is not None and value.path == path]
    return path, max((number for number in lines if number >= line), default=line)


def _one_of(name: str, values: Sequence[Value | None], states: Sequence[State], out: State,
            why: tuple[int, str]) -> Value:  # fmt: skip
    """The value of a name: the same on every way, one config out of several, or unknown."""
    first = values[0]
    if first is not None and all(_same(first, value) for value in values):
        return first
    line, text = why
    refs = [(value, state) for value, state in zip(values, states, strict=True) if isinstance(value, Ref)]
    if len(refs) == len(values):
        return out.new(_merged([state.recipe(ref).block(ref.option) for ref, state in refs], out.frame.path, *why))
    for ref, _ in refs:
        out.doubt(ref, line, text)
    return Given(_named(name, line), {}, out.frame.path)


def _same(first: Value, second: Value | None) -> bool:
    if isinstance(first, Given) and isinstance(second, Given):
        return equal(first, second)
    if isinstance(first, Items) and isinstance(second, Items):
        pairs = zip(first.values, second.values, strict=False)
        return len(first.values) == len(second.values) and all(_same(one, other) for one, other in pairs)
    if isinstance(first, Function) or isinstance(second, Function):
        return first is second
    return first == second
