"""The optimizer of torchtitan's configs, by the words that change a step.

Sources: torchtitan b5bcd76c, components/optimizer/optimizer.py; v0.2.2, torchtitan/config/job_config.py.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from typing import Any

from ..options import Entry, Facts, NoCounterpartError, Settings

# Stands for the call, or the section, that makes it.
OPTION = "optimizer"
_ADAM = ("Adam", "AdamW")
_DEFAULT = "AdamW"
_UNKNOWN = "?"
_OTHERWISE = {"fused_opt_states_bf16": "no plan of torchtitan has moments in bf16",
              "early_step_in_backward": "updates weights in the backward pass"}  # fmt: skip


def of_section(section: Mapping[str, Any]) -> str:
    """The words of a section of TOML."""
    values = [value for value in section.values() if isinstance(value, str)]
    otherwise = {word for word in _OTHERWISE if section.get(word) not in (None, False) or word in values}
    return " ".join(sorted({_word(section.get("name", _DEFAULT)), *otherwise}))


def of_call(node: ast.expr) -> str:
    """The words of the call that makes it, with _UNKNOWN where a word is no literal or the maker is not known."""
    text = ast.unparse(node)
    otherwise = set(re.findall(r"fused_opt_states_bf16|early_step_in_backward(?==(?!False))", text))
    return " ".join(sorted({*_names(node), *otherwise}))


def _names(node: ast.expr) -> Iterator[str]:
    maker = ast.unparse(node.func) if isinstance(node, ast.Call) else ""
    if maker.rpartition(".")[2] == "default_adamw":
        return
    if not isinstance(node, ast.Call) or node.args or not maker.endswith("OptimizersContainer.Config"):
        yield _UNKNOWN
        return
    for keyword in node.keywords:
        if keyword.arg in (None, "name"):
            yield _literal(keyword.value)
        elif keyword.arg == "param_groups":
            groups = keyword.value.elts if isinstance(keyword.value, ast.List | ast.Tuple) else [keyword.value]
            yield from map(_of_group, groups)


def _of_group(node: ast.expr) -> str:
    """The optimizer of a group of parameters, its second argument."""
    if not isinstance(node, ast.Call) or not ast.unparse(node.func).endswith("ParamGroupConfig"):
        return _UNKNOWN
    given = [keyword.value for keyword in node.keywords if keyword.arg in (None, "optimizer_name")]
    return _literal([*given, *node.args[1:2], ast.Constant(_DEFAULT)][0])


def _literal(node: ast.expr) -> str:
    return _word(node.value if isinstance(node, ast.Constant) else None)


def _word(value: object) -> str:
    return value if isinstance(value, str) and value.isidentifier() else _UNKNOWN


def _read(settings: Settings, facts: Facts) -> Facts:
    """Adam and AdamW with moments in fp32, which plans have."""
    for word in str(settings.get(OPTION, "")).split():
        if word == _UNKNOWN:
            raise NoCounterpartError(f"{OPTION}: which one it is follows from code that is not read",
                                     hint=f"known: {', '.join(_ADAM)}")  # fmt: skip
        if word in _OTHERWISE:
            raise NoCounterpartError(f"{OPTION}: {word}: {_OTHERWISE[word]}")
        if word not in _ADAM:
            raise NoCounterpartError(f"{OPTION} {word} has no counterpart in a plan of torchtitan",
                                     hint=f"known: {', '.join(_ADAM)}")  # fmt: skip
    return {}


ENTRY = Entry(("workload.optimizer",), (OPTION,), lambda setup: {}, _read)
