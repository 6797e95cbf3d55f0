"""Reads YAML, JSON and TOML files into plain Python that still knows its lines.

Every file of the user comes through here, so that each complaint about it names file, line and field. YAML is 1.1
as PyYAML reads it, with three repairs: `1e9` is a number, `1:30` is not ninety, and a date stays a string.
"""

from __future__ import annotations

import json
import re
import sys
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml

from ...errors import FieldProblem, InputError, did_you_mean, nearest

FieldPath = tuple[str | int, ...]

_BaseLoader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # the C one where libyaml is there: 10x faster


class _Loader(_BaseLoader):  # type: ignore[misc]  # the base is chosen at import
    """Safe loader with the number rules of YAML 1.2."""


def _repair_resolvers() -> None:
    replaced = {f"tag:yaml.org,2002:{name}" for name in ("int", "float", "timestamp")}
    _Loader.yaml_implicit_resolvers = {
        first: [(tag, pattern) for tag, pattern in resolvers if tag not in replaced]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }
    integer = r"[-+]?(?:0b[01_]+|0x[0-9a-fA-F_]+|0[0-7_]*|[1-9][0-9_]*)"
    real = r"[-+]?(?:(?:[0-9][0-9_]*)?\.[0-9_]+|[0-9][0-9_]*\.|[0-9][0-9_]*(?=[eE]))(?:[eE][-+]?[0-9]+)?"
    special = r"[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)"
    _Loader.add_implicit_resolver("tag:yaml.org,2002:int", re.compile(f"^(?:{integer})$"), list("-+0123456789"))
    _Loader.add_implicit_resolver(
        "tag:yaml.org,2002:float", re.compile(f"^(?:{real}|{special})$"), list("-+0123456789.")
    )


_repair_resolvers()


