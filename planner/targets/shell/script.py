"""Follows a shell script without running it, to find the commands that it would start and their words.

A condition that only a run can decide (a file, a missing positional parameter) takes both branches. A variable with
equal values keeps its value; any other gets a mark with its dependencies. `exit` is not followed, because a script that
ends early launches nothing.
"""

from __future__ import annotations

import fnmatch
import posixpath
import re
from collections.abc import Mapping, Sequence

from .builtins import changes_variables
from .conditions import both, depends_on, either, ends, is_condition, is_test, reads, tested
from .documents import passed_scripts
from .expansion import Expander
from .filled import filled
from .followed import Command, Followed
from .getopts import next_option
from .jobs import slurm_variables, started_by
from .nearby import SHELLS, SILENT, passed_text, started_script, text_of
from .outputs import output
from .scanner import Word
from .syntax import DECLARES, Assignment, Case, Chain, Function, Group, If, Loop, Negated, Node, Simple, parse
from .values import UNKNOWN, UNSET, Value, Variables, appended, is_mark, keyed, mark, marks, shown, without
from .ways import agreed

# Limit of followed commands and loop rounds, against endless scripts.
_MOST_COMMANDS, _MOST_ROUNDS, _MOST_DEPTH = 20_000, 200, 40


def follow(
    text: str, environment: Mapping[str, str] | None = None, arguments: Sequence[str] | None = None,
    numbered: Mapping[int, str] | None = None, beside: Mapping[str, str] | None = None,
) -> Followed:  # fmt: skip
    """The commands of a script with these variables and positional parameters.

    beside: path -> text of files that it may source or start.
    """
    variables = Variables(dict(environment or {}), None if arguments is None else list(arguments), dict(numbered or {}))
    runner = _Runner(Followed(variables=variables), dict(beside or {}), frozenset(environment or {}))
    runner.block(parse(text))
    return runner.out


