"""Texts that a script makes from a template: `sed "s/WORD/$VALUE/" template | sed ... > file`, or `sed -i` in place.

Source: GNU sed 4.9, its manual, "Command-Line Options" and "The s Command".
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from .expansion import Expander
from .scanner import Word
from .syntax import Node, Simple

TextOf = Callable[[str], str | None]

_SUBSTITUTION = re.compile(r"s([/|#,:@])(.*?)(?<!\\)\1(.*?)(?<!\\)\1(g?)", re.DOTALL)
# What stands for more than itself in a pattern, in one of -E too, and in a replacement.
_PATTERN = re.compile(r"(?<!\\)[\[\]*.]|^\^|(?<!\\)\$$|\\[\w(){}+?|]")
_EXTENDED = re.compile(r"[(){}+?|]")
_REPLACEMENT = re.compile(r"(?<!\\)&|\\\w")


def filled(parts: Sequence[Node], expander: Expander, text_of: TextOf) -> tuple[str, str] | None:
    """(file, text) that the commands of a pipe, or one command, make from a template; None for other commands.

    text_of: name of a file -> its text, None for one that is not here.
    """
    text: str | None = None
    words: list[str] = []
    target: Word | None = None
    for part in parts:
        if not isinstance(part, Simple) or not part.words or part.words[0].raw not in ("cat", "sed"):
            return None
        words, target = [field for word in part.words for field in expander.fields(word.raw)], part.target
        if (text := _edited(words, text, text_of)) is None:
            return None
    if text is not None and target is not None:
        return expander.text(target.raw), text
    _, files = _sed_words(words)
    in_place = files and any(word.startswith(("-i", "--in-place")) for word in words)
    return (files[0], text or "") if in_place else None


def _edited(words: Sequence[str], text: str | None, text_of: TextOf) -> str | None:
    """The output of `sed` or `cat` for a text from a pipe, or else of its file; None where its script says more."""
    if words[:1] == ["cat"]:
        return _source(words[1:], text, text_of)
    scripts, files = _sed_words(words)
    out = _source(files, text, text_of)
    for script in (part for text in scripts for part in re.split(r";\s*(?=s\W)", text)):
        found = _SUBSTITUTION.fullmatch(script.strip())
        extended = {"-E", "-r"} & set(words) and found is not None and _EXTENDED.search(found[2])
        if out is None or found is None or extended or _PATTERN.search(found[2]) or _REPLACEMENT.search(found[3]):
            return None
        old, new = (re.sub(r"\\(\W)", r"\1", part) for part in (found[2], found[3]))
        out = out.replace(old, new) if found[4] else "\n".join(line.replace(old, new, 1) for line in out.split("\n"))
    return out


def _sed_words(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """(scripts, files) of a command of sed."""
    scripts: list[str] = []
    files: list[str] = []
    rest = list(words[1:])
    while rest:
        word = rest.pop(0)
        if word in ("-e", "--expression") and rest:
            scripts.append(rest.pop(0))
        elif not word.startswith("-"):
            files.append(word)
    return (scripts, files) if scripts else (files[:1], files[1:])


def _source(files: Sequence[str], text: str | None, text_of: TextOf) -> str | None:
    return text if not files else text_of(files[0]) if len(files) == 1 else None
