"""Outputs of command substitutions that need no run."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping

from .conditions import holds, is_condition, is_test
from .expansion import Expander
from .queries import queried
from .syntax import Chain, Function, If, Node, Simple, parse
from .values import MISSING, UNKNOWN, mark, marks

# Filters that only remove spaces.
_SQUEEZE = r"xargs|tr (-s )?'\\n' ' '|tr -s ' '|sed (-e )?'s/ +\*?/ /g'"

# Filters that count the parts between separators.
_COUNTED = re.compile(r"tr ['\"]?(\S)['\"]? ['\"]?\\+n['\"]? *\| *wc -[lw]|awk -F ?['\"]?(\S)['\"]? '\{ ?print NF ?\}'")


def output(text: str, expander: Expander, functions: Mapping[str, Function],
           text_of: Callable[[str], str | None] = lambda name: None) -> str:  # fmt: skip
    """The output of a plain command substitution (`expr`, `echo`, `echo ... | bc`, tests before `echo`, a function that
    only prints, yq and jq), or a mark.

    text_of: name of a file -> its text, None for one that is not here.
    """
    if "&&" in text or (text.split()[:1] and text.split()[0] in functions):
        nodes = parse(text)
        if len(nodes) == 1 and (result := _result(nodes[0], expander, functions)) is not None:
            return result[0]
    first, *rest = text.split("|")
    try:
        words = shlex.split(first, posix=False)
    except ValueError:
        return mark(UNKNOWN, f"$({text})")
    if not rest and (value := queried([expander.text(word) for word in words], text_of)) is not None:
        return value
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


def _result(node: Node, expander: Expander, functions: Mapping[str, Function]) -> tuple[str, bool] | None:
    """The output of tests, `echo` and functions of these, joined by && and ||, and their success; None where a run
    decides."""
    if isinstance(node, Chain):
        first = _result(node.first, expander, functions)
        if first is None or first[1] != (node.operator == "&&"):
            return first
        second = _result(node.second, expander, functions)
        return None if second is None else (first[0] + second[0], second[1])
    if isinstance(node, If):
        return _branch(node, expander, functions)
    if not isinstance(node, Simple) or node.assignments or node.written is not None:
        return None
    words = [field for word in node.words for field in expander.fields(word.raw)]
    if is_test(node):
        status = holds(words[1 : len(words) - (words[0] != "test")])
        return None if status is None else ("", status)
    if words and words[0] in functions:
        return _printed(functions[words[0]], words[1:], expander, functions)
    return (" ".join(words[1:]), True) if words[:1] == ["echo"] and node.target is None else None


def _branch(node: If, expander: Expander, functions: Mapping[str, Function]) -> tuple[str, bool] | None:
    """The output of the branch whose condition holds."""
    for condition, body in node.branches:
        status = _result(condition[0], expander, functions) if is_condition(condition) else None
        if status is None:
            return None
        if status[1]:
            return _lines(body, expander, functions)
    return _lines(node.otherwise, expander, functions)


def _lines(body: list[Node], expander: Expander, functions: Mapping[str, Function]) -> tuple[str, bool] | None:
    results = [_result(node, expander, functions) for node in body]
    known = [result for result in results if result is not None]
    return ("\n".join(text for text, _ in known if text), True) if len(known) == len(results) else None


def _printed(function: Function, arguments: list[str], expander: Expander,
             functions: Mapping[str, Function]) -> tuple[str, bool] | None:  # fmt: skip
    """The output of a function that prints with these positional parameters. It does not call itself."""
    variables = expander.variables.copy()
    variables.arguments, variables.numbered = arguments, {}
    others = {name: other for name, other in functions.items() if name != function.name}
    inner = Expander(variables, lambda text: output(text, inner, others))
    return _lines(function.body, inner, others)
