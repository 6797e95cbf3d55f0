"""Renames options of MegaBlocks' fork of Megatron-LM to those of today's pretrain_gpt.py.

Sources: databricks/megablocks 78eea65 (2025-06-26), layers/arguments.py (defaults), layers/mpu.py and
layers/moe.py (experts over an expert-parallel group). In the fork stanford-futuredata/Megatron-LM all data-parallel
ranks form that group.
"""

from __future__ import annotations

from collections.abc import Mapping

from ....errors import FieldProblem
from ..argv import Arguments
from ..option_lists import Option

_RENAMED = {"--moe-num-experts": "--num-experts", "--moe-top-k": "--moe-router-topk",
            "--moe-loss-weight": "--moe-aux-loss-coeff"}  # fmt: skip
_DEFAULTS = {"--moe-router-topk": 1, "--moe-aux-loss-coeff": 0.1}
_OVER_RANKS, _CAPACITY = "--moe-expert-model-parallelism", "--moe-capacity-factor"
_KINDS = {"--moe-num-experts": "int", "--moe-top-k": "int", "--moe-loss-weight": "float", _CAPACITY: "float",
          _OVER_RANKS: "flag"}  # fmt: skip
OPTIONS: Mapping[str, Option] = {name: Option(name, kind) for name, kind in _KINDS.items()}


def modernise(arguments: Arguments) -> None:
    """Options of experts in every layer. Without a capacity no token is dropped."""
    given = arguments.settings
    if "--moe-num-experts" not in given:
        return
    line, file = arguments.lines["--moe-num-experts"], arguments.files.get("--moe-num-experts", "")
    for old, new in _RENAMED.items():
        if old in given:
            given[new] = given.pop(old)
    given |= {name: value for name, value in _DEFAULTS.items() if name not in given}
    given |= {"--moe-router-pre-softmax": True, "--expert-tensor-parallel-size": 1}
    if capacity := given.pop(_CAPACITY, 0):
        given["--moe-expert-capacity-factor"] = capacity
    if given.pop(_OVER_RANKS, False):
        stated = arguments.ranks
        ranks = stated.get("world") or stated.get("gpus_per_node", 0) * stated.get("num_nodes", 1)
        degrees = given.get("--tensor-model-parallel-size", 1) * given.get("--pipeline-model-parallel-size", 1)
        if not ranks or ranks % degrees:
            text = "experts over all data-parallel ranks, of which the number is not here"
            hint = "give the variables of its launcher by --arg NAME=VALUE"
            arguments.gaps.append(FieldProblem(text, _OVER_RANKS, file, line, hint))
            return
        given["--expert-model-parallel-size"] = min(ranks // degrees, given["--num-experts"])
    for name in ("--num-experts", *_DEFAULTS, "--expert-model-parallel-size"):
        arguments.lines.setdefault(name, line)
        arguments.files.setdefault(name, file)
