"""Recipes in Python, followed without running them: a function that makes a config, changes it and returns it.

Statements are taken in turn with the values of names. Where ways part and only a run knows which is taken, each is
followed, and an option that differs at their meeting is a doubt. So is all that a call of another file may change.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from pathlib import PurePath

from ..python_values import name_of
from .assignments import Assignments
from .nemo_run import PROGRAM
from .patterns import matches
from .state import RESULT, Frame, Recipe, State, join
from .values import Doubt, Function, Given, Ref, Value, constant

_MOST_ITEMS = 1000
_MOST_STEPS = 50_000
_NOT_FOLLOWED = "is set where only a run can follow"


class Follower(Assignments):
    """Follows functions of modules (path -> tree).

    scalars: names of options that hold no block. understood: functions that return their first argument; another reader
    reads their changes to it. nested: whether classes in the config are blocks that hold blocks.
    """

    def __init__(self, modules: Mapping[str, ast.Module], container: str, scalars: frozenset[str] = frozenset(),
                 understood: Sequence[str] = (), *, nested: bool = False) -> None:  # fmt: skip
        self.modules, self.container, self.scalars, self.understood = modules, container, scalars, understood
        self.nested, self.steps = nested, 0
        self._states: dict[str, State] = {}
        # Functions by name, of the first file that has it: a recipe may leave out its imports.
        self._known = {name: Function(path, node) for path in reversed(list(modules))
                       for name, node in self._functions(path).items()}  # fmt: skip

    def makers(self, path: str) -> list[str]:
        """The functions of a file that make a config, in turn, without those that a program changes the config of."""
        made = [name for name, node in self._functions(path).items()
                if self._makes(node) and name not in self.understood]  # fmt: skip
        programs = [node for node in self._functions(path).values() if node.type_comment == PROGRAM]
        called = {name_of(part.func) for node in programs for part in ast.walk(node) if isinstance(part, ast.Call)}
        return [name for name in made if name not in called] or made

    def has(self, path: str, name: str) -> bool:
        """Whether a file has a function that returns something."""
        node = self._functions(path).get(name)
        return node is not None and any(isinstance(part, ast.Return) for part in ast.walk(node))

    def follow(self, path: str, name: str) -> Recipe:
        """The config that a function of a file returns."""
        node = self._functions(path)[name]
        state = State(Frame(path))
        call = ast.copy_location(ast.Call(ast.copy_location(ast.Name(name, ast.Load()), node), [], []), node)
        value = state.real(self._inside(Function(path, node), self._evaluated(call, state), state))
        if isinstance(value, Ref):
            return state.recipe(value).block(value.option)
        doubt = Doubt(path, node.lineno, "", f"the config that {name} returns is not clear")
        return Recipe({}, [doubt])

    def _functions(self, path: str) -> dict[str, ast.FunctionDef]:
        return {node.name: node for node in self.modules[path].body if isinstance(node, ast.FunctionDef)}

    def _makes(self, node: ast.FunctionDef) -> bool:
        annotated = node.returns is not None and ast.unparse(node.returns).strip("\"'") == self.container
        calls = any(isinstance(inner, ast.Call) and name_of(inner.func) == self.container for inner in ast.walk(node))
        returned = [inner.value for inner in ast.walk(node) if isinstance(inner, ast.Return) and inner.value]
        targets = (target for inner in ast.walk(node) if isinstance(inner, ast.Assign) for target in inner.targets)
        changed = {name_of(target).partition(".")[0] for target in targets if isinstance(target, ast.Attribute)}
        return bool(returned) and (annotated or calls or any(name_of(value) in changed for value in returned))

    def around(self, path: str) -> State:
        """The names at the top of a module."""
        if path not in self._states:
            self._states[path] = state = State(Frame(path))
            state.names["__name__"] = Given(ast.Constant(PurePath(path).stem), {}, path)  # it is imported
            self.run(self.modules[path].body, state)
        return self._states[path]

    def named(self, name: str, state: State) -> Value | None:
        known = self._known.get(name) or self._of_file(*name.rpartition(".")[::2])
        return state.real(state.names.get(name, known))

    def _of_file(self, module: str, name: str) -> Function | None:
        """The function of a module by the name of its file, None where it is not here."""
        path = next((path for path in self.modules if PurePath(path).stem == module), "")
        node = self._functions(path).get(name) if path else None
        return None if node is None else Function(path, node)

    def run(self, body: Sequence[ast.stmt], state: State) -> bool:
        for statement in body:
            self.steps += 1
            if self.steps > _MOST_STEPS:
                state.doubt_all(statement.lineno, "takes too many steps to follow")
                return True
            if not self._step(statement, state):
                return False
        return True

    def _step(self, statement: ast.stmt, state: State) -> bool:
        """Follows a statement; whether the next one is reached."""
        match statement:
            case ast.Return() | ast.Raise() | ast.Break() | ast.Continue():
                self._leave(statement, state)
                return False
            case ast.If():
                return self._branch(statement, state)
            case ast.For() | ast.AsyncFor() | ast.While():
                return self._loop(statement, state)
            case ast.With() | ast.AsyncWith():
                return self._with(statement, state)
            case ast.Try() | ast.TryStar():
                return self._try(statement, state)
            case ast.Match():
                return self._match(statement, state)
            case _:
                self._simple(statement, state)
                return True

    def _simple(self, statement: ast.stmt, state: State) -> None:
        """A statement after which the next one is reached."""
        match statement:
            case ast.Assign(targets=targets, value=value):
                result = self.evaluate(value, state)
                for target in targets:
                    self.assign(target, result, value, state)
            case ast.AnnAssign(target=target, value=ast.expr() as value):
                self.assign(target, self.evaluate(value, state), value, state)
            case ast.AugAssign(target=target, op=op, value=value):
                before = ast.Name(target.id, ast.Load()) if isinstance(target, ast.Name) else target
                whole = ast.BinOp(ast.copy_location(before, target), op, value)
                self.assign(target, self.evaluate(ast.copy_location(whole, statement), state), statement.value, state)
            case ast.Expr(value=value) | ast.Assert(test=value):
                self.evaluate(value, state)
            case ast.Delete(targets=targets):
                for target in targets:
                    self.delete(target, state)
            case ast.FunctionDef():
                inside = None if state is self._states.get(state.frame.path) else state
                state.names[statement.name] = Function(state.frame.path, statement, inside)
            case ast.Import() | ast.ImportFrom():
                self.imported(statement, state)
            case ast.ClassDef() | ast.AsyncFunctionDef():
                names = dict(state.names)
                self.run(statement.body if isinstance(statement, ast.ClassDef) else [], state)
                state.names = {name: value for name, value in names.items() if name != statement.name}
            case ast.Global() | ast.Nonlocal():
                state.doubt_all(statement.lineno, "is changed through a name of another function")

    def _leave(self, statement: ast.stmt, state: State) -> None:
        """The end of a function or of a turn of a loop."""
        frame = state.frame
        if isinstance(statement, ast.Return):
            value = statement.value or ast.copy_location(ast.Constant(None), statement)
            state.names[RESULT] = self.evaluate(value, state)
            frame.returns.append(state.fork())
        elif isinstance(statement, ast.Break | ast.Continue):
            (frame.breaks if isinstance(statement, ast.Break) else frame.continues).append(state.fork())

    def _branch(self, statement: ast.If, state: State) -> bool:
        plain = self.test(statement.test, state)
        if plain is not None:
            return self.run(statement.body if plain[0] else statement.orelse, state)
        text = f"is set where `{ast.unparse(statement.test)}` holds, which only a run can tell"
        switch = self._switched_off(statement, state)
        ends = []
        if switch is not None:  # which is off where the body is not reached
            ends = [state.fork()]
            self.store(switch, constant(False, statement.test, state.frame.path), statement.test, ends[0])
        bodies = [statement.body] if ends else [statement.body, statement.orelse]
        return self._ways(bodies, statement.lineno, text, state, ends)

    def _switched_off(self, statement: ast.If, state: State) -> Ref | None:
        """The option of `if hasattr(block, "option") and block.option: block.option = ...`."""
        match statement:
            case ast.If(
                test=ast.BoolOp(op=ast.And(), values=[
                    ast.Call(func=ast.Name("hasattr"), args=[block, ast.Constant(str(name))]),
                    ast.Attribute() as option]),
                body=[ast.Assign(targets=[target])], orelse=[],
            ) if f"{ast.unparse(block)}.{name}" == ast.unparse(option) == ast.unparse(target):  # fmt: skip
                return self.place(option, state)
        return None

    def _ways(self, bodies: Sequence[Sequence[ast.stmt]], line: int, text: str, state: State,
              ends: Sequence[State] = ()) -> bool:  # fmt: skip
        """Follows each of several ways, of which one is taken. ends: states of others."""
        ends = list(ends)
        for body in bodies:
            way = state.fork()
            if self.run(body, way):
                ends.append(way)
        if ends:
            state.adopt(join(ends, line, text))
        return bool(ends)

    def _loop(self, statement: ast.For | ast.AsyncFor | ast.While, state: State) -> bool:
        frame = state.frame
        outside = frame.breaks, frame.continues
        frame.breaks, frame.continues = [], []
        items = None
        if isinstance(statement, ast.For):
            items = self.items(self.evaluate(statement.iter, state), statement.iter)
        if items is not None and len(items) <= _MOST_ITEMS and isinstance(statement, ast.For):
            reached = self._turns(statement, items, state)
        else:
            reached = self._any_turns(statement, state)
        reached = reached and self.run(statement.orelse, state)
        ends = frame.breaks + ([state.fork()] if reached else [])
        frame.breaks, frame.continues = outside
        if ends:
            state.adopt(join(ends, statement.lineno, _NOT_FOLLOWED))
        return bool(ends)

    def _turns(self, statement: ast.For, items: Sequence[Value], state: State) -> bool:
        """A loop over items that are known; whether it reaches its end."""
        for item in items:
            self.assign(statement.target, item, statement.iter, state)
            ends = [state.fork()] if self.run(statement.body, state) else []
            ends += state.frame.continues
            state.frame.continues = []
            if not ends:
                return False
            state.adopt(join(ends, statement.lineno, _NOT_FOLLOWED))
        return True

    def _any_turns(self, statement: ast.For | ast.AsyncFor | ast.While, state: State) -> bool:
        """A loop of which only a run knows the turns: none, or some."""
        if isinstance(statement, ast.While):
            self.evaluate(statement.test, state)
        before = state.fork()
        stored = [part.id for part in ast.walk(statement) if isinstance(part, ast.Name) and isinstance(
            part.ctx, ast.Store)]  # fmt: skip
        at = statement.test if isinstance(statement, ast.While) else statement.iter
        for name in stored:
            state.names[name] = Given(ast.copy_location(ast.Name(name, ast.Load()), at), {}, state.frame.path)
        ends = [before, *([state.fork()] if self.run(statement.body, state) else []), *state.frame.continues]
        state.frame.continues = []
        state.adopt(join(ends, statement.lineno, _NOT_FOLLOWED))
        return True

    def _with(self, statement: ast.With | ast.AsyncWith, state: State) -> bool:
        before = None
        for item in statement.items:
            value = self.evaluate(item.context_expr, state)
            if isinstance(item.context_expr, ast.Call) and name_of(item.context_expr.func).endswith("suppress"):
                before = state.fork()
            if item.optional_vars is not None:
                self.assign(item.optional_vars, value, item.context_expr, state)
        if before is None:
            return self.run(statement.body, state)
        return self._ways([statement.body], statement.lineno, _NOT_FOLLOWED, state, [before])

    def _try(self, statement: ast.Try | ast.TryStar, state: State) -> bool:
        """Its body ends, or one of its handlers does, after a part of the body."""
        if not statement.handlers:
            return self.run([*statement.body, *statement.finalbody], state)
        whole = state.fork()
        ends = [whole.fork()] if self.run(statement.body, whole) and self.run(statement.orelse, whole) else []
        state.adopt(join([state.fork(), whole], statement.lineno, _NOT_FOLLOWED))
        for handler in statement.handlers:
            if handler.name is not None:
                state.names.pop(handler.name, None)
        bodies = [handler.body for handler in statement.handlers]
        reached = self._ways(bodies, statement.lineno, _NOT_FOLLOWED, state, ends)
        return reached and self.run(statement.finalbody, state)

    def _match(self, statement: ast.Match, state: State) -> bool:
        subject = self.evaluate(statement.subject, state)
        plain = subject.plain() if isinstance(subject, Given) else None
        bodies = []
        for case in statement.cases:
            verdict = matches(case.pattern, plain)
            for name in (part.name for part in ast.walk(case.pattern) if isinstance(part, ast.MatchAs) and part.name):
                state.names[name] = subject
            if verdict is not False:
                bodies.append(case.body)
            if verdict and case.guard is None:
                break
        else:
            bodies.append([])
        if len(bodies) == 1:
            return self.run(bodies[0], state)
        text = f"is set where `{ast.unparse(statement.subject)}` matches, which only a run can tell"
        return self._ways(bodies, statement.lineno, text, state)
