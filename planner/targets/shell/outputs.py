"""Outputs of command substitutions that need no run."""

from __future__ import annotations

import re
import shlex

from .conditions import holds, is_test
from .expansion import Expander
from .syntax import Chain, Node, Simple, parse
from .values import MISSING, UNKNOWN, mark, marks

# Filters that only remove spaces.
_SQUEEZE = r"xargs|tr (-s )?'\\n' ' '|tr -s ' '|sed (-e )?'s/ +\*?/ /g'"

# Filters that count the parts between separators.
_COUNTED = re.compile(r"tr ['\"]?(\S)['\"]? ['\"]?\\+n['\"]? *\| *wc -[lw]|awk -F ?['\"]?(\S)['\"]? '\{ ?print NF ?\}'")


def output(text: str, expander: Expander) -> str:
    """The output of a plain command substitution (`expr`, `echo`, `echo ... | bc`, tests before `echo`), or a mark."""
    if "&&" in text and len(nodes := parse(text)) == 1 and (result := _result(nodes[0], expander)) is not None:
        return result[0]
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
        if (found := _COUNTED.fullmatch("|".join(rest).strip())) is not None and said and not marks(said):
            return str(said.count(found[1] or found[2]) + 1)
        if all(re.fullmatch(_SQUEEZE, part.strip()) for part in rest):
            return " ".join(said.split())
    missing = marks(expander.document(text), MISSING) if not rest else []
    return mark(UNKNOWN, missing[0] if missing else f"$({text})")


def _result(node: Node, expander: Expander) -> tuple[str, bool] | None:
    """The output of tests and `echo`, joined by && and ||, and their success; None where a run decides."""
    if isinstance(node, Chain):
        first = _result(node.first, expander)
        if first is None or first[1] != (node.operator == "&&"):
            return first
        second = _result(node.second, expander)
        return None if second is None else (first[0] + second[0], second[1])
    if not isinstance(node, Simple) or node.assignments or node.written is not None:
        return None
    words = [field for word in node.words for field in expander.fields(word.raw)]
    if is_test(node):
        status = holds(words[1 : len(words) - (words[0] != "test")])
        return None if status is None else ("", status)
    return (" ".join(words[1:]), True) if words[:1] == ["echo"] else None