def dotted(path: FieldPath) -> str:
    """`("groups", 0, "node")` -> `groups[0].node`, the spelling of `--set`."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else str(part)
    return text


@dataclass(frozen=True)
class Document:
    """A file as plain Python (`data`) with the line of every field.

    prefix: what stands before the fields of this file in messages (`cluster` for a cluster file), so that a message
    names a field as `--set` does. base: where in the file this part lies, if it is not all of it (`part`).
    """

    name: str
    data: Any
    text: str = field(default="", repr=False)
    syntax: str = "yaml"
    prefix: FieldPath = ()
    base: FieldPath = ()
    _root: yaml.Node | None = field(default=None, repr=False, compare=False)

    @cached_property
    def _tree(self) -> yaml.Node | None:
        """The nodes with their positions; JSON is composed as YAML only when a line is asked for."""
        if self._root is not None or self.syntax != "json":
            return self._root
        try:
            _reject_depth(self.name, self.text)
            root: yaml.Node | None = _Loader(self.text).get_single_node()
        except (yaml.YAMLError, ValueError, RecursionError, InputError):
            return None  # JSON that YAML cannot read (surrogate escapes): no lines, but the file is good
        return root

    @cached_property
    def _toml_lines(self) -> dict[FieldPath, int]:
        return _toml_lines(self.text)

    def line(self, path: FieldPath = ()) -> int:
        """Line (from 1) of the field, or of the nearest field around it that is there; 0: not known."""
        path = (*self.base, *path)
        if self.syntax == "toml":
            return next((self._toml_lines[path[:n]] for n in range(len(path), 0, -1)
                         if path[:n] in self._toml_lines), 1)  # fmt: skip
        node = self._tree
        if node is None:
            return 0
        line = node.start_mark.line + 1
        for part in path:
            found = _child(node, part)
            if found is None:
                break
            key, node = found
            line = key.start_mark.line + 1
        return int(line)

    def problem(self, path: FieldPath, message: str, hint: str = "") -> FieldProblem:
        return FieldProblem(message, dotted((*self.prefix, *path)), self.name, self.line(path), hint)

    def part(self, path: FieldPath) -> Document:
        """The document below a field, as one of its own; messages keep the file, the lines and the full field path."""
        return replace(self, data=self.at(path), prefix=(*self.prefix, *path), base=(*self.base, *path))

    def at(self, path: FieldPath, default: Any = None) -> Any:
        """The value of a field, `default` where there is none."""
        value = self.data
        for part in path:
            try:
                value = value[part]
            except (LookupError, TypeError):
                return default
        return value


def read_document(path: Path | str, text: str | None = None) -> Document:
    """Read a file: YAML, or JSON or TOML by suffix; `-` is YAML from stdin. `text`: its content, if already at hand.

    Raises InputError for a file that cannot be read, is empty, has broken syntax or gives one key twice.
    """
    name = "stdin" if str(path) == "-" else str(path)
    if text is None:
        text = _decode(name, sys.stdin.buffer.read() if name == "stdin" else _read_bytes(Path(path)))
    suffix = Path(name).suffix.lower()
    if not text.strip():
        raise _error(name, 0, "the file is empty")
    if suffix == ".json":
        return _read_json(name, text)
    if suffix == ".toml":
        return _read_toml(name, text)
    return _read_yaml(name, text)


def read_text(path: Path) -> str:
    """The text of a file that is none of the above, a table of numbers. Raises InputError as `read_document`."""
    return _decode(str(path), _read_bytes(path))


def check_keys(document: Document, path: FieldPath, allowed: Iterable[str]) -> list[FieldProblem]:
    """A problem for each key at `path` that is not in `allowed`, with the nearest one that is."""
    value, known = document.at(path) if path else document.data, sorted(allowed)
    if not isinstance(value, Mapping):
        return [document.problem(path, f"must be a mapping with the keys {', '.join(known)}")]
    problems = []
    for key in value:
        if key in known:
            continue
        hint = did_you_mean(nearest(str(key).lower(), known), otherwise=f"known here: {', '.join(known)}")
        problems.append(document.problem((*path, key), f"unknown key `{key}`", hint))
    return problems


def _error(name: str, line: int, message: str, hint: str = "", path: FieldPath = ()) -> InputError:
    return InputError.of([FieldProblem(message, dotted(path), name, line, hint)])


def _read_bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise _error(str(path), 0, "no such file", "check the path; it is taken from the current folder") from None
    except IsADirectoryError:
        raise _error(str(path), 0, "is a folder, not a file", "name a file in it") from None
    except OSError as error:
        raise _error(str(path), 0, f"cannot be read ({error.strerror or error})") from None


def _decode(name: str, raw: bytes) -> str:
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        message = f"not UTF-8 text (byte 0x{raw[error.start]:02x})"
        raise _error(name, line, message, "save the file as UTF-8") from None


def _read_yaml(name: str, text: str) -> Document:
    loader: Any = None
    try:
        _reject_depth(name, text)
        loader = _Loader(text)
        root = loader.get_single_node()
        if root is None:
            raise _error(name, 0, "the file is empty")
        _reject_duplicates(name, root)
        return Document(name, loader.construct_document(root), text, "yaml", _root=root)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark else 0
        message, hint = _explain_yaml(error.problem or error.context or "cannot be read", text, line)
        raise _error(name, line, message, hint) from None
    except yaml.reader.ReaderError as error:
        line = text[: error.position].count("\n") + 1
        code = error.character if isinstance(error.character, int) else ord(str(error.character))
        raise _error(name, line, f"not valid YAML: control character 0x{code:02x}", "is this a text file?") from None
    except RecursionError:
        raise _error(name, 0, "nested too deeply to be read") from None
    except ValueError as error:
        raise _error(name, 0, f"not valid YAML: {error}") from None
    finally:
        if loader is not None:
            loader.dispose()


def _reject_depth(name: str, text: str) -> None:
    """Raises InputError for a nesting at which the C composer would overflow the stack and kill the process."""
    if text.count("[") + text.count("{") < 500 and not re.search(r"(?:[-?:] ){200}|^ {500}", text, re.MULTILINE):
        return
    depth = 0
    for event in yaml.parse(text, Loader=_Loader):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > 200:
            line = event.start_mark.line + 1 if event.start_mark else 0
            raise _error(name, line, "nested too deeply to be read")


def _explain_yaml(problem: str, text: str, line: int) -> tuple[str, str]:
    """(message, hint) for the scanner's complaint."""
    source = text.splitlines()[line - 1 : line]
    if "cannot start any token" in problem and source and "\t" in source[0]:
        return "not valid YAML: a tab in the indentation", "indent with spaces"
    if "another document" in problem:
        return "holds more than one YAML document", "keep one: remove the second `---`"
    if "mapping values are not allowed" in problem:
        return f"not valid YAML: {problem}", "check the indentation, or quote a value that holds `: `"
    return f"not valid YAML: {problem}", "check indentation, brackets and quotes on this line and the one above"


