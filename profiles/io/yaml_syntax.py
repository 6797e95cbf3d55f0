"""YAML files, read by PyYAML: plain Python from its constructor, lines from its nodes.

YAML is 1.1 as PyYAML reads it, with three repairs: `1e9` is a number, `1:30` is not ninety, and a date stays a string.
"""

from __future__ import annotations

import re
from functools import partial
from typing import Any

import yaml

from .document import WRONG_FILE, Document, FieldPath, file_error, value_fault

_BaseLoader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # the C one where libyaml is there: 10x faster
_DEEPEST = 200  # nested collections; the C composer recurses, and overflows the stack of the process at some 10,000


_OCTAL = re.compile(r"([-+]?)0[0_]*([1-7][0-7_]*)")


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


def parse_yaml(name: str, text: str, *, last_counts: bool = False) -> Document:
    """Raises InputError for broken syntax, an unknown tag, more than one document and a key given twice, unless the
    last of them counts."""
    loader: Any = None
    try:
        _reject_depth(name, text)
        loader = _Loader(text)
        root = loader.get_single_node()
        if root is None:
            raise file_error(name, 0, "the file is empty")
        repeated: list[str] | None = [] if last_counts else None
        reject_duplicates(name, root, repeated)
        _reject_octal(name, root)
        data = loader.construct_document(root)
        return Document(name, data, line_of=partial(line_in, root), repeated=_on_repeated(name, repeated or []))
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark else 0
        message, hint = _explain(error.problem or error.context or "cannot be read", text, line)
        raise file_error(name, line, message, hint) from None
    except yaml.reader.ReaderError as error:
        line = text[: error.position].count("\n") + 1
        code = error.character if isinstance(error.character, int) else ord(str(error.character))
        message = f"not valid YAML: control character 0x{code:02x}"
        raise file_error(name, line, message, "is this a text file?") from None
    except RecursionError:
        raise file_error(name, 0, "nested too deeply to be read", WRONG_FILE) from None
    except ValueError as error:
        raise file_error(name, 0, f"not valid YAML: {value_fault(error)}", WRONG_FILE) from None
    finally:
        if loader is not None:
            loader.dispose()


def compose(name: str, text: str) -> yaml.Node | None:
    """The nodes of a text with their positions; None for an empty one. Raises what PyYAML raises."""
    _reject_depth(name, text)
    root: yaml.Node | None = _Loader(text).get_single_node()
    return root


def line_in(root: yaml.Node, path: FieldPath) -> int:
    """Line (from 1) of the field in the nodes, or of the nearest field around it that is there."""
    node, line = root, root.start_mark.line + 1
    for part in path:
        child = _child(node, part)
        if child is None:
            break
        marked, node = child
        line = marked.start_mark.line + 1
    return int(line)


def _child(node: yaml.Node, part: str | int) -> tuple[yaml.Node, yaml.Node] | None:
    """(node that carries the line, node of the value) of one key or item."""
    if isinstance(node, yaml.MappingNode):
        # The constructor puts what `<<` merges before the mapping's own keys, so the last of equal keys counts.
        return next(((key, value) for key, value in reversed(node.value)
                     if isinstance(key, yaml.ScalarNode) and key.value == str(part)), None)  # fmt: skip
    if isinstance(node, yaml.SequenceNode) and isinstance(part, int) and -len(node.value) <= part < len(node.value):
        return node.value[part], node.value[part]
    return None


def _on_repeated(name: str, repeated: list[str]) -> str:
    """The sentence on keys that are given twice; "" for none."""
    more = f", and {len(repeated) - 1} more keys twice" if len(repeated) > 1 else ""
    return f"{name} has {repeated[0]}{more}: the last counts, as for PyYAML" if repeated else ""


