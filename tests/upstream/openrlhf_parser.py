"""Reads many command lines by what train_ppo_ray of OpenRLHF does before it trains, on a machine without a GPU. Run it
by the Python that has it:

    python openrlhf_parser.py < cases.jsonl > verdicts.jsonl

A case is a list of words. Its verdict is null or why the program stops: its parser, or the asserts behind it. The
packages that it trains with are not imported.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import datetime
import importlib.util
import io
import json
import sys
from pathlib import Path
from types import CodeType
from typing import Any


def program() -> tuple[CodeType, Any]:
    """The part of train_ppo_ray that runs when it is started, without the call that trains, and its `hierarchize`."""
    spec = importlib.util.find_spec("openrlhf")
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit("openrlhf is not installed")
    folder = Path(next(iter(spec.submodule_search_locations)))
    file = folder / "cli" / "train_ppo_ray.py"
    tree = ast.parse(file.read_text(encoding="utf-8"))
    main = next(node for node in tree.body if isinstance(node, ast.If) and "__main__" in ast.unparse(node.test))
    tree.body = [node for node in main.body
                 if ast.unparse(node) != "train(args)" and not isinstance(node, ast.ImportFrom)]  # fmt: skip
    config: dict[str, Any] = {}
    exec((folder / "utils" / "config.py").read_text(encoding="utf-8"), config)
    return compile(tree, str(file), "exec"), config["hierarchize"]


def verdict(code: CodeType, hierarchize: Any, words: list[str]) -> str | None:
    """None, or why it stops."""
    said = io.StringIO()
    sys.argv = ["train_ppo_ray", *words]
    names = {"argparse": argparse, "datetime": datetime.datetime, "hierarchize": hierarchize}
    try:
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
            exec(code, names)
    except SystemExit:
        return said.getvalue().strip().splitlines()[-1]
    except AssertionError as error:
        return str(error)
    return None


def main() -> None:
    code, hierarchize = program()
    for line in sys.stdin:
        print(json.dumps(verdict(code, hierarchize, json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
