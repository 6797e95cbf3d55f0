"""Options of a script that `getopts` reads from its positional parameters, one at each call.

Source: POSIX.1-2024, getopts.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from .values import Variables


def next_option(words: Sequence[str], variables: Variables) -> bool | None:
    """Reads the next option into the variables. words: those behind `getopts`. None: the parameters are not known."""
    if len(words) < 2 or variables.arguments is None:
        return None
    place, given = int(str(variables.values.get("OPTIND", "1"))), variables.arguments
    word = given[place - 1] if place <= len(given) else ""
    if re.match(r"-[A-Za-z0-9]", word) is None:
        return False
    letter, rest, known = word[1], word[2:], words[0].lstrip(":")
    variables.values[words[1]] = letter if letter in known else "?"
    if f"{letter}:" in known:
        follows = given[place] if place < len(given) else ""
        variables.values["OPTARG"] = rest or follows
        place += 0 if rest else 1
    elif rest:  # several letters in one word
        variables.arguments = [*given[: place - 1], f"-{rest}", *given[place:]]
        return True
    variables.values["OPTIND"] = str(place + 1)
    return True
