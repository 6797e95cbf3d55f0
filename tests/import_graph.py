"""Reads which file imports which, and how long files and functions are; returns what breaks a rule, as messages.

The rules themselves are data in `test_architecture.py`; `test_import_graph.py` shows that each one fails when broken.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import cache
from pathlib import Path, PurePosixPath

import networkx as nx


@dataclass(frozen=True)
class Parsed:
    """All that the rules ask of a file, so that each is parsed and walked once."""

    imports: tuple[ast.Import | ast.ImportFrom, ...]  # wherever in the file they are
    typing: frozenset[ast.AST]  # those under `if TYPE_CHECKING`: not executed
    asserts: int
    functions: tuple[tuple[str, int, int], ...]  # (name, line, lines as `_length` counts them)


def parsed(path: Path) -> Parsed:
    return _parsed(path.read_text(encoding="utf-8"))


@cache
def _parsed(text: str) -> Parsed:
    found = list(_statements(ast.parse(text)))
    typing = {inner for node in found if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING")
              for statement in node.body for inner in (statement, *_statements(statement))}  # fmt: skip
    imports = tuple(node for node in found if isinstance(node, ast.Import | ast.ImportFrom))
    functions = tuple((node.name, node.lineno, _length(node)) for node in found
                      if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))  # fmt: skip
    asserts = sum(isinstance(node, ast.Assert) for node in found)
    return Parsed(imports, frozenset(typing.intersection(imports)), asserts, functions)


def _statements(node: ast.AST) -> Iterator[ast.AST]:
    """All below a node, however deep; expressions, which hold no statement, are not walked."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.stmt | ast.excepthandler | ast.match_case):
            yield child
            yield from _statements(child)


@dataclass(frozen=True, order=True)
class Import:
    """One import of a file of the package by another."""

    source: str  # the importing file, relative to the repository: planner/api.py
    line: int  # of the import statement
    target: str  # the imported file: planner/space/tree.py
    typing: bool  # under `if TYPE_CHECKING`: not executed

    def breaks(self, rule: str) -> str:
        return f"{self.source}:{self.line} imports {self.target}: {rule}"

    def within(self, layer: str) -> bool:
        """Whether both files are of one layer but not of one folder of it."""
        ours = self.source.startswith(f"{layer}/") and self.target.startswith(f"{layer}/")
        return ours and unit(self.source) != unit(self.target)


def unit(file: str) -> str:
    """The folder, or file, directly below a layer: planner/space/tree.py -> space, planner/api.py -> api."""
    return PurePosixPath(file).parts[1].removesuffix(".py")


def is_below(file: str, prefix: str) -> bool:
    """Whether a file is `prefix` (without its suffix) or in that folder."""
    return file == f"{prefix}.py" or file.startswith(f"{prefix}/")


def package_imports(root: Path, layers: Sequence[str]) -> list[Import]:
    """Every relative import between the files of `layers`, wherever in a file it is."""
    files = sorted(path.relative_to(root).as_posix() for layer in layers for path in (root / layer).rglob("*.py"))
    known = set(files)
    return sorted({found for file in files for found in _imports_of(root, file, known)})


def _imports_of(root: Path, file: str, known: Set[str]) -> Iterator[Import]:
    found = parsed(root / file)
    package = PurePosixPath(file).parent.parts
    for node in found.imports:
        if not isinstance(node, ast.ImportFrom) or not 0 < node.level <= len(package) + 1:
            continue
        base = (*package[: len(package) - node.level + 1], *(node.module.split(".") if node.module else ()))
        for alias in node.names:
            module, parent = "/".join((*base, alias.name)) + ".py", "/".join(base) + ".py"
            if target := next((name for name in (module, parent) if name in known), None):
                yield Import(file, node.lineno, target, node in found.typing)


def breaks_of_order(imports: Sequence[Import], layer: str, order: Sequence[Sequence[str]]) -> list[str]:
    """Imports between folders of a layer that do not go downwards. `order`: from the lowest; those on one line may
    not import each other."""
    rank = {name: level for level, names in enumerate(order) for name in names}
    problems = []
    for found in (each for each in imports if each.within(layer)):
        source, target = unit(found.source), unit(found.target)
        if unplaced := [name for name in (source, target) if name not in rank]:
            problems.append(found.breaks(f"{layer}/{unplaced[0]} has no place in the order of {layer}"))
        elif rank[target] == rank[source]:
            problems.append(found.breaks(f"{layer}/{source} and {layer}/{target} may not import each other"))
        elif rank[target] > rank[source]:
            problems.append(found.breaks(f"{layer}/{target} is above {layer}/{source}"))
    return problems