def reject_duplicates(name: str, root: yaml.Node, repeated: list[str] | None = None) -> None:
    """Raises InputError for a key given twice in one mapping, or a file that contains itself through an alias.
    repeated: takes such keys with their lines, so that they raise nothing."""
    done: set[int] = set()

    def visit(node: yaml.Node, path: FieldPath, above: frozenset[int]) -> None:
        if id(node) in above:
            raise file_error(name, node.start_mark.line + 1, "contains itself through an alias", path=path)
        if isinstance(node, yaml.ScalarNode) or id(node) in done:
            return
        above |= {id(node)}
        if isinstance(node, yaml.MappingNode):
            first: dict[str, int] = {}
            for key, value in node.value:
                line = key.start_mark.line + 1
                if isinstance(key, yaml.ScalarNode) and key.value in first and key.value != "<<":
                    if repeated is None:
                        message = f"key `{key.value}` is given twice, first in line {first[key.value]}"
                        raise file_error(name, line, message, "keep one of them", (*path, key.value))
                    repeated.append(f"`{key.value}` in lines {first[key.value]} and {line}")
                if isinstance(key, yaml.ScalarNode):
                    first[key.value] = line
                visit(value, (*path, str(key.value)), above)
        else:
            for position, item in enumerate(node.value):
                visit(item, (*path, position), above)
        done.add(id(node))

    visit(root, (), frozenset())


def _reject_octal(name: str, root: yaml.Node) -> None:
    """Raises InputError for `010`, which YAML 1.1 reads as 8 and whoever wrote it as 10."""
    pending, done = [root], set[int]()
    while pending:
        node = pending.pop()
        if id(node) in done:
            continue
        done.add(id(node))
        if isinstance(node, yaml.MappingNode):
            pending += [part for pair in node.value for part in pair]
        elif isinstance(node, yaml.SequenceNode):
            pending += node.value
        elif node.tag == "tag:yaml.org,2002:int" and (octal := _OCTAL.fullmatch(node.value)):
            message = f"`{node.value}` would be read as an octal number, {int(octal[2].replace('_', ''), 8):,}"
            hint = f"write `{octal[1]}{octal[2]}` without the zero before it, or quote it as text"
            raise file_error(name, node.start_mark.line + 1, message, hint)


def _reject_depth(name: str, text: str) -> None:
    """Raises InputError for a nesting at which the C composer would overflow the stack and kill the process."""
    if text.count("[") + text.count("{") < 500 and not re.search(r"(?:[-?:] ){200}|^ {500}", text, re.MULTILINE):
        return
    depth = 0
    for event in yaml.parse(text, Loader=_Loader):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > _DEEPEST:
            line = event.start_mark.line + 1 if event.start_mark else 0
            raise file_error(name, line, "nested too deeply to be read")


def _explain(problem: str, text: str, line: int) -> tuple[str, str]:
    """(message, hint) for the scanner's complaint."""
    source = text.splitlines()[line - 1 : line]
    if "cannot start any token" in problem and source and "\t" in source[0]:
        return "not valid YAML: a tab in the indentation", "indent with spaces"
    if "another document" in problem:
        return "holds more than one YAML document", "keep one: remove the second `---`"
    if "mapping values are not allowed" in problem:
        return f"not valid YAML: {problem}", "check the indentation, or quote a value that holds `: `"
    return f"not valid YAML: {problem}", "check indentation, brackets and quotes on this line and the one above"


class _Dumper(yaml.SafeDumper):
    """Safe dumper that writes text of several lines as a block, and an object at each of its places."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _text(dumper: _Dumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _text)


def text_of(data: Any) -> str:
    """Plain Python as the text of a YAML file, keys in their order."""
    return str(yaml.dump(data, Dumper=_Dumper, sort_keys=False, width=120, allow_unicode=True))


def line_of(data: Any) -> str:
    """Plain Python as YAML in one line, as a user writes it behind `--set`; text stays as it is."""
    if isinstance(data, str):
        return data
    line = yaml.dump(data, Dumper=_Dumper, sort_keys=False, width=float("inf"), allow_unicode=True,
                     default_flow_style=True)  # fmt: skip
    return str(line).removesuffix("...\n").strip()