class _Runner:
    def __init__(self, out: Followed, beside: dict[str, str], given: frozenset[str]) -> None:
        self.out = out
        self._beside = beside
        self._given = given  # variables whose values win over those that only a run knows
        self._passed: frozenset[str] = frozenset()  # variables in front of the command that is followed
        self._functions: dict[str, Function] = {}
        self._exports_all = False
        self._around: tuple[str, ...] = ()  # words in front of the text that is passed to a shell
        self._steps = self._depth = 0
        # The line in the main file while text from a variable, a function or a sourced file is followed.
        self._outer_line = 0

    @property
    def _expander(self) -> Expander:
        return Expander(self.out.variables, lambda text: output(text, self._expander, self._functions, self._text_of))

    def block(self, nodes: list[Node]) -> bool | None:
        """Follows commands and returns the status of the last one."""
        status: bool | None = True
        for node in nodes:
            self._steps += 1
            if self._steps > _MOST_COMMANDS:
                return None
            status = self.node(node)
        return status

    def node(self, node: Node) -> bool | None:
        match node:
            case Simple():
                return self._simple(node)
            case If():
                self._if(list(node.branches), node.otherwise)
            case Loop():
                self._loop(node)
            case Case():
                self._case(node)
            case Function():
                self._functions[node.name] = node
            case Chain():
                return self._chain(node)
            case Negated():
                status = self.node(node.command)
                return None if status is None else not status
            case Group():
                if node.piped:
                    self._fill(node.body)
                    self._document(node.body)
                return self.block(node.body)
        return True

    def _chain(self, node: Chain) -> bool | None:
        first = self.node(node.first)
        if not is_test(node.first):  # a command that is started succeeds
            return self.node(node.second) if node.operator == "&&" else first
        if first is None:
            self._either_way([[node.second], []], depends_on(node.first, self._expander))
            return None
        if first == (node.operator == "&&"):
            second = self.node(node.second)
            return both(first, second) if node.operator == "&&" else either(first, second)
        return first

    def _if(self, branches: list[tuple[list[Node], list[Node]]], otherwise: list[Node]) -> None:
        possible: list[list[Node]] = []
        depends: list[str] = []
        for condition, body in branches:
            status = self.block(condition) if is_condition(condition) else None
            if status is False:
                continue
            possible.append(body)
            if status:
                break
            depends += [text for node in condition for text in depends_on(node, self._expander)]
        else:
            possible.append(otherwise)
        if len(possible) == 1 and not depends:
            self.block(possible[0])
        else:
            self._either_way(possible, depends)

    def _either_way(self, bodies: list[list[Node]], depends: list[str]) -> None:
        """Follows each body from the same variables, then keeps the values on which all agree."""
        bodies = [body for body in bodies if not ends(body)] or [[]]
        before, results = self.out.variables, []
        for body in bodies:
            self.out.variables = before.copy()
            self.block(body)
            results.append(self.out.variables)
        self.out.variables = agreed(results, depends[0] if depends else "a condition", self.out.choices)

    def _loop(self, node: Loop) -> None:
        if node.words is not None:
            for item in [field for word in node.words for field in self._expander.fields(word.raw)][:_MOST_ROUNDS]:
                self.out.variables.values[node.name] = item
                self.block(node.body)
            return
        if node.condition is not None and reads(node.condition):  # once: only a run knows the lines of a file
            self._either_way([[*node.condition, *node.body], []], ["read"])
            return
        if node.condition is None or not is_condition(node.condition):
            return
        for _ in range(_MOST_ROUNDS):
            status = self.block(node.condition)
            if status is None or status == node.until:
                return
            self.block(node.body)

    def _case(self, node: Case) -> None:
        subject = without(self._expander.text(node.word.raw), UNSET)
        if reasons_ := marks(subject):
            self._either_way([body for _, body in node.branches], reasons_)
            return
        for patterns, body in node.branches:
            if any(fnmatch.fnmatchcase(subject, self._expander.text(pattern.raw)) for pattern in patterns):
                self.block(body)
                return

    def _simple(self, node: Simple) -> bool | None:
        for assignment in node.assignments:
            self._assign(assignment)
        if node.written is not None:
            file, text, expanded = node.written
            self.out.files[self._expander.text(file.raw)] = self._expander.document(text) if expanded else text
        fields = [(field, word.line) for word in node.words for field in self._expander.fields(word.raw)]
        if not fields:
            return True
        self._passed = frozenset(assignment.name for assignment in node.assignments)
        if fields[0][0] == "export" or (fields[0][0] in DECLARES and "-x" in [field for field, _ in fields]):
            self.out.variables.exported |= self._passed | {field for field, _ in fields[1:]}
        words, line = [field for field, _ in fields], self._outer_line or node.line
        name = posixpath.basename(words[0])
        self._fill([node])
        self._document([node])
        if (outcome := tested(words, self._expander)) is not None:
            return outcome[0]
        return self._started(name, words, [self._outer_line or own for _, own in fields], line)

    def _started(self, name: str, words: list[str], lines: list[int], line: int) -> bool | None:
        if name in (*DECLARES, *SILENT) or changes_variables(words, self.out.variables, self.out.files):
            return True
        if name == "set":
            self._exports_all = "-a" in words or "allexport" in words or (self._exports_all and "+a" not in words)
            if "--" in words:
                self.out.variables.arguments = words[words.index("--") + 1 :]
        elif name in (".", "source"):
            self._source(words[1:], line)
        elif name == "eval":
            self._text(" ".join(words[1:]), line)
        elif name in self._functions:
            self._call(self._functions[name], words[1:], line)
        elif name != "getopts" and not self._inner(words, line) and not self._script(words, line):
            self.out.commands.append(Command(tuple(words), line, tuple(lines), self._around))
        return next_option(words[1:], self.out.variables) if name == "getopts" else True

    def _inner(self, words: list[str], line: int) -> bool:
        """Follows text that a command passes to a shell: `bash -c "..."`, `srun sh -c "..."`, `ssh host "..."`."""
        if (found := passed_text(words)) is None:
            return False
        (place, text), outer = found, self._around
        self._around = (*self._around, *words[:place])
        if posixpath.basename(words[place]) in SHELLS:
            passed = self.out.variables.passed({*self._given, *self._passed}, list(words[place + 4 :]))
            self._process(text, line, passed)
        else:
            self._text(text, line)
        self._around = outer
        return True

    def _document(self, parts: list[Node]) -> None:
        """Follows a here-document that commands pass to a shell, a scheduler or Kubernetes."""
        for script, line in passed_scripts(parts, self._expander):
            self.out.variables.values |= slurm_variables(script)
            self._text(script, self._outer_line or line)

    def _fill(self, parts: list[Node]) -> None:
        """Stores the text that commands make from a template and write to a file."""
        self.out.files |= dict([made] if (made := filled(parts, self._expander, self._text_of)) else [])

    def _text_of(self, name: str) -> str | None:
        """The text of a file that the script wrote, or that is beside it."""
        return text_of(name, self.out.files) or text_of(name, self._beside)

    def _text(self, text: str, line: int) -> None:
        """Follows text as a script. All its lines count as the line of the command that contains it."""
        if self._depth >= _MOST_DEPTH:
            return
        self._depth += 1
        outer, self._outer_line = self._outer_line, line
        self.block(parse(text))
        self._outer_line = outer
        self._depth -= 1

    def _source(self, words: list[str], line: int) -> None:
        if words and (text := self._text_of(words[0])) is not None:
            self._text(text, line)
        elif words:
            self.out.not_there.setdefault(posixpath.basename(shown(words[0])), line)

    def _script(self, words: list[str], line: int) -> bool:
        """Follows another script that a command starts."""
        if (place := started_script(words)) is None:
            return False
        name = shown(words[place])
        if (text := self._text_of(name)) is None or self._depth >= _MOST_DEPTH:
            self.out.started.setdefault(posixpath.basename(name), line)
            return False
        before, scheduler = self.out.variables, slurm_variables(text) | started_by(words[:place])
        variables = before.passed({*self._given, *self._passed, *scheduler}, list(words[place + 1 :]))
        variables.values |= scheduler
        self._process(text, line, variables)
        return True

    def _process(self, text: str, line: int, variables: Variables) -> None:
        """Follows text in a process of its own, whose variables end with it."""
        before, self.out.variables = self.out.variables, variables
        self._text(text, line)
        self.out.inner = self.out.variables.values | self.out.inner
        self.out.variables = before

    def _call(self, function: Function, arguments: list[str], line: int) -> None:
        if self._depth >= _MOST_DEPTH:
            return
        variables, self._depth = self.out.variables, self._depth + 1
        given, numbered = variables.arguments, variables.numbered
        variables.arguments, variables.numbered = arguments, {}
        self.block(function.body)
        self.out.variables.arguments, self.out.variables.numbered = given, numbered
        self._depth -= 1

    def _assign(self, assignment: Assignment) -> None:
        name, _, index = assignment.name.partition("[")
        values, expander = self.out.variables.values, self._expander
        new: Value
        if isinstance(assignment.value, Word):
            new = expander.text(assignment.value.raw)
        else:
            new = [field for word in assignment.value for field in expander.fields(word.raw)]
        if index:
            values[f"{name}[{expander.text(index)}"] = new
            new = mark(UNKNOWN, f"${{{assignment.name}}}")
        elif isinstance(new, list):
            values |= keyed(name, new)
        if isinstance(new, str) and marks(new, UNKNOWN):
            if name in self._given and not assignment.appends:
                return
            if is_mark(new) and re.match(r"\$[?(]", marks(new)[0]):  # of which nobody can give the value
                new = mark(UNKNOWN, f"${name}")
        if assignment.appends and name in values:
            new = appended(values[name], new)
        values[name] = new
        self.out.variables.exported |= {name} if self._exports_all else set()
        self.out.lines[name] = self._outer_line or assignment.line
