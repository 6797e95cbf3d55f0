"""Options of slime: those of its Megatron-LM, its own, and those of SGLang that it takes behind a prefix.

`--source` holds `slime/`, `Megatron-LM/` and `sglang/` in the releases that slime's docker/Dockerfile names.
"""

from __future__ import annotations

import argparse
import ast
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from .megatron import lines_of, parser_of

MADE_FROM = "its parser on that of Megatron-LM 1dcf0daf; fields of ServerArgs of SGLang 0.5.15.post1"
_KINDS = {"int": "int", "float": "float", "str": "str", "bool": "flag"}


def record(source: Path | None) -> list[str]:
    """The lines for a folder of the three."""
    if source is None:
        raise SystemExit("slime: give a folder with slime/, Megatron-LM/ and sglang/ by --source")
    megatron = source / "Megatron-LM"
    sys.path.insert(0, str(megatron))
    parser = parser_of()
    namespace: dict[str, Any] = {"argparse": argparse, "json": json, "Any": Any}
    _run(source / "slime" / "utils" / "arguments.py", ("reset_arg", "get_slime_extra_args_provider"), namespace)
    namespace["get_slime_extra_args_provider"]()(parser)
    beside = [line for name in ("utils", "backends/sglang_utils")
              for line in _declared(source / "slime" / name / "arguments.py")]  # fmt: skip
    lines = [*lines_of(parser, megatron), *_sglang(source)]
    return list({line.split()[0]: line for line in (*beside, *lines)}.values())


def _run(file: Path, names: tuple[str, ...], namespace: dict[str, Any]) -> None:
    """Defines functions of a file whose imports need GPUs."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    tree.body = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name in names]
    exec(compile(tree, str(file), "exec"), namespace)


def _declared(file: Path) -> Iterator[str]:
    """Options of parsers that a file builds beside its main one."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if not isinstance(node, ast.Call) or not ast.unparse(node.func).endswith("add_argument") or not node.args:
            continue
        words = {word.arg: ast.unparse(word.value) for word in node.keywords}
        kind = "flag" if "store_true" in words.get("action", "") else _KINDS.get(words.get("type", ""), "str")
        if isinstance(node.args[0], ast.Constant) and str(node.args[0].value).startswith("--"):
            yield f"{node.args[0].value} {kind}{'+' if 'nargs' in words else ''}"


def _sglang(source: Path) -> Iterator[str]:
    """`--sglang-` before the options of SGLang that slime does not set itself."""
    taken = ast.parse((source / "slime" / "backends" / "sglang_utils" / "arguments.py").read_text(encoding="utf-8"))
    skipped = next(ast.literal_eval(node.value) for node in ast.walk(taken) if isinstance(node, ast.Assign)
                   and isinstance(node.targets[0], ast.Name) and node.targets[0].id == "skipped_args")  # fmt: skip
    tree = ast.parse((source / "sglang" / "srt" / "server_args.py").read_text(encoding="utf-8"))
    fields = next(node.body for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "ServerArgs")
    for node in fields:
        annotation = node.annotation if isinstance(node, ast.AnnAssign) else None
        if not isinstance(annotation, ast.Subscript) or ast.unparse(annotation.value) != "A":
            continue
        name = ast.unparse(node.target)
        if name in skipped or "no_cli" in (text := ast.unparse(annotation.slice)):
            continue
        inner = ast.unparse(annotation.slice.elts[0]).removeprefix("Optional[").removesuffix("]")
        plain = "type_parser" not in text and "action=" not in text
        kind = _KINDS.get(inner, "str") if plain else "str"
        many = "+" if "List[" in inner or "nargs=" in text else ""
        yield f"--sglang-{name.replace('_', '-')} {kind}{many}"
