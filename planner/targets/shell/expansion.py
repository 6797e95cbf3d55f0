"""Expands words of a shell script: variables, arithmetic and quotes. Values known only at run time become marks."""

from __future__ import annotations

import re
from collections.abc import Callable

from .arithmetic import calculated
from .braces import braced
from .values import MARK, MISSING, UNKNOWN, UNSET, Value, Variables, is_mark, mark, marks, without

# (text of a command substitution) -> its output, or a mark.
Substitute = Callable[[str], str]
_BRACED = re.compile(r"(?s)(#?)([A-Za-z_]\w*|\d+|[@*#?$!-])(\[[^\]]*\])?(.*)$")


class Expander:
    """Expands words with the current variables."""

    def __init__(self, variables: Variables, substitute: Substitute) -> None:
        self.variables = variables
        self._substitute = substitute

    def fields(self, raw: str) -> list[str]:
        """The words that a word becomes: braces are expanded, unquoted values split at spaces, `"${array[@]}"` at its
        elements."""
        return [field for word in braced(raw) for field in self._fields(word)]

    def _fields(self, raw: str) -> list[str]:
        out: list[str] = []
        current: list[str] = []  # pieces of the current word
        for text, quoted in self._pieces(raw):
            if isinstance(text, list):
                joined = [item for value in text for item in ([value] if quoted else value.split())]
                if joined:
                    current.append(joined[0])
                    for item in joined[1:]:
                        out.append("".join(current))
                        current = [item]
            elif quoted:
                current.append(text)
            else:
                current = self._split(text, current, out)
        return [*out, "".join(current)] if current else out

    @staticmethod
    def _split(text: str, current: list[str], out: list[str]) -> list[str]:
        parts = re.split(r"\s+", text)
        for index, part in enumerate(parts):
            if index and current:
                out.append("".join(current))
                current = []
            if part:
                current.append(part)
        return current

    def text(self, raw: str) -> str:
        """The expansion of a word in an assignment, without word splitting."""
        return _joined(self._pieces(raw))

    def document(self, raw: str) -> str:
        """The text of a here-document."""
        return _joined(self._pieces(raw, quotes=False))

    def _pieces(self, raw: str, *, quotes: bool = True, quoted: bool = False) -> list[tuple[Value, bool]]:
        """(value, whether it is quoted) of the parts of a word."""
        out: list[tuple[Value, bool]] = []
        position = 0
        while position < len(raw):
            character = raw[position]
            if character == "\\" and position + 1 < len(raw):
                special = "" if quotes and not quoted else '$`"\\' if quoted else "$`\\"
                position = self._escaped(raw, position, out, special)
            elif quotes and not quoted and character == "'":
                end = _index(raw, "'", position + 1)
                out.append((raw[position + 1 : end], True))
                position = end + 1
            elif quotes and character == '"':
                end = _closing_quote(raw, position)
                inside = self._pieces(raw[position + 1 : end], quotes=False, quoted=True)
                only_elements = bool(inside) and all(isinstance(value, list) for value, _ in inside)
                out += inside if only_elements else [("", True), *inside]
                position = end + 1
            elif character in "$`" and (found := self._expansion(raw, position)) is not None:
                value, position = found
                out.append((value, quoted))
            else:
                end = position + 1
                while end < len(raw) and raw[end] not in "\\'\"$`":
                    end += 1
                out.append((raw[position:end], True))
                position = end
        return out

    @staticmethod
    def _escaped(raw: str, position: int, out: list[tuple[Value, bool]], special: str) -> int:
        """A character behind a backslash, which all but the special ones keep; "": none keeps it."""
        following = raw[position + 1]
        if following != "\n":
            keeps = bool(special) and following not in special
            out.append((("\\" if keeps else "") + following, True))
        return position + 2

    def _expansion(self, raw: str, position: int) -> tuple[Value, int] | None:
        """(value, position behind it) of an expansion that starts with `$` or a backtick; None: a plain character."""
        if raw[position] == "`":
            end = _index(raw, "`", position + 1)
            return self._substitute(raw[position + 1 : end]), end + 1
        if raw.startswith("$((", position):
            end = _matching(raw, position + 1)
            if raw[end - 2 : end] == "))":
                return self.arithmetic(raw[position + 3 : end - 2]), end
        if raw.startswith("$(", position):
            end = _matching(raw, position + 1)
            return self._substitute(raw[position + 2 : end - 1]), end
        if raw.startswith("${", position):
            end = _matching(raw, position + 1)
            return self.braced(raw[position + 2 : end - 1]), end
        found = re.compile(r"\$([A-Za-z_]\w*|[\d@*#?$!-])").match(raw, position)
        return None if found is None else (self._scalar(found[1]), found.end())

    def _scalar(self, name: str) -> Value:
        value = self.variables.get(name)
        return value if name in ("@", "*") or isinstance(value, str) else (value[0] if value else "")

    def braced(self, text: str) -> Value:
        """`${...}`: defaults, alternatives, lengths, cut and replaced parts, elements of arrays."""
        found = _BRACED.match(text)
        if found is None:
            return mark(UNKNOWN, f"${{{text}}}")
        length, name, index, rest = found.groups()
        value = self._element(name, index)
        if length:
            known = not any(marks(item) for item in ([value] if isinstance(value, str) else value))
            return str(len(value)) if known else mark(UNKNOWN, f"${{{text}}}")
        if not rest:
            return value
        if isinstance(value, list):
            value = " ".join(value)
        return self._modified(name, value, rest, text)

    def _element(self, name: str, index: str | None) -> Value:
        value = self.variables.get(name)
        if index is None:
            return self._scalar(name)
        if index in ("[@]", "[*]"):
            return value if isinstance(value, list) else [value] if value else []
        stored = self.variables.values.get(f"{name}[{self.text(index[1:-1])}]")
        if isinstance(stored, str):
            return stored
        elements = value if isinstance(value, list) else [value]
        place = self.arithmetic(index[1:-1])
        if marks(place):
            return mark(UNKNOWN, f"${{{name}{index}}}")
        number = int(place)
        return elements[number] if -len(elements) <= number < len(elements) else mark(UNSET, f"${{{name}{index}}}")

    def _modified(self, name: str, value: str, rest: str, text: str) -> str:
        default = re.match(r"(?s)(:?)([-=+?])(.*)$", rest)
        if default:
            absent = _is_absent(value, or_empty=bool(default[1]))
            if default[2] == "+":
                return "" if absent else self.text(default[3])
            if not absent or default[2] == "?":
                return value
            chosen = self.text(default[3])
            if default[2] == "=":
                self.variables.values[name] = chosen
            return chosen
        if marks(value):
            return mark(UNKNOWN, f"${{{text}}}")
        cut = re.match(r"(##?|%%?)(.*)$", rest)
        if cut:
            return _cut(value, cut[1], self.text(cut[2]))
        if rest in ("^^", ",,"):
            return value.upper() if rest == "^^" else value.lower()
        replaced = re.match(r"//?([^/]*)/?(.*)$", rest)
        if replaced:
            return value.replace(self.text(replaced[1]), self.text(replaced[2]), -1 if rest[:2] == "//" else 1)
        part = re.match(r":\s*(-?\d+)(?::\s*(-?\d+))?$", rest)
        if part:
            end = None if part[2] is None else int(part[2])
            return value[int(part[1]) :][:end]
        return mark(UNKNOWN, f"${{{text}}}")

    def _named(self, text: str) -> str:
        return re.sub(r"[A-Za-z_]\w*", lambda found: str(self._scalar(found[0])), text)

    def arithmetic(self, text: str) -> str:
        """The value of `$(( ))`, or a mark with the unknown names."""
        filled = self.document(text)
        for _ in range(20):  # a variable may hold the name of another
            names = re.findall(r"[A-Za-z_]\w*", without(filled, UNSET + MISSING + UNKNOWN))
            if not names:
                break
            pieces = re.split(f"({MARK.pattern.replace('(', '(?:')})", filled)
            filled = "".join(piece if is_mark(piece) else self._named(piece) for piece in pieces)
        if missing := marks(filled, MISSING + UNKNOWN):
            return mark(UNKNOWN, missing[0])
        if unset := marks(filled, UNSET):
            return mark(UNSET, unset[0])
        number = calculated(filled)
        return mark(UNKNOWN, f"$(({text.strip()}))") if number is None else str(number)


