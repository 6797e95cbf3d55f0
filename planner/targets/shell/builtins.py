"""Commands of a shell that change its variables."""

from __future__ import annotations

from collections.abc import MutableMapping, Sequence

from .values import UNKNOWN, Variables, mark


def changes_variables(words: Sequence[str], variables: Variables, files: MutableMapping[str, str]) -> bool:
    """Whether a command is `shift`, `unset` or `read`, which is then applied. files[""]: a here-document before it."""
    name, *rest = words
    if name == "shift":
        variables.shift(int(rest[0]) if rest and rest[0].isdigit() else 1)
    elif name == "unset":
        for variable in rest:
            variables.values.pop(variable, None)
    elif name == "read":
        whole = files.pop("", None) if "-d" in rest else None  # read -d '' NAME <<EOF
        for variable in rest:
            variables.values[variable] = whole or mark(UNKNOWN, f"${variable}")
    else:
        return False
    return True
