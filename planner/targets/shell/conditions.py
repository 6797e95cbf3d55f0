"""Conditions of a shell script: true, false, or None if only a run decides."""

from __future__ import annotations

import fnmatch
import posixpath
import re

from .arithmetic import calculated
from .expansion import Expander
from .syntax import Chain, Negated, Node, Simple
from .values import MISSING, UNKNOWN, UNSET, is_mark, marks, shown, without

_NUMBERS = {"-eq": "==", "-ne": "!=", "-lt": "<", "-le": "<=", "-gt": ">", "-ge": ">="}
_FILES = tuple(f"-{letter}" for letter in "abcdefghLkOprsSuwxN")


def holds(words: list[str]) -> bool | None:
    """The condition of `[ ... ]`, `[[ ... ]]` or `test`, without its brackets."""
    return _Test(words).alternatives() if words else False


def tested(words: list[str], expander: Expander) -> tuple[bool | None] | None:
    """The status of a test, `(( ))`, `true` or `false`, alone in a tuple; None for another command."""
    name = posixpath.basename(words[0])
    if name == "[" and words[-1] != "]":  # bash: missing `]`, status 2
        return (False,)
    if name in ("[", "[[", "test"):
        return (holds(words[1 : len(words) - (name != "test")]),)
    if name == "((":
        value = expander.arithmetic(words[1] if len(words) > 1 else "0")
        return (None if marks(value) else value != "0",)
    return (name != "false",) if name in ("true", ":", "false") else None


class _Test:
    def __init__(self, words: list[str]) -> None:
        self.words = words
        self.position = 0

    def _next(self) -> str:
        word = self.words[self.position] if self.position < len(self.words) else ""
        self.position += 1
        return word

    def _peek(self, ahead: int = 0) -> str:
        place = self.position + ahead
        return self.words[place] if place < len(self.words) else ""

    def alternatives(self) -> bool | None:
        result = self.all()
        while self._peek() in ("||", "-o"):
            self._next()
            result = either(result, self.all())
        return result

    def all(self) -> bool | None:
        result = self.one()
        while self._peek() in ("&&", "-a"):
            self._next()
            result = both(result, self.one())
        return result

    def one(self) -> bool | None:
        word = self._next()
        if word == "!":
            result = self.one()
            return None if result is None else not result
        if word == "(":
            result = self.alternatives()
            self._next()
            return result
        if word in ("-z", "-n", "-v") and self._peek() not in ("=", "==", "!="):
            return self._empty(word, self._next())
        if word in _FILES and self._peek() not in ("=", "==", "!="):
            self._next()
            return None
        if self._peek() in ("=", "==", "!=", "=~", "<", ">", *_NUMBERS):
            return _compared(word, self._next(), self._next())
        return None if marks(word, MISSING + UNKNOWN) else without(word, UNSET) != ""

    @staticmethod
    def _empty(operator: str, word: str) -> bool | None:
        if operator == "-v":
            return None
        rest = without(word, UNSET + MISSING)
        if is_mark(rest):
            return None
        return (rest == "") == (operator == "-z")


def _compared(left: str, operator: str, right: str) -> bool | None:
    left, right = without(left, UNSET), without(right, UNSET)
    if marks(left) or marks(right):
        return None
    if operator in _NUMBERS:
        value = calculated(f"({left or 0}) {_NUMBERS[operator]} ({right or 0})")
        return None if value is None else bool(value)
    if operator == "=~":
        try:
            return re.search(right, left) is not None
        except re.error:
            return None
    if operator in ("<", ">"):
        return left < right if operator == "<" else left > right
    return fnmatch.fnmatchcase(left, right) == (operator != "!=")


def both(first: bool | None, second: bool | None) -> bool | None:
    """Whether both hold."""
    if first is False or second is False:
        return False
    return None if first is None or second is None else True


def either(first: bool | None, second: bool | None) -> bool | None:
    """Whether one of the conditions holds."""
    if first or second:
        return True
    return None if first is None or second is None else False


def reasons(words: list[str]) -> list[str]:
    """The unknown names and calls in a condition, in the spelling of the script."""
    found = [text for word in words for text in marks(word, MISSING + UNKNOWN)]
    return found or [shown(" ".join(words))]


def is_test(node: Node) -> bool:
    """Whether a command is a condition that can be evaluated without a run."""
    if isinstance(node, Negated):
        return is_test(node.command)
    if isinstance(node, Chain):
        return is_test(node.first)
    return isinstance(node, Simple) and bool(node.words) and node.words[0].raw in (
        "[", "[[", "test", "((", "true", "false", ":", "getopts")  # fmt: skip


def is_condition(nodes: list[Node]) -> bool:
    """Whether commands are one condition."""
    return len(nodes) == 1 and is_test(nodes[0])


def reads(nodes: list[Node]) -> bool:
    """Whether commands are one that reads lines: `while read NAME`."""
    return len(nodes) == 1 and isinstance(nodes[0], Simple) and [word.raw for word in nodes[0].words[:1]] == ["read"]


def depends_on(node: Node, expander: Expander) -> list[str]:
    """The names and calls that a condition depends on."""
    match node:
        case Negated():
            return depends_on(node.command, expander)
        case Chain():
            return [*depends_on(node.first, expander), *depends_on(node.second, expander)]
        case Simple():
            return reasons([field for word in node.words for field in expander.fields(word.raw)])
    return []


def ends(body: list[Node]) -> bool:
    """Whether a body ends the script."""
    return any(isinstance(node, Simple) and node.words and node.words[0].raw == "exit" for node in body)