def breaks_of_table(imports: Sequence[Import], layer: str, table: Mapping[str, Set[str]]) -> list[str]:
    """Imports between folders of a layer that `table` (folder -> folders it may import) does not have."""
    problems = []
    for found in (each for each in imports if each.within(layer)):
        source, target = unit(found.source), unit(found.target)
        if source not in table:
            problems.append(found.breaks(f"{layer}/{source} has no line in the table of {layer}"))
        elif target not in table[source]:
            allowed = ", ".join(sorted(table[source])) or "nothing"
            problems.append(found.breaks(f"of {layer}, {source} may import {allowed}"))
    return problems


def breaks_of_doors(imports: Sequence[Import], doors: Mapping[tuple[str, str], Sequence[str]]) -> list[str]:
    """`doors`: (importing folder, imported folder) -> the folders and files of it that alone may be imported."""
    problems = []
    for (source, target), allowed in doors.items():
        for found in imports:
            if not is_below(found.source, source) or not is_below(found.target, target):
                continue
            if not any(is_below(found.target, name) for name in allowed):
                problems.append(found.breaks(f"of {target}, {source} may import only {', '.join(allowed)}"))
    return problems


def breaks_of_privacy(imports: Sequence[Import], private: Mapping[str, tuple[str, Sequence[str]]]) -> list[str]:
    """`private`: folder or file -> (layer that the rule is about, who alone of that layer may import it)."""
    problems = []
    for target, (layer, importers) in private.items():
        for found in imports:
            if not is_below(found.target, target) or is_below(found.source, target):
                continue
            if found.source.startswith(f"{layer}/") and not any(is_below(found.source, name) for name in importers):
                problems.append(found.breaks(f"of {layer}, only {', '.join(importers) or 'nobody'} may import it"))
    return problems


def circles(imports: Sequence[Import], max_files: int) -> list[str]:
    """Circles of files that are not allowed: of executed imports (lazy ones too) none is; with imports of types, those
    inside one folder of at most `max_files` files are."""
    problems = [
        f"circle of executed imports: {_edges(component, imports, typing=False)}"
        for component in _components(found for found in imports if not found.typing)
    ]
    for component in _components(imports):
        if len({PurePosixPath(file).parent for file in component}) > 1:
            problems.append(f"circle over folders: {_edges(component, imports, typing=True)}")
        if len(component) > max_files:
            problems.append(f"circle of {len(component)} files, more than {max_files}: {', '.join(sorted(component))}")
    return problems


def _components(imports: Iterator[Import] | Sequence[Import]) -> list[set[str]]:
    graph = nx.DiGraph((found.source, found.target) for found in imports)
    return [component for component in nx.strongly_connected_components(graph) if len(component) > 1]


def _edges(component: Set[str], imports: Sequence[Import], *, typing: bool) -> str:
    inside = [found for found in imports if {found.source, found.target} <= component and (typing or not found.typing)]
    return "; ".join(f"{found.source}:{found.line} -> {found.target}" for found in inside)


def long_files(root: Path, files: Sequence[Path], max_lines: int) -> list[str]:
    """Files of more than `max_lines` lines."""
    counts = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in files}
    return [f"{path.relative_to(root)}: {count} lines, at most {max_lines}"
            for path, count in counts.items() if count > max_lines]  # fmt: skip


def long_functions(root: Path, files: Sequence[Path], max_lines: int) -> list[str]:
    """Functions of more than `max_lines` lines, signature and docstring counted; of a command only its body counts."""
    return [f"{path.relative_to(root)}:{line} {name}: {count} lines, at most {max_lines}"
            for path in files for name, line, count in parsed(path).functions if count > max_lines]  # fmt: skip


def _length(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    first = function.lineno
    arguments = function.args.posonlyargs + function.args.args
    if arguments and arguments[0].annotation and ast.unparse(arguments[0].annotation) == "typer.Context":
        body = function.body[1:] if ast.get_docstring(function) else function.body
        first = body[0].lineno if body else function.end_lineno or first
    return (function.end_lineno or first) - first + 1
