"""Completion of command lines by bash, zsh and fish, on top of Typer's.

Typer knows commands of one word. A command of two (`profile links`) is therefore completed as one word, with the words
of the shell rewritten to match. Typer also takes `[auto]` in a help text for markup and drops it, so that brackets
become parentheses.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, MutableMapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typer.core import TyperGroup

_ROUND = str.maketrans("[]", "()")


def joined(name: str) -> str:
    """`profile links` -> `profile-links`: the name under which it is completed."""
    return name.replace(" ", "-")


def join_words(environ: MutableMapping[str, str], names: Iterable[str]) -> None:
    """Joins the words of a command of two words in the variables of the shells, if the cursor is behind them."""
    for variable in ("COMP_WORDS", "_TYPER_COMPLETE_ARGS"):  # of bash; of zsh and fish
        for name in names:
            first, second = name.split()
            pattern = rf"^(\s*\S+\s+){first}\s+{second}(?=\s)"
            changed, number = re.subn(pattern, rf"\g<1>{joined(name)}", environ.get(variable, ""))
            if number:
                environ[variable] = changed
                if variable == "COMP_WORDS":
                    environ["COMP_CWORD"] = str(int(environ["COMP_CWORD"]) - 1)


def with_plain_help(group: TyperGroup) -> TyperGroup:
    """The commands with help texts that shells show as they are."""
    for command in group.commands.values():
        for parameter in command.params:
            if text := getattr(parameter, "help", None):
                parameter.help = text.translate(_ROUND)  # type: ignore[attr-defined]  # arguments of Typer have it too
    return group