def _joined(pieces: list[tuple[Value, bool]]) -> str:
    return "".join(" ".join(text) if isinstance(text, list) else text for text, _ in pieces)


def _is_absent(value: str, *, or_empty: bool) -> bool:
    rest = without(value, UNSET + MISSING)
    return rest == "" and (or_empty or rest != value)


def _cut(value: str, operator: str, pattern: str) -> str:
    """`#`, `##`, `%`, `%%`: the value without the shortest or longest match at its start or end."""
    expression = "".join({"*": ".*?" if len(operator) == 1 else ".*", "?": "."}.get(part, re.escape(part))
                         for part in pattern)  # fmt: skip
    if operator[0] == "#":
        return re.sub(rf"(?s)\A{expression}", "", value, count=1)
    starts = range(len(value), -1, -1) if len(operator) == 1 else range(len(value) + 1)
    whole = re.compile(f"(?s){expression.replace('.*?', '.*')}")
    return next((value[:start] for start in starts if whole.fullmatch(value, start)), value)


def _index(text: str, mark: str, start: int) -> int:
    found = text.find(mark, start)
    return len(text) if found < 0 else found


def _matching(text: str, position: int) -> int:
    """The position behind the bracket that closes the one at `position`."""
    opening = text[position]
    closing = {"(": ")", "{": "}"}[opening]
    depth = 0
    while position < len(text):
        if text[position] == "\\":
            position += 1
        elif text[position] == opening:
            depth += 1
        elif text[position] == closing:
            depth -= 1
            if depth == 0:
                return position + 1
        position += 1
    return len(text) + 1


def _closing_quote(text: str, position: int) -> int:
    """The position of the quote that closes the one at `position`. Substitutions may contain quotes."""
    position += 1
    while position < len(text) and text[position] != '"':
        if text[position] == "\\":
            position += 2
        elif text.startswith(("$(", "${"), position):
            position = _matching(text, position + 1)
        else:
            position += 1
    return min(position, len(text))
