"""Megatron's dynamic context parallelism: its packer forms the groups that the planner says it forms, and its parser
takes the files of plans by that rule.

The two functions of the packer are taken out of the source (megatron/core/datasets/data_schedule_utils.py): the module
around them needs a GPU. MEGATRON_DEV_PATH names a checkout of the branch dev, d48bd6be.
"""

from __future__ import annotations

import ast
import os
import sys
from functools import cache, lru_cache
from itertools import product
from math import ceil, log2
from pathlib import Path
from typing import Any, Optional

import numpy as np
import pytest
from meshwright.planner import api
from meshwright.planner.batches.dynamic_rule import dynamic_micro_batches
from meshwright.planner.drivers.document_degrees import training_plan
from meshwright.planner.targets.emit import emit
from meshwright.planner.targets.setup import Setup

from ..planner.targets.emit_plans import config_of
from ..table import Row
from .pythons import FOLDER, python_of

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


ARGUMENTS = "megatron.args"
# (model, cluster): tensor parallelism of one GPU and of several, ranks from 4 to 64.
PLANNED = [("deepseek-llm-7b", "dgx-h100:1"), ("llama-2-7b", "dgx-a100-40gb:2"), ("qwen3-8b", "dgx-h100:8"),
           ("mistral-7b-v0.3", "dgx-h100:2"), ("llama-3-70b", "dgx-h100:16")]  # fmt: skip


@cache
def emitted(model: str, cluster: str) -> tuple[dict[str, str], Setup]:
    """The files of a plan by the rule, and its setup."""
    plan = api.plan_documents(model=model, cluster=cluster, lengths="512:60,2048:30,8192:2", max_len="8K",
                              global_batch=48, num_batches=2, target="megatron", lengths_rule="dynamic")  # fmt: skip
    training = training_plan(plan.document())
    return dict(emit(training, "megatron").files), Setup.of(training, 1)


# (piece of the arguments, in its place, word of Megatron's refusal)
CORRUPTIONS = [
    ("--dynamic-context-parallel", "--dynamic-context-paralel", "unrecognized arguments"),
    ("--max-seqlen-per-dp-cp-rank", "--max-seqlen-per-dpcp-rank", "unrecognized arguments"),
    ("--calculate-per-token-loss", "", "calculate-per-token-loss"),
    ("default_dynamic_cp", "dp_balanced", "default_dynamic_cp"),
    ("--dynamic-context-parallel", "--dynamic-context-parallel\n--dataloader-type cyclic", "single dataloader"),
]


@cache
def verdicts() -> dict[tuple[str, str], list[str | None]]:
    """(piece, in its place) -> the parser's objection to every plan that is changed so."""
    parser, cases = config_of("megatron").parser, []
    changes = [("--", "--"), *((old, new) for old, new, _ in CORRUPTIONS)]
    for (old, new), (model, cluster) in product(changes, PLANNED):
        files, setup = emitted(model, cluster)
        assert old in files[ARGUMENTS]
        cases.append(parser.case({**files, ARGUMENTS: files[ARGUMENTS].replace(old, new)}, setup))
    said = parser.verdicts(cases, python_of("megatron") if FOLDER else sys.executable, CHECKOUT)
    each = (said[at : at + len(PLANNED)] for at in range(0, len(said), len(PLANNED)))
    return dict(zip(changes, each, strict=True))


def test_the_parser_of_the_branch_takes_every_plan(row: Row) -> None:
    said = verdicts()["--", "--"]
    row("megatron", "parser of the branch dev accepts, dynamic rule", f"{said.count(None)} of {len(said)}")
    assert said == [None] * len(PLANNED)


@pytest.mark.parametrize(("old", "new", "reason"), CORRUPTIONS)
def test_the_parser_of_the_branch_refuses_changed_files(old: str, new: str, reason: str) -> None:
    assert [text for text in verdicts()[old, new] if text is None or reason not in text] == []
