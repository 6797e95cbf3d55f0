"""Values that a script takes from a YAML or JSON file with yq or jq: `$(yq '.training.num_layers' model.yaml)`.

Sources: yq 4.45 and jq 1.7, their manuals: a path of keys, and -r (--raw-output) for texts without quotes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

from ....errors import InputError
from ....profiles.io.reader import read_document

_PATH = re.compile(r"(\.[A-Za-z_][\w-]*)+")


def queried(words: Sequence[str], text_of: Callable[[str], str | None]) -> str | None:
    """The output of a query of one value; None for another command, or where the file is not here.

    text_of: name of a file -> its text, None for one that is not here.
    """
    if words[:1] not in (["yq"], ["jq"]):
        return None
    named = [word for word in words[1:] if not word.startswith("-") and word not in ("e", "eval")]
    if len(named) != 2 or not _PATH.fullmatch(named[0]) or (text := text_of(named[1])) is None:
        return None
    try:
        value: Any = read_document(named[1], text).data
    except InputError:  # broken, or too deep
        return None
    for key in named[0].split(".")[1:]:
        value = value.get(key) if isinstance(value, dict) else None
    if isinstance(value, bool):
        return str(value).lower()
    return None if isinstance(value, dict | list) else "null" if value is None else str(value)
