"""Shell scripts as a tree of commands: the part of bash that launch scripts use. Nothing is run or expanded here.

Source: the grammar of POSIX (XCU 2.10) with bash's arrays, `[[ ]]`, `(( ))`, functions and here-documents. Of the
parsers on PyPI, bashlex is under the GPL, and tree-sitter-bash gives a tree whose words would still be expanded here.
Invalid text is skipped up to the end of its line, so that the rest of a script is still read.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field

from .scanner import Scanner, Word

_ASSIGNED = re.compile(r"[A-Za-z_]\w*(?:\[[^\]]*\])?\+?=")
_RESERVED = {"then", "do", "done", "fi", "else", "elif", "esac", "}", ")", ";;"}


class NotShellError(ValueError):
    """Raised for text that is not valid shell."""


@dataclass(frozen=True)
class Assignment:
    """`name=value`, `name+=value`, `name=(words)`."""

    name: str
    # A word, or the elements of an array.
    value: Word | tuple[Word, ...]
    appends: bool
    line: int


@dataclass(frozen=True)
class Simple:
    """One command with its assignments, and the here-document that it writes to a file."""

    words: tuple[Word, ...]
    assignments: tuple[Assignment, ...]
    line: int
    # (file, text, whether the text is expanded).
    written: tuple[Word, str, bool] | None = None
    # The file that its output goes to.
    target: Word | None = None


@dataclass(frozen=True)
class If:
    """(condition, body) of each branch in turn, and the last body without one."""

    branches: tuple[tuple[list[Node], list[Node]], ...]
    otherwise: list[Node]


@dataclass(frozen=True)
class Loop:
    """`for` over words, or `while` and `until` a condition; a loop that counts (`for ((`) has neither."""

    name: str
    words: tuple[Word, ...] | None
    condition: list[Node] | None
    body: list[Node]
    until: bool = False


@dataclass(frozen=True)
class Case:
    word: Word
    # (patterns, body) of each branch.
    branches: tuple[tuple[tuple[Word, ...], list[Node]], ...]


@dataclass(frozen=True)
class Function:
    name: str
    body: list[Node]


@dataclass(frozen=True)
class Chain:
    """`first && second` or `first || second`."""

    first: Node
    operator: str
    second: Node


@dataclass(frozen=True)
class Negated:
    command: Node


@dataclass(frozen=True)
class Group:
    """`{ }`, `( )`, or the commands of a pipe."""

    body: list[Node] = field(default_factory=list)
    piped: bool = False


Node = Simple | If | Loop | Case | Function | Chain | Negated | Group


def parse(text: str, first_line: int = 1) -> list[Node]:
    """The commands of a script."""
    return _Parser(Scanner(text, first_line)).script()


class _Parser:
    def __init__(self, scan: Scanner) -> None:
        self.scan = scan

    def script(self) -> list[Node]:
        out: list[Node] = []
        while True:
            self.scan.skip_blank()
            if self.scan.at_end():
                return out
            before = self.scan.position
            try:
                if self.scan.peek_word() in _RESERVED:  # a closing word without an opening word
                    raise NotShellError("nothing to close")
                out.append(self.chain())
            except NotShellError:
                self.scan.position = before
                self.scan.skip_line()

    def block(self, ends: tuple[str, ...]) -> list[Node]:
        """Reads commands up to one of `ends`, which is not read."""
        out: list[Node] = []
        while True:
            self.scan.skip_blank()
            if self.scan.at_end() or self.scan.peek_word() in (ends or _RESERVED):
                return out
            out.append(self.chain())

    def chain(self) -> Node:
        node = self.pipe()
        while (operator := self.scan.take("&&", "||")) is not None:
            self.scan.skip_blank()
            node = Chain(node, operator, self.pipe())
        self.scan.take_separator()
        return node

    def pipe(self) -> Node:
        if self.scan.peek_word() == "!":
            self.scan.word()
            return Negated(self.pipe())
        parts = [self.command()]
        while self.scan.take("|&", "|", unless=("||",)) is not None:
            self.scan.skip_blank()
            parts.append(self.command())
        return parts[0] if len(parts) == 1 else Group(parts, piped=True)

    def command(self) -> Node:
        word = self.scan.peek_word()
        known: dict[str, Callable[[], Node]] = {
            "if": self.if_, "for": self.for_, "select": self.for_, "while": self.while_, "until": self.while_,
            "case": self.case, "function": self.function, "{": self.group,
        }  # fmt: skip
        if word in known:
            node = known[word]()
            self.scan.skip_redirections()
            return node
        if self.scan.starts("(("):
            return self.arithmetic()
        if self.scan.take("(") is not None:
            body = self.block((")",))
            self.expect(")")
            return Group(body)
        if word and self.scan.is_function(word):
            return self.function()
        return self.simple()

    def expect(self, *words: str) -> str:
        self.scan.skip_blank()
        if self.scan.peek_word() not in words:
            raise NotShellError(f"{words[0]} is missing")
        return self.scan.take(")") or self.scan.word().raw

    def if_(self) -> If:
        branches = []
        self.scan.word()
        while True:
            condition = self.block(("then",))
            self.expect("then")
            branches.append((condition, self.block(("elif", "else", "fi"))))
            word = self.expect("elif", "else", "fi")
            if word != "elif":
                break
        otherwise: list[Node] = []
        if word == "else":
            otherwise = self.block(("fi",))
            self.expect("fi")
        return If(tuple(branches), otherwise)

    def for_(self) -> Loop:
        self.scan.word()
        self.scan.skip_spaces()
        if self.scan.starts("(("):
            self.scan.enclosed("((", "))")
            self.scan.take_separator()
            return Loop("", None, None, self.do())
        name, words = self.scan.word().raw, None
        self.scan.skip_blank()
        if self.scan.peek_word() == "in":
            self.scan.word()
            words = tuple(self.scan.words())
        self.scan.take_separator()
        return Loop(name, words, None, self.do())

    def while_(self) -> Loop:
        until = self.scan.word().raw == "until"
        condition = self.block(("do",))
        return Loop("", None, condition, self.do(), until)

    def do(self) -> list[Node]:
        self.expect("do")
        body = self.block(("done",))
        self.expect("done")
        return body

    def case(self) -> Case:
        self.scan.word()
        subject = self.scan.word()
        self.expect("in")
        branches = []
        while True:
            self.scan.skip_blank()
            if self.scan.at_end() or self.scan.peek_word() == "esac":
                break
            self.scan.take("(")
            patterns = [self.scan.word()]
            while self.scan.take("|") is not None:
                patterns.append(self.scan.word())
            if self.scan.take(")") is None:
                raise NotShellError("a pattern ends in )")
            body = self.block((";;", "esac"))
            self.scan.take(";;&", ";;", ";&")
            branches.append((tuple(patterns), body))
        self.expect("esac")
        return Case(subject, tuple(branches))

    def function(self) -> Function:
        if self.scan.peek_word() == "function":
            self.scan.word()
        name = self.scan.word().raw
        if self.scan.take("(") is not None:
            self.scan.take(")")
        self.scan.skip_blank()
        body = self.command()
        return Function(name, body.body if isinstance(body, Group) else [body])

    def group(self) -> Group:
        self.scan.word()
        body = self.block(("}",))
        self.expect("}")
        return Group(body)

    def arithmetic(self) -> Simple:
        """`(( expression ))`, as the command `((` with one word."""
        line = self.scan.line
        text = self.scan.enclosed("((", "))")
        return Simple((Word("((", line), Word(text, line)), (), line)

    def simple(self) -> Node:
        line, words, assignments = self.scan.line, list[Word](), list[Assignment]()
        redirections = self.scan.redirections
        redirections.clear()
        if self.scan.peek_word() == "[[":
            words = [Word(raw, line) for raw in self.scan.conditional()]
        while (word := self.scan.next_argument()) is not None:
            matched = _ASSIGNED.match(word.raw)
            if matched and (not words or words[0].raw in DECLARES):
                assignments.append(self._assignment(word, matched[0]))
            else:
                words.append(word)
        if not words and not assignments and not redirections:
            raise NotShellError("no command")
        return Simple(tuple(words), tuple(assignments), line, self.scan.written(), self.scan.target())

    def _assignment(self, word: Word, head: str) -> Assignment:
        name, appends = head.rstrip("=").rstrip("+"), head.endswith("+=")
        if word.raw == head and self.scan.starts("("):
            return Assignment(name, tuple(self.scan.array()), appends, word.line)
        return Assignment(name, Word(word.raw[len(head) :], word.line), appends, word.line)


# Commands whose arguments are assignments.
DECLARES = ("export", "declare", "local", "readonly", "typeset")
