"""Options of OpenRLHF: the parser that its train_ppo_ray builds where it is run."""

from __future__ import annotations

import argparse
import ast
import datetime
from pathlib import Path
from typing import Any

from .megatron import lines_of

MADE_FROM = "the parser of openrlhf/cli/train_ppo_ray.py"


def record(source: Path | None) -> list[str]:
    """The lines for a folder that holds `openrlhf/`: a checkout, or an unpacked wheel."""
    if source is None:
        raise SystemExit("openrlhf: give the folder that holds openrlhf/ by --source")
    file = source / "openrlhf" / "cli" / "train_ppo_ray.py"
    tree = ast.parse(file.read_text(encoding="utf-8"))
    main = next(node for node in tree.body if isinstance(node, ast.If) and "__main__" in ast.unparse(node.test))
    parsed = next(i for i, node in enumerate(main.body) if "parse_args" in ast.unparse(node))
    tree.body = main.body[:parsed]
    namespace: dict[str, Any] = {"argparse": argparse, "datetime": datetime.datetime}
    exec(compile(tree, str(file), "exec"), namespace)
    return list(dict.fromkeys(lines_of(namespace["parser"], source)))
