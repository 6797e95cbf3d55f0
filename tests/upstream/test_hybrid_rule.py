"""Megatron's own scheduler of hybrid context parallelism forms the groups that the planner says it forms.

The class is taken out of the source (core/pipeline_parallel/hybrid_cp_schedule.py): the module around it needs a GPU.
MEGATRON_PATH names the checkout.
"""

from __future__ import annotations

import ast
import os
from collections import deque
from collections.abc import Callable
from functools import cache, lru_cache
from math import ceil, log2
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Optional

import numpy as np
import pytest
from meshwright.planner.batches.hybrid_rule import hybrid_micro_batches

CHECKOUT = os.environ.get("MEGATRON_PATH", "")
if not CHECKOUT:
    pytest.skip("MEGATRON_PATH names no checkout of Megatron-LM", allow_module_level=True)
pytestmark = pytest.mark.upstream


@cache
def scheduler() -> Any:
    path = Path(CHECKOUT) / "megatron" / "core" / "pipeline_parallel" / "hybrid_cp_schedule.py"
    (node,) = (node for node in ast.parse(path.read_text()).body if isinstance(node, ast.ClassDef))
    torch = SimpleNamespace(distributed=SimpleNamespace(ProcessGroup=object))
    names: dict[str, Any] = {"deque": deque, "lru_cache": lru_cache, "ceil": ceil, "log2": log2, "torch": torch,
                             "Callable": Callable, "List": list, "Optional": Optional, "Tuple": tuple}  # fmt: skip
    exec(compile(ast.Module([node], []), path.name, "exec"), names)
    return names[node.name]


def of_megatron(lengths: list[int], rank_tokens: int, num_ranks: int) -> list[list[tuple[int, ...]]]:
    """[micro-batch][rank] the documents that it trains, in order."""
    made = scheduler()(rank_tokens, SimpleNamespace(size=lambda: num_ranks))
    _, documents = made.get_groups_and_subsamples(list(enumerate(lengths)), None)
    return [[tuple(of_rank) for of_rank in micro_batch] for micro_batch in documents]


@pytest.mark.parametrize("num_ranks", [2, 8, 64])
@pytest.mark.parametrize("seed", range(40))
def test_groups_are_those_of_megatron(seed: int, num_ranks: int) -> None:
    random = np.random.default_rng(seed)
    rank_tokens, size = int(random.integers(100, 5000)), int(random.integers(1, 200))
    lengths = np.ceil(random.lognormal(6.5, 1.5, size=size).clip(1, rank_tokens * num_ranks))
    ours = [[documents for group in groups for documents in [group.sequences] * group.degree]
            for groups in hybrid_micro_batches(lengths, rank_tokens, num_ranks)]  # fmt: skip
    assert ours == of_megatron(lengths.astype(int).tolist(), rank_tokens, num_ranks)
