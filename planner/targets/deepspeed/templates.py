"""Reads DeepSpeed's JSON as a template with words for a launch script to replace: `"stage": ZERO_STAGE`.

Source: deepspeedai/Megatron-DeepSpeed 4efb479d, examples_deepspeed: scripts that fill templates with sed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from ..argv import Arguments

_WORD = re.compile(r'(?m)^(\s*"[^"]*"\s*:\s*)([A-Z][A-Z0-9_]{2,})(?=\s*,?\s*[}\]]*\s*$)')


def filled(text: str, given: Sequence[str]) -> tuple[str, dict[int, str]]:
    """The text with the words in `given` (NAME=VALUE) replaced, and line -> word of the others."""
    values = dict(word.partition("=")[::2] for word in given)
    open_words: dict[int, str] = {}

    def value(found: re.Match[str]) -> str:
        if found[2] in values:
            return found[1] + values[found[2]]
        open_words[text.count("\n", 0, found.start(2)) + 1] = found[2]
        return f'{found[1]}"auto"'

    return _WORD.sub(value, text), open_words


def doubt(arguments: Arguments, open_words: Mapping[int, str], path: str) -> None:
    """Stores a doubt for each option whose word has no value."""
    for name, line in list(arguments.lines.items()):
        if line in open_words:
            word = open_words[line]
            arguments.doubt(name, f"`{word}` is filled in by a script", line, path, f"give it: --arg {word}=VALUE")
