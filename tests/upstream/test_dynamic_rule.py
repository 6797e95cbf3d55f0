"""The packer of Megatron's dynamic context parallelism forms the groups that the planner says it forms.

Its two functions are taken out of the source (megatron/core/datasets/data_schedule_utils.py): the module around them
needs a GPU. MEGATRON_DEV_PATH names a checkout of the branch dev, d48bd6be.
"""

from __future__ import annotations

import ast
import os
from functools import cache, lru_cache
from math import ceil, log2
from pathlib import Path
from typing import Any, Optional

import numpy as np
import pytest
from meshwright.planner.batches.dynamic_rule import dynamic_micro_batches

CHECKOUT = os.environ.get("MEGATRON_DEV_PATH", "")
if not CHECKOUT:
    pytest.skip("MEGATRON_DEV_PATH names no checkout of the dev branch of Megatron-LM", allow_module_level=True)
pytestmark = pytest.mark.upstream
PACKER, NEEDED, LIMIT = "next_hdp_group_packing_aware", "dcp_gpus_needed", "_DYNAMIC_CP_WORKLOAD_CAP_DELTA"


@cache
def packer() -> Any:
    path = Path(CHECKOUT) / "megatron" / "core" / "datasets" / "data_schedule_utils.py"
    nodes: list[ast.stmt] = [
        node for node in ast.parse(path.read_text()).body
        if (isinstance(node, ast.FunctionDef) and node.name in (PACKER, NEEDED))
        or (isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == LIMIT)
    ]  # fmt: skip
    assert len(nodes) == 3
    names: dict[str, Any] = {"lru_cache": lru_cache, "ceil": ceil, "log2": log2, "Dict": dict, "List": list,
                             "Optional": Optional, "Tuple": tuple}  # fmt: skip
    exec(compile(ast.Module(nodes, []), path.name, "exec"), names)
    return names[PACKER]


def of_megatron(lengths: list[int], rank_tokens: int, num_ranks: int) -> list[list[list[int]]]:
    """[micro-batch][rank] the documents that it trains, in order."""
    left, out = sorted(enumerate(lengths), key=lambda document: document[1], reverse=True), []
    while left:
        _, left, _, documents = packer()(left, num_ranks, rank_tokens)
        out.append(documents)
    return out


@pytest.mark.parametrize("num_ranks", [2, 8, 64])
@pytest.mark.parametrize("seed", range(40))
def test_groups_are_those_of_megatron(seed: int, num_ranks: int) -> None:
    random = np.random.default_rng(seed)
    rank_tokens, size = int(random.integers(100, 5000)), int(random.integers(1, 200))
    lengths = np.ceil(random.lognormal(6.5, 1.5, size=size).clip(1, rank_tokens * num_ranks))
    ours = [[list(group.sequences) for group in groups for _ in range(group.degree)]
            for groups in dynamic_micro_batches(lengths, rank_tokens, num_ranks)]  # fmt: skip
    assert ours == of_megatron(lengths.astype(int).tolist(), rank_tokens, num_ranks)