def _reject_duplicates(name: str, root: yaml.Node) -> None:
    """Raises InputError for a key given twice in one mapping, or a file that contains itself through an alias."""
    done: set[int] = set()

    def visit(node: yaml.Node, path: FieldPath, above: frozenset[int]) -> None:
        if id(node) in above:
            raise _error(name, node.start_mark.line + 1, "contains itself through an alias", path=path)
        if isinstance(node, yaml.ScalarNode) or id(node) in done:
            return
        above |= {id(node)}
        if isinstance(node, yaml.MappingNode):
            first: dict[str, int] = {}
            for key, value in node.value:
                line = key.start_mark.line + 1
                if isinstance(key, yaml.ScalarNode) and key.value in first and key.value != "<<":
                    message = f"key `{key.value}` is given twice, first in line {first[key.value]}"
                    raise _error(name, line, message, "keep one of them", (*path, key.value))
                if isinstance(key, yaml.ScalarNode):
                    first[key.value] = line
                visit(value, (*path, str(key.value)), above)
        else:
            for position, item in enumerate(node.value):
                visit(item, (*path, position), above)
        done.add(id(node))

    visit(root, (), frozenset())


def _read_json(name: str, text: str) -> Document:
    repeated: list[str] = []

    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        table = dict(items)
        if len(table) < len(items):
            keys = [key for key, _ in items]
            repeated.append(next(key for key in keys if keys.count(key) > 1))
        return table

    try:
        data = json.loads(text, object_pairs_hook=pairs)
    except json.JSONDecodeError as error:
        message = f"not valid JSON: {error.msg[:1].lower()}{error.msg[1:]} (column {error.colno})"
        hint = "JSON takes no comments, no trailing commas and double quotes only; YAML takes all three"
        raise _error(name, error.lineno, message, hint) from None
    except RecursionError:
        raise _error(name, 0, "nested too deeply to be read") from None
    document = Document(name, data, text, "json")
    if repeated:
        if document._tree is not None:
            _reject_duplicates(name, document._tree)
        raise _error(name, 0, f"key `{repeated[0]}` is given twice", "keep one of them")
    return document


def _read_toml(name: str, text: str) -> Document:
    try:
        return Document(name, tomllib.loads(text), text, "toml")
    except tomllib.TOMLDecodeError as error:
        match = re.match(r"(.*?) \(at (?:line (\d+), column \d+|end of document)\)$", str(error))
        message, line = (match[1], int(match[2] or text.count("\n") + 1)) if match else (str(error), 0)
        message = f"not valid TOML: {message[:1].lower()}{message[1:]}"
        raise _error(name, line, message, "strings need double quotes, tables a `[header]`") from None


def _child(node: yaml.Node, part: str | int) -> tuple[yaml.Node, yaml.Node] | None:
    """(node that carries the line, node of the value) of one key or item."""
    if isinstance(node, yaml.MappingNode):
        return next(((key, value) for key, value in node.value
                     if isinstance(key, yaml.ScalarNode) and key.value == str(part)), None)  # fmt: skip
    if isinstance(node, yaml.SequenceNode) and isinstance(part, int) and -len(node.value) <= part < len(node.value):
        return node.value[part], node.value[part]
    return None


def _toml_lines(text: str) -> dict[FieldPath, int]:
    """Lines of tables and keys. tomllib keeps none, so this reads the headers again; a key inside a multi-line string
    can be taken for one, which only costs a wrong line in a message."""
    lines: dict[FieldPath, int] = {}
    table: FieldPath = ()
    counts: dict[FieldPath, int] = {}
    for number, line in enumerate(text.splitlines(), 1):
        header = re.match(r"\s*(\[\[?)\s*([^\]]+?)\s*\]", line)
        key = re.match(r"\s*((?:[\w-]+|\"[^\"]*\"|'[^']*')(?:\s*\.\s*(?:[\w-]+|\"[^\"]*\"|'[^']*'))*)\s*=", line)
        if header:
            table = ()
            for part in _toml_key(header[2]):
                table = (*table, part)
                if table in counts:
                    table = (*table, counts[table])
            if header[1] == "[[":
                base = table[:-1] if table and isinstance(table[-1], int) else table
                counts[base] = counts.get(base, -1) + 1
                lines.setdefault(base, number)
                table = (*base, counts[base])
            lines.setdefault(table, number)
        elif key:
            lines.setdefault((*table, *_toml_key(key[1])), number)
    return lines


def _toml_key(text: str) -> FieldPath:
    return tuple(part.strip("\"'") for part in re.findall(r"\"[^\"]*\"|'[^']*'|[\w-]+", text))
