"""Options of JSON, YAML and TOML configs as blocks, both ways."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ...profiles.io.document import Document
from ...profiles.io.reader import read_document
from .argv import Arguments
from .option_lists import OptionList


def read_blocks(document: Document, options: OptionList, prefix: str = "") -> Arguments:
    """The settings of nested blocks by dotted option. A block without listed options is one value.

    "auto" is left out, because the framework fills it in. Unknown keys are listed; wrong types become problems.
    """
    arguments = Arguments(notes=[document.repeated] if document.repeated else [])
    if not isinstance(document.data, Mapping):
        arguments.problems.append(document.problem((), "is not a config: a config is a block of options"))
        return arguments
    for path, value in _flat(document.data, options, prefix):
        name, line = prefix + ".".join(path), document.line(path)
        arguments.lines[name] = line
        option = options.options.get(name)
        is_block = any(known.startswith(f"{name}.") for known in options.options)
        arguments.files[name] = file = document.file(path)
        if is_block and isinstance(value, list | str | int | float) and value not in (True, False, "", "auto"):
            arguments.doubt(name, f"`{value}` is no block of options", line, file)
        elif option is None:
            arguments.unknown[name] = line
            if value in (None, False):
                arguments.off.add(name)
        elif value is not None and value != "auto":
            arguments.record(option, _coerced(value, option.kind), line, file)
    return arguments


_FLAGS = {"yes": True, "true": True, "on": True, "no": False, "false": False, "off": False}


def _coerced(value: Any, kind: str) -> Any:
    """Converts a value to the type of its option as the frameworks do: `'no'`, `5e8`, `"16"`."""
    if kind in ("bool", "flag") and isinstance(value, str):
        return _FLAGS.get(value.lower(), value)
    if kind == "int" and isinstance(value, float) and value.is_integer():
        return int(value)
    if kind in ("int", "float") and isinstance(value, str):
        try:
            number = float(value)
        except ValueError:
            return value
        return int(number) if kind == "int" and number.is_integer() else number
    return value


def _flat(
    data: Mapping[str, Any], options: OptionList, prefix: str, above: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], Any]]:
    for key, value in data.items():
        path = (*above, str(key))
        inside = f"{prefix}{'.'.join(path)}."
        if isinstance(value, Mapping) and any(name.startswith(inside) for name in options.options):
            yield from _flat(value, options, prefix, path)
        else:
            yield path, value


def nested(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Dotted options as blocks."""
    out: dict[str, Any] = {}
    for key, value in settings.items():
        *blocks, name = key.split(".")
        holder = out
        for block in blocks:
            holder = holder.setdefault(block, {})
        holder[name] = value
    return out


def read_config(path: str, text: str, options: OptionList, prefix: str = "", *, last_counts: bool = False) -> Arguments:
    """The settings of a JSON, YAML or TOML file, by its suffix; options of the list start with `prefix`.
    last_counts: of a key that YAML gives twice."""
    return read_blocks(read_document(path, text, last_counts=last_counts), options, prefix)
