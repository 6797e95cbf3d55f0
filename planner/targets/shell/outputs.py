"""Outputs of command substitutions that need no run."""

from __future__ import annotations

import re
import shlex

from .expansion import Expander
from .values import MISSING, UNKNOWN, mark, marks

# Filters that only remove spaces.
_SQUEEZE = r"xargs|tr (-s )?'\\n' ' '|tr -s ' '|sed (-e )?'s/ +\*?/ /g'"


def output(text: str, expander: Expander) -> str:
    """The output of a plain command substitution (`expr`, `echo`, `echo ... | bc`), or a mark."""
    first, *rest = text.split("|")
    try:
        words = shlex.split(first, posix=False)
    except ValueError:
        return mark(UNKNOWN, f"$({text})")
    if words[:1] == ["expr"] and not rest:
        return expander.arithmetic(" ".join(word.strip("\\'\"") for word in words[1:]))
    if words[:1] == ["echo"] and not any(symbol in first for symbol in ";&<>`"):
        said = " ".join(expander.text(word) for word in words[1:] if word not in ("-n", "-e"))
        if not rest:
            return said
        if len(rest) == 1 and rest[0].split()[:1] == ["bc"]:
            return expander.arithmetic(said)
        if all(re.fullmatch(_SQUEEZE, part.strip()) for part in rest):
            return " ".join(said.split())
    missing = marks(expander.document(text), MISSING) if not rest else []
    return mark(UNKNOWN, missing[0] if missing else f"$({text})")
