"""The text of a shell script, word by word: quotes, comments, continuations, redirections and here-documents."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

_BREAKS = " \t\n;&|()<>"
# A placeholder in scripts for the user to replace. The shell would read it as a redirection.
_PLACEHOLDER = re.compile(r"<[A-Za-z][^<>\n|&;]*[\w)]>")
_REDIRECTION = re.compile(r"\d*(?:&>>|&>|<<<|<<-|<<|>>|>&|<&|>\||<>|>|<)")


@dataclass(frozen=True)
class Word:
    """A word of the text, with its quotes."""

    raw: str
    # From 1.
    line: int


@dataclass
class _Redirection:
    operator: str
    target: Word
    # The lines of a here-document, read at the end of its command's line.
    text: str = ""


class Scanner:
    """A position in a text, with methods that read from it."""

    def __init__(self, text: str, first_line: int = 1) -> None:
        self.text = text.replace("\r\n", "\n")
        self.position = 0
        self._first_line = first_line
        # Redirections of the current command.
        self.redirections: list[_Redirection] = []
        self._documents: list[_Redirection] = []

    @property
    def line(self) -> int:
        return self._first_line + self.text.count("\n", 0, self.position)

    def at_end(self) -> bool:
        return self.position >= len(self.text)

    def starts(self, word: str) -> bool:
        return self.text.startswith(word, self.position)

    def skip_spaces(self) -> None:
        """Skips spaces, continued lines and comments."""
        while not self.at_end():
            if self.text[self.position] in " \t":
                self.position += 1
            elif self.starts("\\\n"):
                self.position += 2
            elif self.text[self.position] == "#":
                self._to_line_end()
            else:
                return

    def skip_blank(self) -> None:
        """Skips the same, and ends of lines and empty commands."""
        while True:
            self.skip_spaces()
            if self.starts("\n"):
                self._newline()
            elif self.starts(";") and not self.starts(";;"):
                self.position += 1
            else:
                return

    def skip_line(self) -> None:
        self._to_line_end()
        if not self.at_end():
            self._newline()

    def _to_line_end(self) -> None:
        end = self.text.find("\n", self.position)
        self.position = len(self.text) if end < 0 else end

    def _newline(self) -> None:
        self.position += 1
        for document in self._documents:
            document.text, self.position = self._body(document, self.position)
        self._documents.clear()

    def _body(self, document: _Redirection, start: int) -> tuple[str, int]:
        """(text, position behind it) of a here-document whose lines begin at `start`."""
        end = document.target.raw.strip("'\"\\")
        pattern = rf"^{chr(9) + '*' if document.operator == '<<-' else ''}{re.escape(end)}[ \t]*$"
        found = re.compile(pattern, re.MULTILINE).search(self.text, start)
        if found is None:
            return self.text[start:], len(self.text)
        return self.text[start : found.start()], min(found.end() + 1, len(self.text))

    def take(self, *operators: str, unless: tuple[str, ...] = ()) -> str | None:
        """Reads the next operator if it is one of these."""
        self.skip_spaces()
        if any(self.starts(word) for word in unless):
            return None
        for operator in operators:
            if self.starts(operator):
                self.position += len(operator)
                return operator
        return None

    def take_separator(self) -> None:
        """Reads the end of a command if it is next."""
        self.skip_spaces()
        if self.starts("\n"):
            self._newline()
        elif self.text[self.position : self.position + 1] in (";", "&") and not self.starts(";;"):
            self.position += 1

    def peek_word(self) -> str:
        """The next word without reading it, "" for none. `)` and `;;` count as words."""
        self.skip_spaces()
        if self.starts(")") or self.starts(";;"):
            return self.text[self.position : self.position + (1 if self.starts(")") else 2)]
        before = self.position
        raw = self._raw()
        self.position = before
        return raw

    def word(self) -> Word:
        """Reads the next word; an empty word at the end of a command."""
        self.skip_spaces()
        line = self.line
        return Word(self._raw(), line)

    def words(self) -> Iterator[Word]:
        """Reads all words up to the end of the command."""
        while (word := self.word()).raw:
            yield word

    def next_argument(self) -> Word | None:
        """Reads the next word of a command. Redirections before it go to `redirections`."""
        while True:
            self.skip_spaces()
            found = _REDIRECTION.match(self.text, self.position)
            if found is None or _PLACEHOLDER.match(self.text, self.position):
                word = self.word()
                return word if word.raw else None
            self.position = found.end()
            redirection = _Redirection(found[0].lstrip("0123456789"), self.word())
            self.redirections.append(redirection)
            if redirection.operator in ("<<", "<<-"):
                self._documents.append(redirection)

    def skip_redirections(self) -> None:
        """Reads the redirections behind a compound command."""
        while self.next_argument() is not None:
            pass

    def written(self) -> tuple[Word, str, bool] | None:
        """(file, text, whether it is expanded) of the here-document that the last command writes to a file. The file is
        empty where it passes the text on. The text begins behind the line, which may hold more of a pipe."""
        document = next((item for item in self.redirections if item.operator in ("<<", "<<-")), None)
        if document is None:
            return None
        self.skip_spaces()
        if self.starts("\n"):
            self._newline()
            self.position -= 1  # the end of the line still separates commands
        else:
            document.text, _ = self._body(document, self.text.find("\n", self.position) + 1)
        return self.target() or Word("", 0), document.text, document.target.raw[:1] not in ("'", '"', "\\")

    def target(self) -> Word | None:
        """The file that the last command writes its output to."""
        return next((item.target for item in self.redirections if item.operator in (">", ">>", "&>")), None)

    def is_function(self, word: str) -> bool:
        """Whether the next word is the name in a function definition."""
        named = re.fullmatch(r"[\w.:-]+", word) is not None
        return named and re.match(re.escape(word) + r"[ \t]*\([ \t]*\)", self.text[self.position :]) is not None

    def enclosed(self, opening: str, closing: str) -> str:
        """Reads the text between two brackets, which may be nested."""
        start = self.position + len(opening)
        depth, position = 0, start
        while position < len(self.text):
            if depth == 0 and self.text.startswith(closing, position):
                self.position = position + len(closing)
                return self.text[start:position]
            depth += {"(": 1, ")": -1}.get(self.text[position], 0)
            position += 1
        self.position = len(self.text)
        return self.text[start:]

    def conditional(self) -> Iterator[str]:
        """Reads the words of `[[ ... ]]`, where operators are words."""
        while not self.at_end():
            self.skip_spaces()
            if self.starts("\n"):
                self.position += 1
                continue
            operator = re.compile(r"&&|\|\||[()<>]|=~").match(self.text, self.position)
            raw = operator[0] if operator else self._raw()
            self.position += len(raw) if operator else 0
            if not raw:
                return
            yield raw
            if raw == "]]":
                return

    def array(self) -> Iterator[Word]:
        """Reads the elements of `( ... )`, over several lines."""
        self.position += 1
        while not self.at_end():
            self.skip_blank()
            if self.starts(")"):
                self.position += 1
                return
            word = self.word()
            if word.raw:
                yield word
            else:  # an operator: no array
                self.position += 1

    def _raw(self) -> str:
        """Reads the text of a word, up to a break outside quotes and substitutions."""
        start = self.position
        while not self.at_end():
            character = self.text[self.position]
            if character == "<" and (mark := _PLACEHOLDER.match(self.text, self.position)):
                self.position = mark.end()
            elif character in _BREAKS:
                break
            else:
                self._part(character)
        return self.text[start : self.position]

    def _part(self, character: str) -> None:
        """Reads one character of a word, or a whole quotation or substitution."""
        if character == "\\":
            self.position += 2
        elif character == "'":
            self._to("'")
        elif character == '"':
            self._double_quoted()
        elif character == "`":
            self._to("`")
        elif self.starts("$(") or self.starts("${"):
            self._substitution()
        else:
            self.position += 1

    def _to(self, mark: str) -> None:
        end = self.text.find(mark, self.position + 1)
        self.position = len(self.text) if end < 0 else end + 1

    def _double_quoted(self) -> None:
        self.position += 1
        while not self.at_end() and self.text[self.position] != '"':
            if self.text[self.position] == "'":
                self.position += 1
            else:
                self._part(self.text[self.position])
        self.position += 1

    def _substitution(self) -> None:
        closing = {"(": ")", "{": "}"}[self.text[self.position + 1]]
        self.position += 2
        depth = 0
        while not self.at_end():
            character = self.text[self.position]
            if character == closing and depth == 0:
                self.position += 1
                return
            if character in "({" and not self.text.startswith(("$(", "${"), self.position - 1):
                depth += int(closing == ")" and character == "(")
            elif character == ")" and closing == ")":
                depth -= 1
            self._part(character)
